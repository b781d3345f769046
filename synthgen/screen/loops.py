"""Replies that are stuck: one character or token over and over, or a passage that repeats.

Only what repeats exactly and without a gap counts. So rows of a table, objects of a list, lines of code
and steps of a calculation, alike as they are, don't, nor does a refrain or another "Wait, …". A loop that
changes a number in each round isn't found. Each text is searched at C speed from a few places, so the
cost is some 20 µs for 4 KB.
"""

from __future__ import annotations

from collections.abc import Iterator

from synthgen.screen.view import View, excerpt

RUN = 32
"""Characters or tokens of one kind in a row that nobody writes."""
LONG_RUN = 128
"""The same for digits and letters of ASCII: masks have 64 hex digits, a googol 100 zeros, tests 100 x."""
RULE_RUN = 512
"""The same for blanks and what rules, leaders and bars are drawn with: more than any line holds."""
STEP = 6
FEW_KINDS = 3
"""A long text of no more different characters says nothing; ones and zeros alone may be a number."""
FEW_KINDS_CHARS = 200

NEEDLE = 40
"""Characters that are looked for again: no shorter phrase counts as a passage by itself."""
LOOP_CHARS = 240
"""Shortest loop; of scripts that say more with a character proportionally fewer, by the bytes of UTF-8."""
NUMBERS_LOOP_CHARS = 800
"""The same for a loop with hardly a letter in it: the rows of a table or a matrix may be equal."""
REPEATS = 4
SHORT_CHARS = 400
"""Below this a loop is short too: half of the text, of at least 48 characters and 8 repeats."""
SHORT_NEEDLE, SHORT_LOOP_CHARS, SHORT_REPEATS = 8, 48, 8
PERIODS = 8
"""Inside a text a passage is at most an eighth of it; so from a quarter of the text each loop that is half
of it shows a repeat after at least one of the quarters.
"""
CANDIDATES = 8
"""Distances that are tried at one place: a passage may hold its own first words twice."""

_DRAWN = frozenset(" \t\n\r\u00a0\u3000-=_*#~+.|/\\\u2026\u2014\u2013\u00b7\u2022")


def degenerate(trace: View) -> str | None:
    """One character or token over and over, or hardly any different characters; where, or None.

    A run of 32 is enough, if it is half of the text or of what no text repeats so often. Longer ones are
    allowed of digits and letters (128), and of blanks and what rules and bars are made of (512).
    """
    thinking, response = trace.texts
    may_run = any(_suspects(thinking + response))
    for text in (thinking, response):
        start = _run_in(text) if may_run else None
        if start is not None or _has_few_kinds(text):
            return excerpt(text, start or 0)
    token = _token_run(trace.ids)
    return None if token is None else f"token {token} over and over: {excerpt(''.join(trace.texts))}"


def repetition(trace: View) -> str | None:
    """A passage that repeats until the end, or for a quarter of the thinking or response; where, or None."""
    for text in trace.texts:
        start = _loop_in(text)
        if start is not None:
            return excerpt(text, start)
    return None


def _run_in(text: str) -> int | None:
    """Start of a run of one character."""
    for character in dict.fromkeys(_suspects(text)):
        start = text.find(character * _allowed(character, len(text)))
        if start >= 0:
            return start
    return None


def _suspects(text: str) -> Iterator[str]:
    """Characters that may run: a run of 32 shows as five equal ones in every sixth character.

    All are compared with their neighbours at once, as the bits of two numbers: where five are equal, there
    are four times `width` zero bytes. A regular expression takes twice as long.
    """
    sample = text[::STEP]
    width = 1 if sample.isascii() else 4
    number = int.from_bytes(sample.encode("utf-32-le" if width > 1 else "ascii", "surrogatepass"), "little")
    differences = (number ^ number >> 8 * width).to_bytes(width * len(sample), "little")
    place = differences.find(bytes(4 * width))
    while place >= 0:
        if place % width == 0:
            yield sample[place // width]
        place = differences.find(bytes(4 * width), place + 1)


def _allowed(character: str, length: int) -> int:
    """How long a run of it in a text of `length` nobody writes: half of the text is one, but of digits."""
    if character.isdecimal():
        return LONG_RUN
    longest = RUN
    if character in _DRAWN or "\u2500" <= character <= "\u259f":
        longest = RULE_RUN
    elif character.isascii() and character.isalnum():
        longest = LONG_RUN
    return min(longest, max(RUN, (length + 1) // 2))


def _has_few_kinds(text: str) -> bool:
    if len(text) < FEW_KINDS_CHARS or len(set(text[:RUN])) > FEW_KINDS + 2:
        return False
    kinds = set("".join(text.split()))
    return len(kinds) <= FEW_KINDS and not kinds <= {"0", "1"}


def _token_run(ids: bytes) -> int | None:
    """A token that runs 128 times, or 32 times and for half of the ids, in the middle or near the end."""
    for place in (4, 7):
        start = ids.rfind(b",", 0, len(ids) * place // 8) + 1
        piece = ids[start : ids.find(b",", start) + 1]
        if piece and start and ids.startswith(piece, start - len(piece)):
            run = piece * min(LONG_RUN, max(RUN, len(ids) // len(piece) // 2))
            if run in ids:
                return int(piece[:-1])
    return None


def _loop_in(text: str) -> int | None:
    """Start of a loop: the one at the end, or one that a place in the text lies in."""
    length = len(text)
    if length < 2 * SHORT_NEEDLE:
        return None
    if length < SHORT_CHARS:
        start = _tail(text, SHORT_NEEDLE, max(SHORT_LOOP_CHARS, length // 2), SHORT_REPEATS)
        if start is not None or length < LOOP_CHARS:
            return start
    start = _tail(text, NEEDLE, LOOP_CHARS, REPEATS)
    if start is not None:
        return start
    for place in (length // 4, length // 2, length * 3 // 4):
        end = place + length // PERIODS + NEEDLE
        if text.find(text[place : place + NEEDLE], place + 1, end) >= 0:
            start = _loop_from(text, place)
            if start is not None:
                return start
    return None


def _tail(text: str, needle_chars: int, at_least: int, repeats: int) -> int | None:
    """Start of a loop that lasts until the end."""
    length = len(text)
    needle = text[-needle_chars:]
    found = length - needle_chars
    earliest = max(0, found - length // repeats)
    for _ in range(CANDIDATES):
        found = text.rfind(needle, earliest, found + needle_chars - 1)
        if found < 0:
            return None
        period = length - needle_chars - found
        loop = _enough(text[-period:], at_least, repeats)
        if loop <= length and text[-loop:-period] == text[period - loop :]:
            return length - loop
    return None


def _loop_from(text: str, place: int) -> int | None:
    """Start of a loop that holds `place` and is at least a quarter of the text."""
    length = len(text)
    for period in _periods(text, place, length // PERIODS):
        passage = text[place : place + period]
        if text.startswith(passage, place + period):
            start, end = _first_equal(text, place, period), _last_equal(text, place, period) + period
            if end - start >= max(_enough(passage, LOOP_CHARS, REPEATS), length // 4):
                return start
    return None


def _periods(text: str, place: int, longest: int) -> Iterator[int]:
    """Distances, at most `longest`, after which the 40 characters from `place` come again."""
    needle = text[place : place + NEEDLE]
    found = place
    for _ in range(CANDIDATES):
        found = text.find(needle, found + 1, place + longest + NEEDLE)
        if found < 0:
            return
        yield found - place


def _enough(passage: str, at_least: int, repeats: int) -> int:
    """Characters in which a passage has to repeat to be a loop."""
    head = passage[:LOOP_CHARS]
    if 4 * sum(map(str.isalpha, head)) < len(head):
        at_least = max(at_least, NUMBERS_LOOP_CHARS)
    return max(at_least * len(head) // len(head.encode("utf-8", "replace")), repeats * len(passage))


def _last_equal(text: str, start: int, period: int) -> int:
    """The largest end for which text[start:end] comes again after `period`."""
    low, high = start, len(text) - period
    while low < high:
        middle = (low + high + 1) // 2
        if text[low:middle] == text[low + period : middle + period]:
            low = middle
        else:
            high = middle - 1
    return low


def _first_equal(text: str, end: int, period: int) -> int:
    """The smallest start for which text[start:end] comes again after `period`."""
    low, high = 0, end
    while low < high:
        middle = (low + high) // 2
        if text[middle:high] == text[middle + period : high + period]:
            high = middle
        else:
            low = middle + 1
    return low

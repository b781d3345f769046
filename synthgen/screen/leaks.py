"""Special tokens where none may be, by their ids and by their names in the text.

Allowed are: any special token as the very last one of a turn that ended, `</think>` where the thinking
ends, its opening at the very start, and tool tokens from the tool section on, if the prompt offered tools
or the server parsed a call. A name in the text is no leak when a message of the prompt has it, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from synthgen.corpus.special_tokens import CONTROL_NAMES
from synthgen.screen.view import View, excerpt

NAMED_CHARS = 5
"""Shorter names, as `<s>`, are HTML, too; those are looked for by id alone."""
PREFIX_DIGITS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialTokens:
    """The special tokens of a corpus, prepared for a fast search."""

    by_digits: dict[bytes, str]
    """Name by id, as the id is written."""
    needles: tuple[bytes, ...]
    """What to look for among the ids, `[163,163607]`: whole short ids, the first digits of long ones."""
    think_end: str | None
    think_start: str | None
    tool_section: str | None
    tools: frozenset[str]
    """The names of tool tokens."""
    names: re.Pattern[str]
    """Any name that is looked for in texts."""
    gates: tuple[str, ...]
    """One of these is in a text that has a name in it."""
    has_brackets: bool
    """Whether there are names like `[INST]`."""

    def may_be_in(self, text: str) -> bool:
        """Whether it is worth to look for names in a text: hardly any text passes, and it is fast."""
        may_begin = "<" in text or (self.has_brackets and "[" in text)
        return may_begin and any(gate in text for gate in self.gates)

    @classmethod
    def of(cls, special: dict[str, int], think_end: str | None, tool_section: str | None) -> Self:
        """From a corpus' `special_tokens` and the configured markers."""
        names = dict.fromkeys((*special, *CONTROL_NAMES, *filter(None, (think_end, tool_section))))
        longest_first = sorted((n for n in names if len(n) >= NAMED_CHARS), key=len, reverse=True)
        return cls(
            by_digits={str(token).encode(): name for name, token in special.items()},
            needles=_needles(sorted(special.values())),
            think_end=think_end,
            think_start=None if think_end is None else think_end.replace("/", "", 1),
            tool_section=tool_section,
            tools=frozenset(name for name in names if "tool" in name.lower() or name == tool_section),
            names=re.compile("|".join(map(re.escape, longest_first))),
            gates=_gates(longest_first),
            has_brackets=any(name.startswith("[") for name in names),
        )


def leaked_tokens(trace: View, special: SpecialTokens) -> str | None:
    """The first special token that has no place where it stands, among the ids or in a text; or None."""
    for name in _misplaced(trace, special):
        return f"{name} among the ids: {excerpt(''.join(trace.texts))}"
    for text in trace.texts:
        if special.may_be_in(text):
            for found in special.names.finditer(text):
                if _is_leak(trace, found[0], special):
                    return excerpt(text, found.start())
    return None


def _is_leak(trace: View, name: str, special: SpecialTokens) -> bool:
    if name in special.tools and trace.may_call_tools:
        return False
    return not any(name in (message.content or "") for message in trace.messages)


def _misplaced(trace: View, special: SpecialTokens) -> Iterator[str]:
    """The names of the special ids that have no place where they stand, in order."""
    ids, last = trace.ids, max(trace.ids.rfind(b","), 0)
    may_end_thinking = trace.think_end is not None
    may_call = trace.may_call_tools and special.tool_section is None
    for at in _places(ids, special.needles):
        end = ids.find(b",", at + 1)  # -1 before the closing bracket
        name = special.by_digits.get(ids[at + 1 : end])
        if name is None or (at == last and not trace.is_cut):
            continue
        may_call = may_call or (name == special.tool_section and trace.may_call_tools)
        if name == special.think_end and may_end_thinking:
            may_end_thinking = False
        elif not ((name in special.tools and may_call) or (name == special.think_start and at == 0)):
            yield name


def _places(ids: bytes, needles: tuple[bytes, ...]) -> list[int]:
    """Where the comma or bracket stands before each id that may be special, in order; always the first."""
    places = [0]
    for needle in needles:
        at = ids.find(needle)
        while at >= 0:
            places.append(at)
            at = ids.find(needle, at + 1)
    return sorted(places)


def _gates(names: list[str]) -> tuple[str, ...]:
    shared = ("<|", "think>", "tool_call>")
    return tuple(sorted({next((part for part in shared if part in name), name) for name in names}))


def _needles(special: list[int]) -> tuple[bytes, ...]:
    """What to look for: long ids, which usually follow each other, by their first digits at once."""
    digits = [str(token).encode() for token in special]
    long = [token for token in digits if len(token) > PREFIX_DIGITS + 1]
    short = [
        b",%b%b" % (token, after)
        for token in digits
        if len(token) <= PREFIX_DIGITS + 1
        for after in (b",", b"]")
    ]
    return (*short, *sorted({b",%b" % token[:PREFIX_DIGITS] for token in long}))

"""What is stuck is found, and what is only regular is not."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from synthgen.screen.loops import degenerate, repetition
from tests.screen.screened import a_view

PROSE = (
    "The harbour lay quiet under a low sky. Two boats had come in before the storm, and their crews sat in "
    "the inn and argued about the price of salt. Nobody had seen the third boat since Tuesday, though the "
    "lighthouse keeper swore that he had heard its bell. When the rain stopped, a girl ran down to the pier "
    "with a lantern, because she knew the sound of that bell better than anyone else in the village did. "
)
STUCK = "I should check the result again before I answer. "


@pytest.mark.parametrize(
    "text",
    [
        PROSE + STUCK * 8,
        PROSE + (STUCK * 8)[:-17],
        STUCK * 20,
        PROSE + STUCK * 16 + PROSE,
        (PROSE[:300] + "\n\n") * 4,
        "no no no no no no no no no no no no no no no no no no",
        "好的，我来想一想这个问题。" * 12,
        "Chat History: " * 40,
        PROSE + "0, " * 400,
    ],
)
def test_a_passage_that_repeats_without_end_is_found(text: str) -> None:
    """At the end whole or cut, in the middle, as words, sentences or paragraphs; in thinking and response."""
    assert repetition(a_view(response=text))
    assert repetition(a_view(thinking=text))


TABLE = "| name | age | city |\n|------|-----|------|\n" + "".join(
    f"| {name} | {age} | Berlin |\n"
    for age, name in enumerate(
        ["Anna", "Ben", "Cora", "Dan", "Eva", "Finn", "Gina", "Hans", "Ida", "Jan", "Kim", "Leo"], 20
    )
)
EQUAL_ROWS = (
    "| step | done |\n|------|------|\n" + "|  0   |  0   |\n" * 30 + "\nAll are zero, as was to be shown."
)
JSON_LIST = msgspec.json.encode(
    [{"id": number, "type": "sensor", "unit": "celsius", "enabled": True, "tags": []} for number in range(40)]
).decode()
MATRIX = "[\n" + "  [0, 0, 0, 0, 0, 0, 0, 0, 0, 0],\n" * 12 + "]\n"
CODE = (
    "def draw():\n"
    + '    print("-" * 40)\n' * 6
    + "".join(f"    items.append(make_item({number}))\n    items[-1].show()\n" for number in range(20))
    + "    return items\n"
)
POEM = "\n".join(
    f"{verse}\nRow, row, row your boat, gently down the stream,\nMerrily, merrily, life is but a dream.\n"
    for verse in (
        "The morning sun is rising now,",
        "The noon is warm and slow,",
        "The evening brings us home,",
    )
)
ARITHMETIC = "".join(
    f"{n} * 37 = {n * 37}, so the sum so far is {n * (n + 1) // 2 * 37}.\n" for n in range(1, 60)
)
WAIT = "".join(
    f"Wait, let me check that again. If x is {n}, then x squared is {n * n}, which isn't {n * n + 3}. "
    for n in range(1, 30)
)
BANNER = "=" * 60 + "\nREPORT\n" + "=" * 60 + "\n" + "-" * 80 + "\n" + PROSE + "\n" + "." * 60 + " 12\n"


@pytest.mark.parametrize(
    "text",
    [
        PROSE,
        TABLE,
        EQUAL_ROWS,
        JSON_LIST,
        MATRIX,
        CODE,
        POEM,
        ARITHMETIC,
        WAIT,
        BANNER,
        "",
        "4",
        "no no no",
        "4 " * 9,
    ],
)
def test_what_is_regular_is_not_stuck(text: str) -> None:
    """Tables, lists, matrices, code, refrains, long calculations and second thoughts are left alone."""
    view = a_view(response=text, thinking=text)
    assert repetition(view) is None
    assert degenerate(view) is None


@pytest.mark.parametrize(
    "text",
    [
        "!" * 32,
        PROSE + "!" * 32,
        "?" * 40 + PROSE,
        PROSE[:150] + "！" * 40 + PROSE,
        "a" * 40,
        PROSE + "x" * 130,
        "21.5" + "8" * 200,
        "." * 64,
        PROSE + "-" * 600,
        "\u00a0" * 40,
        "🙂" * 32,
        "!?" * 100,
    ],
)
def test_one_character_over_and_over_is_degenerate(text: str) -> None:
    """`!` from 32 on; digits and letters from 128, rules from 512, and any from 32 if that is half of it."""
    assert degenerate(a_view(response=text)) is not None
    assert degenerate(a_view(thinking=text)) is not None


@pytest.mark.parametrize(
    "text",
    [
        "A googol is 1" + "0" * 100 + ".",
        PROSE + "The mask is 0x" + "F" * 64 + " in the end.",
        PROSE + "re.match('a*', '" + "a" * 80 + "')",
        PROSE + "-" * 120,
        "x" + " " * 100 + "|\n" + PROSE,
        "!" * 31,
        "0110" * 60 + " is the number in base 2, as it happens",
    ],
)
def test_long_runs_that_people_write_are_not(text: str) -> None:
    """A googol, masks, rules, alignment, and enthusiasm within bounds."""
    assert degenerate(a_view(response=text)) is None


def test_one_token_over_and_over_is_degenerate_without_any_text() -> None:
    """A server may strip what stands for it; the ids say it. Few of them, or ids that differ, are no run."""
    assert degenerate(a_view(output=(5, 6, *[7] * 140, 9), think_end=None, thinking="", response=""))
    assert degenerate(a_view(output=(5, 6, 7, *[77] * 40, 9), think_end=None))
    assert degenerate(a_view(output=(5, *[7] * 20, *range(100, 200)), think_end=None)) is None
    assert degenerate(a_view(output=(*[7, 77] * 100, 7), think_end=None)) is None


@given(st.text(st.sampled_from("abcdefg hij\n漢é🙂"), max_size=60), st.integers(30, 60), st.integers(0, 40))
def test_any_sentence_repeated_long_enough_is_found(passage: str, times: int, cut: int) -> None:
    """Whatever the passage is and wherever it is cut, as long as it has words."""
    sentence = "So it is, " + passage
    text = sentence * times
    view = a_view(response=PROSE + text[: len(text) - cut])
    assert repetition(view) or degenerate(view)


@given(st.integers(0, 2**32), st.integers(0, 900))
def test_random_words_are_sound(seed: int, count: int) -> None:
    """Words in random order are neither stuck nor degenerate."""
    text = " ".join(random.Random(seed).choices(PROSE.split(), k=count))
    assert repetition(a_view(response=text)) is None
    assert degenerate(a_view(response=text)) is None


SMOLLM2 = Path(__file__).parents[3] / "shared/data/smollm2/traces.jsonl.gz"


@pytest.mark.skipif(not SMOLLM2.exists(), reason="the 1,000 traces are not here")
def test_of_a_thousand_replies_of_a_small_model_the_stuck_ones_are_found() -> None:
    """Each was read: these are all that loop until the end for longer than a few lines, and no other."""
    found = set()
    with gzip.open(SMOLLM2) as lines:
        for row in map(msgspec.json.decode, lines):
            view = a_view(response=row["text"], output=row["token_ids"], think_end=None)
            if repetition(view) or degenerate(view):
                found.add(row["id"])
    assert found == {
        "gsm8k_test/489",
        "human_eval/54",
        "human_eval/80",
        "self_instruct_seed_tasks/15",
        "self_instruct_seed_tasks/47",
        "self_instruct_seed_tasks/68",
        "spec_bench/108",
    }

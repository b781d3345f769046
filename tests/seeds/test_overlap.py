"""Equal and near prompts, and those that must not be used."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synthgen.corpus.records import Message, SeedPrompt, seed_id
from synthgen.errors import ConfigError
from synthgen.seeds.overlap import Overlap, PromptDrop, bands_of

LONG = " ".join(f"word{i}" for i in range(60))
"""58 shingles of three words."""


def prompt(*contents: str, system: str | None = None) -> SeedPrompt:
    """A prompt of user messages with replies between them."""
    messages = [] if system is None else [Message(role="system", content=system)]
    for number, content in enumerate(contents):
        if number:
            messages.append(Message(role="assistant", content="reply"))
        messages.append(Message(role="user", content=content))
    whole = tuple(messages)
    return SeedPrompt(id=seed_id(whole), source="s", domain="d", messages=whole)


def test_without_a_threshold_only_equal_prompts_are_found() -> None:
    """The same words with another system prompt, or in capitals, are another prompt."""
    overlap = Overlap(None)
    asked = [prompt("Why?"), prompt("Why?"), prompt("Why?", system="s"), prompt("WHY?")]
    assert [overlap.found(one) for one in asked] == [None, "duplicate", None, None]


def test_to_ask_whether_a_conversation_is_excluded_takes_nothing() -> None:
    """Its first user message is compared, however it goes on; without a threshold only the same words."""
    near = prompt(LONG.replace("word30", "other"), "And then?").messages
    overlap = Overlap(0.7, [prompt(LONG)])
    assert overlap.excludes(prompt(LONG.upper(), "And then?").messages) is PromptDrop.EXCLUDED
    assert overlap.excludes(near) is PromptDrop.NEAR_EXCLUDED
    assert Overlap(None, [prompt(LONG)]).excludes(near) is None
    assert Overlap(0.7).excludes(near) is None
    assert [overlap.excludes(prompt("Why?").messages) for _ in range(2)] == [None, None]
    assert overlap.found(prompt("Why?")) is None


def test_of_two_near_prompts_the_first_stays() -> None:
    """One word of sixty is another: 55 of 61 shingles are the same, a Jaccard index of 0.90."""
    changed = LONG.replace("word30", "other")
    assert [Overlap(0.7).found(prompt(LONG)), Overlap(0.7).found(prompt(changed))] == [None, None]
    overlap = Overlap(0.7)
    assert [overlap.found(prompt(LONG)), overlap.found(prompt(changed))] == [None, PromptDrop.NEAR]
    strict = Overlap(1.0)
    assert [strict.found(prompt(LONG)), strict.found(prompt(changed))] == [None, None]


def test_case_blanks_and_system_prompt_make_no_difference_to_nearness() -> None:
    """As to what is excluded; the replies between user messages don't either."""
    overlap = Overlap(1.0)
    assert overlap.found(prompt("How are  you\ntoday?")) is None
    assert overlap.found(prompt("how ARE you today?", system="s")) is PromptDrop.NEAR
    assert overlap.found(prompt("how are", "you today?")) is PromptDrop.NEAR


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("2+2?", "2+3?"),
        ("Hi", "Ho"),
        ("What is 12 times 7?", "What is 13 times 8?"),
        ("你好", "再见"),
        ("今天天气怎么样？", "明天考试难不难？"),
        (LONG, " ".join(f"word{i}" for i in range(30, 90))),
    ],
)
def test_different_prompts_stay_however_short(one: str, other: str) -> None:
    """Signs and single characters of Chinese are words too."""
    overlap = Overlap(0.7)
    assert [overlap.found(prompt(one)), overlap.found(prompt(other))] == [None, None]
    assert overlap.found(prompt(one, system="s")) is PromptDrop.NEAR


def test_excluded_prompts_are_known_by_their_first_user_message() -> None:
    """Whatever comes before or after it; without a threshold near ones may be used."""
    near = LONG.replace("word0 ", "other ")
    for threshold, end in ((None, None), (0.8, PromptDrop.NEAR_EXCLUDED)):
        overlap = Overlap(threshold, [prompt(LONG, "and then?"), prompt("2+2?")])
        assert overlap.found(prompt(LONG.upper(), "something else", system="s")) is PromptDrop.EXCLUDED
        assert overlap.found(prompt("2+2?")) is PromptDrop.EXCLUDED
        assert overlap.found(prompt(near)) is end
        assert overlap.found(prompt(near, LONG + " once more")) is end
        assert overlap.found(prompt("2+3?")) is None


def test_a_prompt_that_was_dropped_drops_no_other() -> None:
    """Only what was taken counts."""
    overlap = Overlap(0.9, [prompt("a b c d")])
    dropped = prompt("a b c d")
    assert [overlap.found(dropped), overlap.found(dropped)] == [PromptDrop.EXCLUDED] * 2


def test_what_is_remembered_counts_as_taken() -> None:
    """Even when it would have been dropped."""
    overlap = Overlap(0.9, [prompt("a b c d")])
    overlap.remember(prompt("a b c d"))
    overlap.remember(prompt(LONG))
    assert overlap.found(prompt("a b c d")) is PromptDrop.EXACT
    assert overlap.found(prompt(LONG, system="s")) is PromptDrop.NEAR


def test_a_text_of_many_shingles_is_hashed_in_parts() -> None:
    """The signature is that of the whole: the end counts as much as the beginning."""
    words = [f"w{i}" for i in range(9000)]
    overlap = Overlap(0.9)
    assert overlap.found(prompt(" ".join(words))) is None
    assert overlap.found(prompt(" ".join([*words, "end"]))) is PromptDrop.NEAR
    assert overlap.found(prompt(" ".join(words[:4500]))) is None


@pytest.mark.parametrize(
    ("threshold", "bands"), [(0.01, (128, 1)), (0.5, (42, 3)), (0.8, (16, 8)), (0.9, (9, 14)), (1.0, (2, 64))]
)
def test_bands_find_nine_of_ten_pairs_at_the_threshold(threshold: float, bands: tuple[int, int]) -> None:
    """With the fewest bands, as each takes memory."""
    assert bands_of(threshold) == bands


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 40), st.integers(0, 1_000_000))
def test_a_pair_far_from_the_threshold_is_judged_by_its_jaccard_index(changed: int, start: int) -> None:
    """Of 100 words the last few are others: near above 0.7 + 0.16, not near below 0.7 - 0.16."""
    words = [f"w{start + i}" for i in range(100)]
    other = [*words[: 100 - changed], *(f"v{start + i}" for i in range(changed))]
    jaccard = (98 - changed) / (98 + changed)
    overlap = Overlap(0.7)
    assert overlap.found(prompt(" ".join(words))) is None
    found = overlap.found(prompt(" ".join(other), system="s"))
    if jaccard > 0.86:
        assert found is PromptDrop.NEAR
    elif jaccard < 0.54:
        assert found is None


def test_without_datasketch_the_extra_that_brings_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only where it is wanted."""
    monkeypatch.setitem(sys.modules, "datasketch", None)
    assert Overlap(None).found(prompt("a")) is None
    with pytest.raises(
        ConfigError, match=r"prompts\.near_duplicates needs datasketch, .*'synthgen\[train\]'"
    ):
        Overlap(0.8)

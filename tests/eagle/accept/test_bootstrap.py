"""Intervals over prompts."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle.accept.bootstrap import (
    Interval,
    PromptYield,
    acceptance_length,
    length_interval,
    percentile,
    ratio_interval,
)

YIELDS = st.lists(
    st.tuples(st.integers(1, 300), st.integers(1, 100)).map(lambda one: PromptYield(*one)),
    min_size=2,
    max_size=30,
)


def test_the_length_is_of_all_steps_not_a_mean_of_prompts() -> None:
    """A long reply weighs as much as it is long: (30 + 1) / (10 + 1)."""
    assert acceptance_length([PromptYield(30, 10), PromptYield(1, 1)]) == pytest.approx(31 / 11)
    with pytest.raises(ValueError, match="2 prompts have no verify step"):
        acceptance_length([PromptYield(0, 0), PromptYield(0, 0)])


def test_percentiles_lie_between_values_in_proportion() -> None:
    """Of 0, 10, 20: a quarter of the way is 5."""
    assert [percentile([0.0, 10.0, 20.0], part) for part in (0, 0.25, 0.5, 1)] == [0.0, 5.0, 10.0, 20.0]


def test_a_seed_gives_one_interval() -> None:
    """The same again; another seed gives another."""
    yields = [PromptYield(10 + 7 * i % 13, 5 + i % 3) for i in range(40)]
    first = length_interval(yields, seed=7)
    assert first == length_interval(yields, seed=7)
    assert first != length_interval(yields, seed=8)


def test_the_interval_is_as_wide_as_theory_says() -> None:
    """100 prompts of one step, half with 1 token, half with 3: 2 ± 1.96 · 1 / √100."""
    interval = length_interval([PromptYield(1 + 2 * (i % 2), 1) for i in range(100)], seed=1, resamples=4000)
    assert interval is not None
    assert interval.low == pytest.approx(1.804, abs=0.03)
    assert interval.high == pytest.approx(2.196, abs=0.03)


def test_one_prompt_has_no_interval() -> None:
    """Nor have prompts without a step."""
    assert length_interval([PromptYield(9, 3), PromptYield(0, 0)], seed=1) is None
    assert ratio_interval([PromptYield(9, 3)], [PromptYield(9, 3)], seed=1) is None


def test_a_ratio_is_drawn_in_pairs() -> None:
    """A draft that gives half as much again on every prompt does so in every draw, however prompts differ."""
    base = [PromptYield(10 * i, 10) for i in range(1, 9)]
    better = [PromptYield(15 * i, 10) for i in range(1, 9)]
    assert ratio_interval(better, base, seed=3) == Interval(low=1.5, high=1.5)
    with pytest.raises(ValueError, match="zip"):
        ratio_interval(better[1:], base, seed=3)


@settings(max_examples=30, deadline=None)
@given(YIELDS, st.integers(0, 1000))
def test_an_interval_lies_within_the_prompts(yields: list[PromptYield], seed: int) -> None:
    """No draw is longer than the longest prompt's length, or shorter than the shortest's."""
    interval = length_interval(yields, seed=seed, resamples=200)
    assert interval is not None
    lengths = [one.tokens / one.steps for one in yields]
    assert min(lengths) - 1e-9 <= interval.low <= interval.high <= max(lengths) + 1e-9

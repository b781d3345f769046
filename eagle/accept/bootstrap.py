"""Confidence intervals by bootstrap over prompts: of an acceptance length, and of the ratio of two.

What is drawn anew is whole prompts, since the steps of one reply resemble each other. The same seed gives the
same interval.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from synthgen.corpus.records import Record

RESAMPLES = 2000
LEVEL = 0.95


class PromptYield(NamedTuple):
    """What the verify steps of one prompt's reply gave."""

    tokens: int
    """Accepted ones, and the verifier's own one of each step."""
    steps: int


class Interval(Record, frozen=True, kw_only=True):
    """Where a figure lies with a confidence of 95 %."""

    low: float
    high: float


def acceptance_length(yields: Sequence[PromptYield]) -> float:
    """Mean tokens of a verify step over all prompts. Raises ValueError when there was no step."""
    steps = sum(one.steps for one in yields)
    if not steps:
        raise ValueError(f"{len(yields)} prompts have no verify step between them")
    return sum(one.tokens for one in yields) / steps


def length_interval(
    yields: Sequence[PromptYield], *, seed: int, resamples: int = RESAMPLES
) -> Interval | None:
    """Of the acceptance length; None with fewer than two prompts that have a step."""
    usable = [one for one in yields if one.steps]
    if len(usable) < 2:
        return None

    def drawn(places: list[int]) -> float:
        return acceptance_length([usable[place] for place in places])

    return _interval(drawn, len(usable), seed, resamples)


def ratio_interval(
    better: Sequence[PromptYield], base: Sequence[PromptYield], *, seed: int, resamples: int = RESAMPLES
) -> Interval | None:
    """Of the ratio of two drafts' acceptance lengths on the same prompts, which are drawn in pairs.

    None with fewer than two prompts on which both have a step. Raises ValueError when one has more prompts.
    """
    pairs = [(a, b) for a, b in zip(better, base, strict=True) if a.steps and b.steps]
    if len(pairs) < 2:
        return None

    def drawn(places: list[int]) -> float:
        taken = [pairs[place] for place in places]
        return acceptance_length([a for a, _ in taken]) / acceptance_length([b for _, b in taken])

    return _interval(drawn, len(pairs), seed, resamples)


def _interval(figure: Callable[[list[int]], float], prompts: int, seed: int, resamples: int) -> Interval:
    """The middle 95 % of a figure over prompts drawn with repetition."""
    chance = random.Random(seed)
    figures = sorted(figure(chance.choices(range(prompts), k=prompts)) for _ in range(resamples))
    outside = (1 - LEVEL) / 2
    return Interval(low=percentile(figures, outside), high=percentile(figures, 1 - outside))


def percentile(ordered: Sequence[float], part: float) -> float:
    """The value below which `part` of rising values lie, between two of them in proportion."""
    place = part * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])

"""Numbers of a corpus as counts in bins, and their quantiles."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

BINS = 16
"""About as many as a histogram has."""
SKEWED = 8.0
"""A largest value this many times the median makes the bins powers of two."""


class Histogram(msgspec.Struct, frozen=True, kw_only=True):
    """`counts[i]` values are in [edges[i], edges[i + 1])."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.edges) != len(self.counts) + 1:
            raise ValueError(f"{len(self.counts)} bins have {len(self.edges)} edges, not one more")


def histogram(values: Sequence[int]) -> Histogram | None:
    """Values from 0 up in bins of one width, or in powers of two when they are skewed; None without any."""
    if not values:
        return None
    if max(values) > SKEWED * max(quantile(values, 0.5), 1):
        return _doubling(values)
    width = max(1, int(nice_step(max(values) + 1 - min(values), BINS)))
    first, last = min(values) // width, max(values) // width
    counts = [0] * (last - first + 1)
    for value in values:
        counts[value // width - first] += 1
    return Histogram(edges=tuple(float(i * width) for i in range(first, last + 2)), counts=tuple(counts))


def _doubling(values: Sequence[int]) -> Histogram:
    """Bins [0, 1), [1, 2), [2, 4), [4, 8) and so on, from the first that holds a value."""
    counts = [0] * (max(values).bit_length() + 1)
    for value in values:
        counts[value.bit_length()] += 1
    first = next(i for i, count in enumerate(counts) if count)
    edges = [0.0, *(float(1 << i) for i in range(len(counts)))]
    return Histogram(edges=tuple(edges[first:]), counts=tuple(counts[first:]))


def shares(parts: Sequence[int], wholes: Sequence[int], bins: int = 10) -> tuple[int, ...]:
    """How many of parts/wholes are in each of `bins` equal bins of [0, 1]; 1 itself is in the last."""
    counts = [0] * bins
    for part, whole in zip(parts, wholes, strict=True):
        counts[min(part * bins // whole, bins - 1)] += 1
    return tuple(counts)


def quantile(values: Sequence[int], share: float) -> int:
    """The smallest value that at least `share` of the values don't exceed (nearest rank)."""
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]


def nice_step(span: float, count: int) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that covers `span` in `count` steps."""
    least = span / count
    power = 10.0 ** math.floor(math.log10(least))
    return next(times * power for times in (1, 2, 5, 10) if times * power >= least * (1 - 1e-9))

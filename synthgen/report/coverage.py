"""How much of the text a draft vocabulary of a given size covers."""

from __future__ import annotations

import itertools
from collections import Counter

import msgspec

POINTS = 40
"""About as many as the curve has, evenly spaced on a logarithmic axis."""


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """The share of the output tokens that the most frequent ids cover, by how many of them there are."""

    traces: int
    """That were counted, drawn by chance from those of the corpus."""
    tokens: int
    """Their output tokens."""
    distinct: int
    """Their different ids."""
    size: int
    """Of the run's draft vocabulary."""
    share: float
    """What it covers."""
    points: tuple[tuple[int, float], ...]
    """Number of ids, share covered."""


def coverage(counts: Counter[int], traces: int, size: int) -> Coverage | None:
    """The curve for ids that occur so often; None without any."""
    if not counts:
        return None
    sums = list(itertools.accumulate(sorted(counts.values(), reverse=True)))
    distinct, tokens = len(sums), sums[-1]
    sizes = sorted({round(distinct ** (i / POINTS)) for i in range(POINTS + 1)})
    return Coverage(
        traces=traces,
        tokens=tokens,
        distinct=distinct,
        size=size,
        share=sums[min(size, distinct) - 1] / tokens,
        points=tuple((n, sums[n - 1] / tokens) for n in sizes),
    )

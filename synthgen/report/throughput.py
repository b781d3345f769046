"""How fast a server was over time, from the start and the duration of each reply."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

BINS = 60
"""At most as many time bins."""
STEPS_S = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)
"""Widths of a bin; what they can't cover is cut into equal bins."""

SLIVER = 0.01
"""A last bin that is less of a bin than this belongs to the one before."""


class Throughput(msgspec.Struct, frozen=True, kw_only=True):
    """Means over time bins of `bin_s` seconds, the first from `started_at` (seconds since the epoch)."""

    started_at: float
    bin_s: float
    tokens_per_s: tuple[float, ...]
    in_flight: tuple[float, ...]
    """Requests that were being answered."""


def throughput(
    started_at: Sequence[float], seconds: Sequence[float], tokens: Sequence[int]
) -> Throughput | None:
    """Spread each reply's tokens evenly over its duration; None without replies."""
    if not started_at:
        return None
    origin = min(started_at)
    span = max(max(start + lasted for start, lasted in zip(started_at, seconds, strict=True)) - origin, 0.1)
    bin_s = next((float(step) for step in STEPS_S if step * BINS >= span), span / BINS)
    rate, flight = _Bins(bin_s, span), _Bins(bin_s, span)
    for start, lasted, count in zip(started_at, seconds, tokens, strict=True):
        lasted = max(lasted, 1e-3)
        rate.add(start - origin, lasted, count / lasted)
        flight.add(start - origin, lasted, 1.0)
    return Throughput(started_at=origin, bin_s=bin_s, tokens_per_s=rate.means(), in_flight=flight.means())


class _Bins:
    """Heights over time, summed up: a reply costs the same however many bins it covers."""

    def __init__(self, width: float, span: float) -> None:
        self._width, self._span = width, span
        count = max(1, math.ceil(span / width - SLIVER))
        self._areas = [0.0] * count
        """Of what covers a bin in part, in height × seconds."""
        self._rises = [0.0] * (count + 1)
        """Change of what covers a whole bin, from the bin before."""

    def add(self, start: float, lasted: float, height: float) -> None:
        """Lay `height` over the time from `start`."""
        last_bin, end = len(self._areas) - 1, start + lasted
        first, last = min(int(start / self._width), last_bin), min(int(end / self._width), last_bin)
        if first == last:
            self._areas[first] += height * lasted
            return
        self._areas[first] += height * ((first + 1) * self._width - start)
        self._areas[last] += height * (end - last * self._width)
        self._rises[first + 1] += height
        self._rises[last] -= height

    def means(self) -> tuple[float, ...]:
        """The mean height of each bin; the last one ends where the span does."""
        means, whole = [], 0.0
        for i, (area, rise) in enumerate(zip(self._areas, self._rises, strict=False)):
            whole += rise
            width = self._width if i + 1 < len(self._areas) else self._span - i * self._width
            means.append(round(max(whole + area / width, 0.0), 3))
        return tuple(means)

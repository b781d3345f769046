"""How many requests may be in flight: a number, or found from what the server says about itself.

`next_limit` is the whole policy, a pure function of what was seen since the last look:

- the server refuses (429, 503) or preempts: cut to three quarters, then hold for a while;
- requests wait in its queue, in two looks running: it is full, so go to the most it was seen to run and
  a little more, then hold (one look may fall on a prefill, or between two of the engine's steps);
- its KV cache is nearly full: stay;
- it has room and we are at our limit: twice as much, and half as much again once it was full before.

Without the server's metrics the slope of the throughput takes their place: a raise that brings less
than 3 % more tokens a second is taken back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from synthgen.client.control import ServerLoad

START = 16
FLOOR = 1
FIRST_GROWTH = 2.0
GROWTH = 1.5
CUT = 0.75
KV_FULL = 0.9
HOLD_LOOKS = 6
SLOPE = 1.03
FORGET = 0.99
"""What is kept at each look of the most that the server was seen to run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What was seen since the last look at one server."""

    in_flight: int
    refused: int
    """Replies 429 and 503."""
    tokens_per_s: float
    load: ServerLoad | None
    """None when the server shows no metrics."""
    preempted: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The limit now, and what the policy has to remember."""

    value: int
    ceiling: int
    hold: int = 0
    """Looks to wait before growing again."""
    growth: float = FIRST_GROWTH
    most_running: float = 0.0
    """The most that the server was seen to run while requests waited."""
    queued: bool = False
    """Whether requests waited at the last look."""
    best_tokens_per_s: float = 0.0
    grown_from: int | None = None
    """The limit before the last raise, while its effect isn't known; without metrics only."""

    def __post_init__(self) -> None:
        if not FLOOR <= self.value <= self.ceiling:
            raise ValueError(f"limit {self.value} is not between {FLOOR} and {self.ceiling}")


def first_limit(ceiling: int) -> Limit:
    """Where `auto` starts: low."""
    return Limit(value=min(START, ceiling), ceiling=ceiling)


def next_limit(limit: Limit, look: Look) -> Limit:
    """The limit after one more look."""
    if look.refused or look.preempted > 0:
        cut = max(FLOOR, int(min(limit.value, max(look.in_flight, FLOOR)) * CUT))
        return replace(limit, value=cut, hold=HOLD_LOOKS, growth=GROWTH, grown_from=None)
    if look.load is None:
        return _by_slope(limit, look)
    if look.load.waiting > 0:
        return _queued(limit, look.load)
    limit = replace(limit, queued=False)
    if limit.hold:
        return replace(limit, hold=limit.hold - 1)
    if look.load.kv_usage > KV_FULL or look.in_flight < limit.value:
        return limit
    return replace(limit, value=_raised(limit))


def _queued(limit: Limit, load: ServerLoad) -> Limit:
    most = max(load.running, limit.most_running * FORGET)
    if not limit.queued:
        return replace(limit, queued=True, most_running=most)
    full = max(FLOOR, min(limit.value, _a_little_over(most)))
    return replace(limit, value=full, most_running=most, growth=GROWTH, hold=HOLD_LOOKS)


def _by_slope(limit: Limit, look: Look) -> Limit:
    if limit.hold:
        return replace(limit, hold=limit.hold - 1)
    if look.in_flight < limit.value or not look.tokens_per_s:
        return limit
    gained = look.tokens_per_s > limit.best_tokens_per_s * SLOPE
    if limit.grown_from is not None and not gained:
        return replace(limit, value=limit.grown_from, grown_from=None, hold=HOLD_LOOKS)
    return replace(
        limit,
        value=_raised(limit),
        grown_from=limit.value,
        best_tokens_per_s=max(limit.best_tokens_per_s, look.tokens_per_s),
    )


def _raised(limit: Limit) -> int:
    return min(limit.ceiling, max(limit.value + 1, int(limit.value * limit.growth)))


def _a_little_over(running: float) -> int:
    """A few requests in the server's queue keep it full between two of our sends."""
    return int(running) + max(1, int(running) // 16)

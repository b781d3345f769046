"""How many requests may be in flight: a number, or found from what the server says about itself.

`next_limit` is the whole policy, a pure function of what was seen since the last look:

- the server refuses (429, 503) or preempts: cut to three quarters and hold, until the cut has had its effect;
  from then on grow to where that was only one by one;
- requests wait in its queue, in two looks running: it is full, so go to the most it was seen to run and
  a little more, then hold (one look may fall on a prefill, or between two of the engine's steps);
- its KV cache is nearly full: stay;
- it has room and we are at our limit: twice as much, and half as much again once it was full before.

Without the server's metrics the slope of the throughput takes their place: once as many replies have come as
fill the server twice, a raise that brought less than 3 % more tokens a second is taken back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from synthgen.client.metrics import ServerLoad

START = 16
FLOOR = 1
FIRST_GROWTH = 2.0
GROWTH = 1.5
CUT = 0.75
KV_FULL = 0.9
HOLD_LOOKS = 6
SLOPE = 1.03
TURNOVERS = 2
"""Replies that a throughput is measured over, in fillings of the server."""
FORGET = 0.99
"""What is kept at each look of the most that the server was seen to run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What was seen since the last look at one server."""

    in_flight: int
    refused: int
    """Replies 429 and 503."""
    seconds: float
    replies: int
    tokens: int
    load: ServerLoad | None
    """None when the server shows no metrics."""
    preempted: float = 0.0


@dataclass(frozen=True, slots=True)
class Window:
    """What came since the limit was changed."""

    seconds: float = 0.0
    replies: int = 0
    tokens: int = 0

    def and_then(self, look: Look) -> Window:
        """The window with one more look."""
        return Window(self.seconds + look.seconds, self.replies + look.replies, self.tokens + look.tokens)

    @property
    def tokens_per_s(self) -> float:
        """Its throughput."""
        return self.tokens / self.seconds if self.seconds else 0.0


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
    refused_at: int | None = None
    """What was in flight when the server last refused."""
    has_metrics: bool = False
    """Whether the server ever showed them: one look without is then a busy server."""
    window: Window = Window()
    """Without metrics only, as the two below."""
    tokens_per_s_before: float = 0.0
    """Before the last raise."""
    grown_from: int | None = None
    """The limit before the last raise, while its effect isn't known."""

    def __post_init__(self) -> None:
        if not FLOOR <= self.value <= self.ceiling:
            raise ValueError(f"limit {self.value} is not between {FLOOR} and {self.ceiling}")


def first_limit(ceiling: int) -> Limit:
    """Where `auto` starts: low."""
    return Limit(value=min(START, ceiling), ceiling=ceiling)


def next_limit(limit: Limit, look: Look) -> Limit:
    """The limit after one more look."""
    if look.refused or look.preempted > 0:
        return _refused(limit, look)
    if look.load is None:
        return limit if limit.has_metrics else _by_slope(limit, look)
    limit = replace(limit, has_metrics=True)
    if look.load.waiting > 0:
        return _queued(limit, look.load)
    limit = replace(limit, queued=False)
    if limit.hold:
        return replace(limit, hold=limit.hold - 1)
    if look.load.kv_usage > KV_FULL or look.in_flight != limit.value:
        return limit
    return replace(limit, value=_raised(limit))


def _refused(limit: Limit, look: Look) -> Limit:
    if limit.hold or look.in_flight > limit.value:  # the last cut isn't through yet
        return replace(limit, hold=max(0, limit.hold - 1))
    at = min(limit.value, max(look.in_flight, FLOOR))
    cut = max(FLOOR, int(at * CUT))
    return replace(
        limit,
        value=cut,
        hold=HOLD_LOOKS,
        growth=GROWTH,
        refused_at=at,
        grown_from=None,
        window=Window(),
    )


def _queued(limit: Limit, load: ServerLoad) -> Limit:
    most = max(load.running, limit.most_running * FORGET)
    if not limit.queued:
        return replace(limit, queued=True, most_running=most)
    full = max(FLOOR, min(limit.value, _a_little_over(most)))
    return replace(limit, value=full, most_running=most, growth=GROWTH, hold=HOLD_LOOKS)


def _by_slope(limit: Limit, look: Look) -> Limit:
    if limit.hold:
        return replace(limit, hold=limit.hold - 1, window=Window())
    window = limit.window.and_then(look)
    if window.replies < TURNOVERS * limit.value:
        return replace(limit, window=window)
    rate = window.tokens_per_s
    if limit.grown_from is not None and rate <= limit.tokens_per_s_before * SLOPE:
        return replace(
            limit, value=limit.grown_from, grown_from=None, growth=GROWTH, hold=HOLD_LOOKS, window=Window()
        )
    raised = _raised(limit)
    return replace(limit, value=raised, grown_from=limit.value, tokens_per_s_before=rate, window=Window())


def _raised(limit: Limit) -> int:
    raised = max(limit.value + 1, int(limit.value * limit.growth))
    if limit.refused_at is not None and raised >= limit.refused_at:
        raised = limit.value + 1
    return min(limit.ceiling, raised)


def _a_little_over(running: float) -> int:
    """A few requests in the server's queue keep it full between two of our sends."""
    return int(running) + max(1, int(running) // 16)

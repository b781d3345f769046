"""The policy of automatic concurrency, as the pure function that it is."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from synthgen.client.metrics import ServerLoad
from synthgen.generate.limiter import HOLD_LOOKS, Limit, Look, first_limit, next_limit


def load(running: float = 0, waiting: float = 0, kv_usage: float = 0.1) -> ServerLoad:
    """A server's metrics."""
    return ServerLoad(running=running, waiting=waiting, kv_usage=kv_usage, preemptions=0)


def look(
    in_flight: int,
    found: ServerLoad | None = None,
    *,
    refused: int = 0,
    replies: int = 0,
    tokens: int = 0,
    preempted: float = 0.0,
) -> Look:
    """What was seen within half a second."""
    return Look(
        in_flight=in_flight,
        refused=refused,
        seconds=0.5,
        replies=replies,
        tokens=tokens,
        load=found,
        preempted=preempted,
    )


def test_it_starts_low_and_never_over_its_ceiling() -> None:
    """Sixteen, or the ceiling when that is less."""
    assert first_limit(256).value == 16
    assert first_limit(4).value == 4


def test_it_doubles_while_the_server_has_room() -> None:
    """16, 32 and then the ceiling of 60, as long as the limit is reached and nothing waits."""
    limit, seen = first_limit(60), []
    for _ in range(3):
        limit = next_limit(limit, look(limit.value, load(running=limit.value)))
        seen.append(limit.value)
    assert seen == [32, 60, 60]


def test_it_does_not_grow_when_it_is_not_reached_or_the_cache_is_full() -> None:
    """Fewer requests than allowed say nothing; a KV cache over 90 % says stop."""
    limit = first_limit(60)
    assert next_limit(limit, look(15, load(running=15))).value == 16
    assert next_limit(limit, look(16, load(running=16, kv_usage=0.95))).value == 16


def test_a_queue_at_the_server_sets_the_limit_to_what_it_runs_and_a_little_more() -> None:
    """64 run and 64 wait of 128, twice: go to 68, which keeps it full, and hold."""
    full = look(128, load(running=64, waiting=64))
    once = next_limit(Limit(value=128, ceiling=256), full)
    assert once.value == 128
    twice = next_limit(once, full)
    assert (twice.value, twice.hold) == (68, HOLD_LOOKS)


def test_a_queue_that_is_gone_at_the_next_look_was_a_prefill() -> None:
    """Sixteen long prompts wait for their turn; then they run, and the limit grows."""
    limit = next_limit(first_limit(256), look(16, load(running=3, waiting=13)))
    assert next_limit(limit, look(16, load(running=16))).value == 32


def test_a_look_between_two_steps_does_not_lower_the_limit() -> None:
    """Full at 64, it is seen with 50 running, which are about to be joined by those that wait."""
    limit = Limit(value=128, ceiling=256)
    for running in (64, 64, 50, 50):
        limit = next_limit(limit, look(68, load(running=running, waiting=4)))
    assert limit.value == 65


def test_refusals_and_preemptions_cut_to_three_quarters_and_hold() -> None:
    """What is cut is what was in flight, if that was less than the limit."""
    for seen in (look(40, load(40), refused=1), look(40, load(40), preempted=2)):
        cut = next_limit(Limit(value=60, ceiling=128), seen)
        assert (cut.value, cut.hold) == (30, HOLD_LOOKS)


def test_a_cut_is_not_followed_by_another_before_it_is_through() -> None:
    """200 in flight take minutes to come down to 150; preempted all the while, the limit stays there."""
    limit = Limit(value=200, ceiling=256)
    for _ in range(40):
        limit = next_limit(limit, look(180, load(180), preempted=1))
    assert limit.value == 135
    for _ in range(HOLD_LOOKS + 10):
        limit = next_limit(limit, look(160, load(160)))
    assert limit.value == 135


def test_near_the_number_that_was_refused_it_grows_one_by_one() -> None:
    """Refused at 40: from 30 to 31 and so on, and not to 45 at once."""
    limit = next_limit(Limit(value=40, ceiling=128), look(40, load(40), refused=3))
    for _ in range(HOLD_LOOKS + 3):
        limit = next_limit(limit, look(limit.value, load(limit.value)))
    assert limit.value == 33


def test_one_look_without_metrics_is_a_busy_server() -> None:
    """It showed some before: nothing is concluded from the throughput."""
    limit = next_limit(first_limit(256), look(16, load(16)))
    assert next_limit(limit, look(32, replies=100, tokens=10_000)).value == limit.value == 32


def test_it_grows_again_after_holding() -> None:
    """Six looks of holding, then half as much again."""
    limit = Limit(value=16, ceiling=64, hold=HOLD_LOOKS, growth=1.5)
    for _ in range(HOLD_LOOKS):
        limit = next_limit(limit, look(16, load(running=16)))
        assert limit.value == 16
    assert next_limit(limit, look(16, load(running=16))).value == 24


def test_without_metrics_the_throughput_decides() -> None:
    """A raise that brings more is kept and followed by another; one that brings nothing is taken back."""
    limit = next_limit(first_limit(128), look(16, replies=32, tokens=100))
    assert limit.value == 32
    limit = next_limit(limit, look(32, replies=63, tokens=70))
    assert limit.value == 32  # not filled twice yet
    limit = next_limit(limit, look(32, replies=1, tokens=200))
    assert limit.value == 64
    limit = next_limit(limit, look(64, replies=128, tokens=136))
    assert (limit.value, limit.hold) == (32, HOLD_LOOKS)


def test_without_metrics_long_replies_of_any_length_do_not_stop_the_growth() -> None:
    """On a server without bounds, replies of 30 to 90 s: the noise of half a second says nothing."""
    rng, limit, running, now = random.Random(3), first_limit(256), list[float](), 0.0
    while now < 1800:
        now += 0.5
        ended = [end for end in running if end <= now]
        running = [end for end in running if end > now]
        running += [now + rng.uniform(30, 90) for _ in range(limit.value - len(running))]
        limit = next_limit(limit, look(limit.value, replies=len(ended), tokens=1000 * len(ended)))
    assert limit.value == 256


@given(
    st.integers(1, 500),
    st.lists(
        st.tuples(
            st.integers(0, 600), st.integers(0, 3), st.integers(0, 1000), st.floats(0, 5),
            st.none() | st.tuples(st.floats(0, 600), st.floats(0, 600), st.floats(0, 1)),
        ),
        max_size=40,
    ),
)  # fmt: skip
def test_whatever_is_seen_it_stays_between_one_and_the_ceiling(
    ceiling: int, seen: list[tuple[int, int, int, float, tuple[float, float, float] | None]]
) -> None:
    """The invariant of `Limit` holds after any sequence of looks."""
    limit = first_limit(ceiling)
    for in_flight, refused, replies, preempted, metrics in seen:
        found = load(*metrics) if metrics else None
        came = look(in_flight, found, refused=refused, replies=replies, tokens=replies, preempted=preempted)
        limit = next_limit(limit, came)
        assert 1 <= limit.value <= ceiling

"""Rounds of servers side by side."""

from __future__ import annotations

import pytest

from eagle.accept.report import AtConcurrency, Speed
from eagle.accept.servers import BASE, DRAFTED
from eagle.accept.speed import Round, compare

REPLIES = ((1, 2, 3, 4), (5, 6))
OTHER = ((1, 2, 3, 4), (5, 7))


def taken(seconds: float, replies: tuple[tuple[int, ...], ...] = REPLIES) -> Round:
    """A round whose second request took as long as the first."""
    return Round(
        replies=replies, request_seconds=(seconds / 2, seconds / 2), seconds=seconds, first_token_s=0.1
    )


def test_ratios_are_within_a_round() -> None:
    """Six tokens: 3 s and 2 s in a slow round, 1.5 s and 0.5 s in a fast one."""
    rounds = {1: {BASE: [taken(3.0), taken(1.5)], DRAFTED: [taken(2.0), taken(0.5)]}}
    assert compare(rounds) == (
        AtConcurrency(
            concurrency=1,
            drafted=Speed(tokens_per_s=7.5, seconds_mean=0.625, seconds_p95=1.0, first_token_s=0.1),
            undrafted=Speed(tokens_per_s=3.0, seconds_mean=1.125, seconds_p95=1.5, first_token_s=0.1),
            speedup=2.25,
            speedup_by_round=(1.5, 3.0),
            same_replies=4,
            compared_replies=4,
            same_undrafted=2,
            compared_undrafted=2,
        ),
    )


def test_batch_effects_are_the_undrafted_servers_own() -> None:
    """At 4 at a time its replies differ from its own at 1, as the drafted server's do."""
    rounds = {
        1: {BASE: [taken(1.0)], DRAFTED: [taken(1.0)]},
        4: {BASE: [taken(1.0, OTHER)], DRAFTED: [taken(1.0, OTHER)]},
    }
    single, batched = compare(rounds)
    assert (single.same_replies, single.compared_replies, single.compared_undrafted) == (2, 2, 0)
    assert (batched.same_replies, batched.compared_replies) == (1, 2)
    assert (batched.same_undrafted, batched.compared_undrafted) == (1, 2)


def test_without_the_undrafted_server_there_is_no_ratio() -> None:
    """Its own speed is there."""
    (single,) = compare({1: {DRAFTED: [taken(2.0)]}})
    assert (single.undrafted, single.speedup, single.compared_replies) == (None, None, 0)
    assert single.drafted.tokens_per_s == pytest.approx(3.0)

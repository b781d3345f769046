"""Shares: quotas, and draws by hash that need neither order nor memory."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synthgen.mix.shares import RANK_BITS, Supply, is_heldout, quotas, rank_of


def test_the_scarcest_part_gives_all_it_has() -> None:
    """At 70/30, 300 tokens of the second part allow 700 of the first."""
    assert quotas({"a": 0.7, "b": 0.3}, {"a": 10_000, "b": 300}) == {"a": pytest.approx(700), "b": 300}
    assert quotas({"a": 0.7, "b": 0.3}, {"a": 70, "b": 300}) == {"a": 70, "b": pytest.approx(30)}


def test_a_rank_is_fixed_by_seed_and_name() -> None:
    """Written out, so that another release can't reorder a dataset unseen."""
    assert rank_of(7, "abc-0") == 11_793_760_898_847_942_131
    assert rank_of(8, "abc-0") != rank_of(7, "abc-0")


def test_about_the_fraction_of_prompts_is_held_out() -> None:
    """None at 0, whatever the hash."""
    held = sum(is_heldout(7, str(number), 0.1) for number in range(10_000))
    assert 900 < held < 1_100
    assert not any(is_heldout(7, str(number), 0.0) for number in range(1_000))


ROWS = st.lists(st.integers(1, 500), min_size=1, max_size=300)


@given(ROWS, st.floats(0, 1), st.integers(0, 99))
def test_a_draw_gives_its_quota_to_within_half_its_largest_row(
    weights: list[int], part: float, seed: int
) -> None:
    """Whole rows come no nearer than that."""
    supply, quota = Supply(), part * sum(weights)
    ranked = [(rank_of(seed, str(number)), weight) for number, weight in enumerate(weights)]
    for rank, weight in ranked:
        supply.add(rank, weight)
    draw = supply.draw(quota)
    given_ = sum(weight for rank, weight in ranked if draw.takes(rank, weight))
    assert abs(given_ - quota) <= max(weights) / 2 + 1e-6
    assert (supply.rows, supply.weight) == (len(weights), sum(weights))


@given(ROWS, st.integers(0, 99))
def test_everything_is_drawn_when_the_quota_is_all(weights: list[int], seed: int) -> None:
    """Also when the quota is a hair off in the last digit of a float."""
    for quota in (sum(weights), sum(weights) / 3 * 3, 0.3 * (sum(weights) / 0.3)):
        supply = Supply()
        ranks = [rank_of(seed, str(number)) for number in range(len(weights))]
        for rank, weight in zip(ranks, weights, strict=True):
            supply.add(rank, weight)
        draw = supply.draw(quota)
        assert all(draw.takes(rank, weight) for rank, weight in zip(ranks, weights, strict=True))


def test_a_larger_draw_holds_the_smaller_whatever_the_order() -> None:
    """So a corpus that grows, or is mixed otherwise, keeps what its states were extracted for."""
    ranks = [rank_of(1, str(number)) for number in range(1000)]
    supply = Supply()
    for rank in ranks:
        supply.add(rank, 10)
    small, large = supply.draw(2_000), supply.draw(5_000)
    taken = {rank for rank in ranks if small.takes(rank, 10)}
    random.Random(0).shuffle(ranks)
    more = {rank for rank in ranks if large.takes(rank, 10)}
    assert len(taken) == 200
    assert len(more) == 500
    assert taken < more
    assert max(more) < 1 << RANK_BITS

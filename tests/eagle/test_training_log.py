"""Metrics as numbers that processes add up."""

from __future__ import annotations

from eagle.training_log import StepMetrics, no_metrics, packed, summed, unpacked

KINDS = ("thinking", "response", "tool")
FOUND = StepMetrics(
    loss=1.5,
    grad_norm=2.0,
    losses=[1.0, 2.0],
    hits=[3, 1],
    targets=[5, 4],
    prefix_hits=[3, 1],
    prefix_slots=[5, 3],
    first_hits_by_kind={"thinking": [1, 2], "tool": [2, 3]},
)


def test_packed_metrics_come_back() -> None:
    """Seventeen numbers; a kind that wasn't seen stays away."""
    numbers = packed(FOUND, KINDS)
    assert numbers == [1.5, 1.0, 2.0, 3, 1, 5, 4, 3, 1, 5, 3, 1, 2, 0, 0, 2, 3]
    assert unpacked(numbers, KINDS, 2, 2.0) == FOUND


def test_sums_of_packed_metrics_are_metrics_of_the_sum() -> None:
    """As if the batches of two processes had been one's."""
    twice = [2 * number for number in packed(FOUND, KINDS)]
    assert unpacked(twice, KINDS, 2, 2.0) == summed([FOUND, FOUND], 2.0)


def test_no_batch_adds_nothing() -> None:
    """Whether it is alone or beside others."""
    assert summed([no_metrics(2), FOUND], 2.0) == FOUND
    assert summed([no_metrics(2)], 0.0) == no_metrics(2)

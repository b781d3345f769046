"""Metrics as numbers that processes add up."""

from __future__ import annotations

from torch import nn

from eagle.checkpoint import Progress
from eagle.training_log import LogLine, StepMetrics, figures_of, unpacked

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


def test_an_updates_numbers_are_its_metrics() -> None:
    """Seventeen numbers; a kind that wasn't seen stays away."""
    numbers = [1.5, 1.0, 2.0, 3, 1, 5, 4, 3, 1, 5, 3, 1, 2, 0, 0, 2, 3]
    assert unpacked(numbers, KINDS, 2, 2.0) == FOUND


def test_first_and_last_loss_are_means_over_steps() -> None:
    """Of 90 steps the last nine: one of loss 9 and eight of loss 1.5, (9 + 8 · 1.5) / 9; the first alike."""

    def line(step: int, steps: int, loss: float) -> LogLine:
        return LogLine(
            step=step,
            steps=steps,
            epoch=0,
            loss=loss,
            losses=[],
            accuracy=[],
            accuracy_by_kind={},
            acceptance_predicted=1.0,
            grad_norm=1.0,
            rate=1.0,
            targets=1,
            targets_per_s=1.0,
        )

    lines = [line(1, 1, 12.0), line(9, 8, 3.0), line(81, 72, 2.0), line(89, 8, 1.5), line(90, 1, 9.0)]
    progress = Progress(step=90, epoch=1, index=0, seconds=1.0, targets=5)
    figures = figures_of(lines, progress, nn.Linear(1, 1))  # type: ignore[arg-type]
    assert figures["loss_first"] == 4.0
    assert figures["loss_last"] == (9 + 8 * 1.5) / 9

"""The curves of a draft's training: loss and predicted acceptance length, on what it learns and held out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from synthgen.corpus.config import RunConfig
from synthgen.corpus.journal import read_journal
from synthgen.report.charts import Curve, curves, even_axis, height_axis
from synthgen.report.page import charts, note

POINTS = 150
"""Of a curve, at most: a longer log is shown in means."""
P = TypeVar("P", bound=msgspec.Struct)


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A place of both curves."""

    step: float
    loss: float
    length: float
    """Predicted acceptance length."""


class TrainingFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What the logs say; `heldout` is empty without validations, and `unvalidated` says why."""

    learned: tuple[Point, ...]
    heldout: tuple[Point, ...]
    unvalidated: str


class _Line(msgspec.Struct):
    step: int
    loss: float
    acceptance_predicted: float


class _Whole(msgspec.Struct):
    length: float


class _Validation(msgspec.Struct):
    step: int
    loss: float
    whole: _Whole


def training_figures(config: RunConfig) -> TrainingFigures | None:
    """The curves of a run, None before its first line. Raises ArtifactError for a log that is damaged."""
    lines = (
        Point(step=line.step, loss=line.loss, length=line.acceptance_predicted)
        for line in _read(config.training_log_path, _Line)
    )
    validated = (
        Point(step=one.step, loss=one.loss, length=one.whole.length)
        for one in _read(config.validation_log_path, _Validation)
    )
    learned, heldout = thinned(lines), tuple(validated)
    if not learned:
        return None
    return TrainingFigures(
        learned=learned, heldout=heldout, unvalidated="" if heldout else _unvalidated(config)
    )


def _unvalidated(config: RunConfig) -> str:
    """Why there is no validation."""
    if config.train.stream:
        return "Not validated: a training whose states are streamed isn't."
    samples = config.validation_path
    if not samples.exists() or samples.stat().st_size == 0:
        return "Not validated: no samples were held out (mix.heldout_fraction)."
    return f"Not validated yet: that comes every {config.train.validate_steps:,} updates and after the last."


def _read(path: Path, kind: type[P]) -> Iterable[P]:
    return read_journal(path, kind, "log line")


def thinned(points: Iterable[Point]) -> tuple[Point, ...]:
    """At most POINTS of them, each the mean of as many that follow one another."""
    every = list(points)
    size = -(-len(every) // POINTS) or 1
    return tuple(_mean(every[at : at + size]) for at in range(0, len(every), size))


def _mean(points: Sequence[Point]) -> Point:
    sums = [sum(column) for column in zip(*map(msgspec.structs.astuple, points), strict=True)]
    step, loss, length = (total / len(points) for total in sums)
    return Point(step=step, loss=loss, length=length)


def training(figures: TrainingFigures | None) -> str:
    """The section of a report."""
    if figures is None:
        return ""
    every = (*figures.learned, *figures.heldout)
    x = even_axis("updates", 0.0, max(point.step for point in every))
    drawn = []
    for title, label, name in (
        ("Training loss", "loss", "loss"),
        ("Predicted acceptance length", "tokens", "length"),
    ):
        y = height_axis(label, max(getattr(point, name) for point in every))
        shown = [
            Curve(name=said, kind=kind, points=[(point.step, getattr(point, name)) for point in points])
            for said, kind, points in (
                ("training", "plain", figures.learned),
                ("held out", "response", figures.heldout),
            )
            if points
        ]
        drawn.append((title, curves(title, shown, x, y)))
    return charts(drawn) + note(_said(figures))


def _said(figures: TrainingFigures) -> str:
    if not figures.heldout:
        return figures.unvalidated
    best = max(figures.heldout, key=lambda point: point.length)
    return (
        f"Best of {len(figures.heldout)} validations: acceptance length {best.length:.2f} after "
        f"{best.step:,.0f} updates. The acceptance may fall while the loss still does."
    )

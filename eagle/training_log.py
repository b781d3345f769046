"""What training says about itself: the metrics of a step, the lines of the log, the figures at the end."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch

from eagle.checkpoint import Progress
from eagle.draft import Draft
from eagle.loss import predicted_acceptance
from synthgen.corpus.files import written_aside
from synthgen.corpus.journal import read_journal
from synthgen.corpus.records import Record

END_SHARE = 0.1
"""The first and the last tenth of the steps give the figures of the start and of the end."""


class StepMetrics(Record, frozen=True, kw_only=True):
    """What one update saw. Lists have one entry a training-time-test step."""

    loss: float
    grad_norm: float
    losses: list[float]
    hits: list[int]
    targets: list[int]
    """Supervised positions, those outside the draft vocabulary included: they count as misses."""
    prefix_hits: list[int]
    """Slots whose first k steps all hit, for k = 1.."""
    prefix_slots: list[int]
    first_hits_by_kind: dict[str, list[int]]
    """Hits and targets of step 0, by what the predicted token is."""


class Line(Record, frozen=True, kw_only=True):
    """A line of a log."""

    step: int
    """Updates that were done when it was written."""


L = TypeVar("L", bound=Line)


class LogLine(Line, frozen=True, kw_only=True):
    """One line of the training log: the steps since the line before."""

    steps: int
    epoch: int
    loss: float
    losses: list[float]
    accuracy: list[float]
    """Share of targets at which the draft's most likely token is the verifier's, by step."""
    accuracy_by_kind: dict[str, float]
    acceptance_predicted: float
    grad_norm: float
    rate: float
    targets: int
    targets_per_s: float


def unpacked(numbers: Sequence[float], kinds: Sequence[str], steps: int, grad_norm: float) -> StepMetrics:
    """The metrics of an update from its numbers: the loss and each step's, hits, targets, prefix hits and
    prefix slots of each step, and hits and targets of each kind."""
    rest = iter(numbers[1 + steps :])
    hits, targets, prefix_hits, prefix_slots = (_counts(rest, steps) for _ in range(4))
    by_kind = {kind: _counts(rest, 2) for kind in kinds}
    return StepMetrics(
        loss=numbers[0],
        grad_norm=grad_norm,
        losses=list(numbers[1 : 1 + steps]),
        hits=hits,
        targets=targets,
        prefix_hits=prefix_hits,
        prefix_slots=prefix_slots,
        first_hits_by_kind={kind: found for kind, found in by_kind.items() if found[1]},
    )


def _counts(numbers: Iterator[float], many: int) -> list[int]:
    return [round(number) for number in itertools.islice(numbers, many)]


def _sums_by_kind(parts: list[StepMetrics], kinds: Iterable[str]) -> dict[str, list[int]]:
    return {k: _sums([part.first_hits_by_kind.get(k, [0, 0]) for part in parts]) for k in sorted(kinds)}


@dataclass(slots=True)
class Window:
    """The steps since the last log line."""

    steps: list[StepMetrics] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)


def read_log(path: Path, kind: type[L], step: int) -> list[L]:
    """A log's lines up to `step`: the steps after it are done again."""
    return [line for line in read_journal(path, kind) if line.step <= step]


def cut_log(path: Path, kind: type[L], step: int) -> None:
    """Drop a log's lines after `step`."""
    kept = read_log(path, kind, step)
    with written_aside(path) as aside:
        aside.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in kept))


def log_line(window: Window, step: int, epoch: int, rate: float) -> LogLine:
    """The mean of the steps in `window`, which ends with update number `step`."""
    steps = window.steps
    seconds = time.monotonic() - window.started
    targets = _sums([m.targets for m in steps])
    kinds = {kind for m in steps for kind in m.first_hits_by_kind}
    by_kind = _sums_by_kind(steps, kinds)
    return LogLine(
        step=step,
        steps=len(steps),
        epoch=epoch,
        loss=_mean([m.loss for m in steps]),
        losses=[_mean(column) for column in zip(*(m.losses for m in steps), strict=True)],
        accuracy=[h / max(t, 1) for h, t in zip(_sums([m.hits for m in steps]), targets, strict=True)],
        accuracy_by_kind={kind: hits / count for kind, (hits, count) in by_kind.items()},
        acceptance_predicted=predicted_acceptance(
            torch.tensor(_sums([m.prefix_hits for m in steps])),
            torch.tensor(_sums([m.prefix_slots for m in steps])),
        ),
        grad_norm=_mean([m.grad_norm for m in steps]),
        rate=rate,
        targets=targets[0],
        targets_per_s=targets[0] / seconds,
    )


def note_of(line: LogLine) -> str:
    """What stands behind the progress bar."""
    hits = "/".join(f"{share:.0%}".removesuffix("%") for share in line.accuracy)
    return (
        f"loss {line.loss:.3f}, hits {hits} %, predicted acceptance {line.acceptance_predicted:.2f}, "
        f"{line.targets_per_s:,.0f} targets/s"
    )


def figures_of(lines: list[LogLine], progress: Progress, draft: Draft) -> dict[str, Any]:
    """What the manifest states: means over the first and the last tenth of the steps."""
    first = _ending_within(lines, progress.step * END_SHARE)
    last = _ending_within(lines[::-1], progress.step * END_SHARE)
    targets = sum(line.targets for line in last)

    def over_targets(values: list[float]) -> float:
        return sum(v * line.targets for v, line in zip(values, last, strict=True)) / targets

    return {
        "steps": progress.step,
        "loss_first": _loss_over(first),
        "loss_last": _loss_over(last),
        "first_and_last_are_over": f"{END_SHARE:.0%} of the steps each",
        "acceptance_predicted": over_targets([line.acceptance_predicted for line in last]),
        "accuracy": [over_targets(list(c)) for c in zip(*(line.accuracy for line in last), strict=True)],
        "seconds": round(progress.seconds, 3),
        "supervised_tokens": progress.targets,
        "supervised_tokens_per_s": progress.targets / progress.seconds,
        "parameters": sum(p.numel() for p in draft.parameters()),
        "parameters_trained": sum(p.numel() for p in draft.parameters() if p.requires_grad),
    }


def _loss_over(lines: list[LogLine]) -> float:
    """The mean over all steps of some lines."""
    return sum(line.loss * line.steps for line in lines) / sum(line.steps for line in lines)


def _ending_within(lines: list[LogLine], steps: float) -> list[LogLine]:
    """The lines from the front that cover at least `steps` steps."""
    covered = list(itertools.accumulate(line.steps for line in lines))
    return lines[: 1 + sum(count < steps for count in covered[:-1])]


def _sums(rows: list[list[int]]) -> list[int]:
    return [sum(column) for column in zip(*rows, strict=True)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)

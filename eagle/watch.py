"""What goes on beside the updates: log, validations, checkpoints, the bar, trackers, and the early end.

Which checkpoint is best and how long ago that was is read from the validation log, cut to where a run goes
on from: so a run that was stopped ends as one that wasn't.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from eagle.checkpoint import Progress, save_checkpoint
from eagle.optim import rate_at
from eagle.step import Trainee
from eagle.trackers import Tracker, trackers_of, training_values, validation_values
from eagle.training_log import Line, LogLine, StepMetrics, Window, cut_log, log_line, note_of, read_log
from eagle.validate import HeldOut, Validation, best_of, since_best, validate
from synthgen.corpus.config import RunConfig
from synthgen.corpus.console import Bar, bar, console


class Watch:
    """Looks on while a draft is trained; made by `watching`."""

    def __init__(
        self,
        config: RunConfig,
        trainee: Trainee,
        heldout: HeldOut | None,
        shown: Bar,
        trackers: Sequence[Tracker],
        validations: list[Validation],
        done: int,
        steps: int,
    ) -> None:
        self._config, self._trainee, self._heldout = config, trainee, heldout
        self._shown, self._trackers = shown, trackers
        self._done, self._steps = done, steps
        self._began = time.monotonic()
        self._window = Window()
        self.validations = validations
        self.saved_step = done
        """The step of the newest checkpoint."""

    @property
    def ended_early(self) -> bool:
        """Whether the last `train.patience` validations brought nothing."""
        patience = self._config.train.patience
        return patience is not None and since_best(self.validations) >= patience

    def after_update(self, progress: Progress, metrics: StepMetrics, epoch: int, *, stopping: bool) -> float:
        """Do what is due after an update; return the seconds that a validation took, 0 without one."""
        train, step = self._config.train, progress.step
        self._window.steps.append(metrics)
        last = step == self._steps
        validates = self._heldout is not None and (last or step % train.validate_steps == 0)
        saves = last or step % train.checkpoint_steps == 0
        logs = validates or saves or stopping or step % train.log_steps == 0
        if logs:
            self._log(step, epoch)
        if self._heldout is not None and validates:
            self._validate(self._heldout, step)
            saves = saves or self.ended_early or since_best(self.validations) == 0
        if saves or stopping:
            self._save(progress)
        if logs:
            self._window = Window()  # what validation and checkpoint took is no part of the next steps' time
        self._shown.advance(1)
        return self.validations[-1].seconds if validates else 0.0

    def keep(self, progress: Progress) -> None:
        """Put away what was learned since the last checkpoint, before an error ends the training."""
        if self._window.steps:
            self._log(progress.step, progress.epoch - (progress.index == 0))
        if progress.step > self.saved_step:
            self._save(progress)
        kept = "with a checkpoint" if progress.step else "before there was anything to keep"
        console.print(f"train: ended after step {progress.step} of {self._steps}, {kept}")

    def _log(self, step: int, epoch: int) -> None:
        rate = rate_at(step - 1, self._steps, self._config.train.warmup_fraction)
        line = log_line(self._window, step, epoch, rate)
        self._append(self._config.training_log_path, line)
        for tracker in self._trackers:
            tracker.log(step, training_values(line))
        left_s = (time.monotonic() - self._began) / (step - self._done) * (self._steps - step)
        left = "" if console.is_terminal else f", {datetime.timedelta(seconds=round(left_s))} left"
        self._shown.advance(0, note_of(line) + left)

    def _validate(self, heldout: HeldOut, step: int) -> None:
        found = validate(self._trainee, heldout, step)
        self._append(self._config.validation_log_path, found)
        self.validations.append(found)
        for tracker in self._trackers:
            tracker.log(step, validation_values(found))
        if self.ended_early:
            console.print(
                f"train: ended after step {step} of {self._steps}: the last {self._config.train.patience} "
                f"validations brought no new best acceptance length",
                soft_wrap=True,
            )

    def _save(self, progress: Progress) -> None:
        best, trainee = best_of(self.validations), self._trainee
        save_checkpoint(
            self._config.checkpoints_path,
            trainee.objective.draft,
            trainee.optimizers,
            progress,
            keep=self._config.train.keep_checkpoints,
            best=None if best is None else best.step,
            writes=trainee.world.is_first,
        )
        self.saved_step = progress.step

    def _append(self, path: Path, line: Line) -> None:
        """Write a line and see it to the disk: no checkpoint is newer than what was measured of it."""
        if self._trainee.world.is_first:
            with path.open("ab") as file:
                file.write(msgspec.json.encode(line) + b"\n")
                file.flush()
                os.fsync(file.fileno())


@contextlib.contextmanager
def watching(
    config: RunConfig, trainee: Trainee, heldout: HeldOut | None, progress: Progress, steps: int
) -> Iterator[Watch]:
    """What looks on from `progress` to the end of `steps` updates. The first process writes the logs; all of
    them validate, so that all know when it ends."""
    done, world = progress.step, trainee.world
    validations = read_log(config.validation_log_path, Validation, done)
    world.wait()  # until all have read
    if world.is_first:
        cut_log(config.training_log_path, LogLine, done)
        cut_log(config.validation_log_path, Validation, done)
    tracked = trackers_of(config, done) if world.is_first else contextlib.nullcontext(())
    with bar("train", steps) as shown, tracked as trackers:
        shown.advance(done)
        yield Watch(config, trainee, heldout, shown, trackers, validations, done, steps)


def validation_figures(validations: Sequence[Validation], steps: int) -> dict[str, Any] | None:
    """What the manifest states of the validations: the best, the last, whether the last ended it early."""
    best = best_of(validations)
    if best is None:
        return None
    return {
        "count": len(validations),
        "ended_early": validations[-1].step < steps,
        "best": best,
        "last": validations[-1],
    }

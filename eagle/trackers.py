"""Where the log's numbers go besides the log, for people to look at: TensorBoard, trackio, wandb.

None of them needs a network or an account: TensorBoard and trackio write files, and wandb too unless
WANDB_MODE says otherwise. What is read back by this program is the log alone, so a tracker that fails is
dropped and training goes on.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sqlite3
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from eagle.training_log import LogLine
from eagle.validate import Validation
from synthgen.corpus.config import RunConfig
from synthgen.corpus.console import console
from synthgen.corpus.manifest import digest
from synthgen.errors import ConfigError

MODULES = {"tensorboard": "torch.utils.tensorboard", "trackio": "trackio", "wandb": "wandb"}
PROJECT = "synthgen"


class Tracker(Protocol):
    """Takes numbers by name, step by step."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """The values after `step` updates."""

    def close(self) -> None:
        """Bring everything to where it belongs."""


class TensorBoard:
    """Event files. What an earlier process wrote after `step`, its readers pass over."""

    def __init__(self, directory: Path, step: int) -> None:
        self._writer = _module("tensorboard").SummaryWriter(str(directory), purge_step=step + 1)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class Trackio:
    """trackio's local database: what goes on after a stop is a run of its own, in the same group."""

    def __init__(self, name: str, step: int) -> None:
        run = f"{name}-from-{step}" if step else name
        with contextlib.redirect_stdout(sys.stderr):  # which is for results
            self._run = _module("trackio").init(project=PROJECT, name=run, group=name, embed=False)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        with contextlib.redirect_stdout(sys.stderr):
            self._run.finish()


class Wandb:
    """A run of Weights & Biases below `directory`; the same run goes on after a stop."""

    def __init__(self, name: str, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._run = _module("wandb").init(
            project=PROJECT,
            name=name,
            id=digest(name),
            resume="allow",
            dir=str(directory),
            mode=os.environ.get("WANDB_MODE", "offline"),
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


class Dropped:
    """A tracker that is left out from its first failure on, which one line tells of."""

    def __init__(self, name: str, made: Callable[[], Tracker]) -> None:
        self._name = name
        self._failures: tuple[type[Exception], ...] = (OSError, sqlite3.Error, *_own_errors(name))
        self._tracker: Tracker | None = None
        with self._dropping():
            self._tracker = made()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        with self._dropping():
            if self._tracker is not None:
                self._tracker.log(step, values)

    def close(self) -> None:
        with self._dropping():
            if self._tracker is not None:
                self._tracker.close()

    @contextlib.contextmanager
    def _dropping(self) -> Iterator[None]:
        try:
            yield
        except self._failures as error:
            self._tracker = None
            console.print(f"train.trackers: going on without {self._name}: {error!r}", markup=False)


def _own_errors(name: str) -> tuple[type[Exception], ...]:
    """The base of what the package raises where it has one, as wandb."""
    error = getattr(_module(name), "Error", None)
    return () if error is None else (error,)


def require_trackers(config: RunConfig) -> None:
    """Raise ConfigError when a package that `train.trackers` asks for isn't there."""
    for name in config.train.trackers:
        _module(name)


@contextlib.contextmanager
def trackers_of(config: RunConfig, step: int) -> Iterator[tuple[Tracker, ...]]:
    """The configured trackers of a run of which `step` updates are done, closed with the block."""
    made: list[Tracker] = []
    with contextlib.ExitStack() as stack:
        for name in config.train.trackers:
            made.append(Dropped(name, functools.partial(_tracker, name, config, step)))
            stack.callback(made[-1].close)
        yield tuple(made)


def _tracker(name: str, config: RunConfig, step: int) -> Tracker:
    if name == "tensorboard":
        return TensorBoard(config.tensorboard_path, step)
    run = str(config.run_path.absolute()).strip("/").replace("/", "-")
    return Trackio(run, step) if name == "trackio" else Wandb(run, config.tensorboard_path.parent)


def training_values(line: LogLine) -> dict[str, float]:
    """A line of the training log as scalars."""
    return {
        "train/loss": line.loss,
        "train/acceptance_length": line.acceptance_predicted,
        **{f"train/accuracy_{at}": share for at, share in enumerate(line.accuracy, 1)},
        **{f"train/first_accuracy_{kind}": share for kind, share in line.accuracy_by_kind.items()},
        "train/grad_norm": line.grad_norm,
        "train/rate": line.rate,
        "train/targets_per_s": line.targets_per_s,
    }


def validation_values(validation: Validation) -> dict[str, float]:
    """A validation as scalars."""
    return {
        "heldout/loss": validation.loss,
        "heldout/acceptance_length": validation.whole.length,
        **{f"heldout/accuracy_{at}": share for at, share in enumerate(validation.whole.accuracy, 1)},
        **{f"heldout_by_domain/{name}": group.length for name, group in validation.by_domain.items()},
        **{f"heldout_by_span/{name}": group.length for name, group in validation.by_kind.items()},
    }


def _module(name: str) -> Any:
    try:
        return importlib.import_module(MODULES[name])
    except ImportError as error:
        wanted = "'synthgen[train]'" if name == "tensorboard" else name
        raise ConfigError(
            f"train.trackers has {name}, whose package isn't installed ({error}): pip install {wanted}, or "
            f"take it out of train.trackers"
        ) from error

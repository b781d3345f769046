"""Where the log's numbers go: TensorBoard's own reader reads them back."""

from __future__ import annotations

import shutil
import sqlite3
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
    EventAccumulator,
)

from eagle.checkpoint import checkpoints
from eagle.train import train
from synthgen.corpus.config import RunConfig
from synthgen.corpus.manifest import read_manifest, write_manifest
from synthgen.errors import ConfigError
from tests.eagle.test_train import log_of
from tests.eagle.test_watch import validations
from tests.eagle.tiny import tiny_config, write_run


def scalars(config: RunConfig, name: str) -> list[tuple[int, float]]:
    """Steps and values of one curve."""
    events = EventAccumulator(str(config.tensorboard_path))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def same_as(found: list[tuple[int, float]], expected: dict[int, float]) -> None:
    """Each step once, in order; event files hold float32."""
    assert [step for step, _ in found] == list(expected)
    assert [value for _, value in found] == pytest.approx(list(expected.values()))


def test_event_files_hold_the_logs_numbers_once(tmp_path: Path) -> None:
    """Also after a run was killed behind its fourth step and did the others again."""
    config = tiny_config(tmp_path, train__trackers="[tensorboard]", train__validate_steps="4")
    write_run(config, heldout=3)
    for killed in (False, True):
        if killed:
            manifest = read_manifest(config.checkpoints_path)
            assert manifest is not None
            write_manifest(config.checkpoints_path, msgspec.structs.replace(manifest, complete=False))
            shutil.rmtree(checkpoints(config.checkpoints_path)[-1])
        train(config)
        same_as(scalars(config, "train/loss"), {line.step: line.loss for line in log_of(config)})
        lengths = {one.step: one.whole.length for one in validations(config)}
        assert list(lengths) == [4, 8]
        same_as(scalars(config, "heldout/acceptance_length"), lengths)
        by_span = {one.step: one.by_kind["thinking"].length for one in validations(config)}
        same_as(scalars(config, "heldout_by_span/thinking"), by_span)
        assert [step for step, _ in scalars(config, "train/accuracy_3")] == [2, 4, 6, 8]


class FakeRun:
    """A run of a tracking package that remembers what it is told, and fails where it is told to."""

    def __init__(self, opened: dict[str, Any], failure: Exception | None) -> None:
        self.opened, self.failure = opened, failure
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.finished = 0

    def log(self, values: dict[str, float], step: int) -> None:
        if self.failure is not None:
            raise self.failure
        self.logged.append((step, values))

    def finish(self) -> None:
        self.finished += 1


class FakePackage(ModuleType):
    """What training uses of wandb and trackio."""

    class Error(Exception):
        """wandb's own."""

    def __init__(self, name: str, failure: Exception | None = None) -> None:
        super().__init__(name)
        self.failure = failure
        self.runs: list[FakeRun] = []

    def init(self, **opened: Any) -> FakeRun:
        self.runs.append(FakeRun(opened, self.failure))
        return self.runs[-1]


def test_wandb_and_trackio_are_told_all_and_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a kill behind step 4 wandb's run is the same again, trackio's another of its group."""
    monkeypatch.delenv("WANDB_MODE", raising=False)
    packages = {name: FakePackage(name) for name in ("wandb", "trackio")}
    for name, package in packages.items():
        monkeypatch.setitem(sys.modules, name, package)
    config = tiny_config(tmp_path, train__trackers="[wandb, trackio]", train__validate_steps="4")
    write_run(config, heldout=3)
    train(config)
    manifest = read_manifest(config.checkpoints_path)
    assert manifest is not None
    write_manifest(config.checkpoints_path, msgspec.structs.replace(manifest, complete=False))
    shutil.rmtree(checkpoints(config.checkpoints_path)[-1])
    train(config)
    losses = {line.step: line.loss for line in log_of(config)}
    for package in packages.values():
        first, second = package.runs
        assert [step for step, _ in first.logged] == [2, 4, 4, 6, 8, 8]
        assert [step for step, _ in second.logged] == [6, 8, 8]
        found = {step: values["train/loss"] for step, values in first.logged if "train/loss" in values}
        assert found == losses
        assert [first.finished, second.finished] == [1, 1]
    name = str(config.run_path).strip("/").replace("/", "-")
    (first, second), (begun, again) = packages["wandb"].runs, packages["trackio"].runs
    assert first.opened == second.opened
    assert (first.opened["name"], first.opened["resume"], first.opened["mode"]) == (name, "allow", "offline")
    assert (begun.opened["name"], again.opened["name"]) == (name, f"{name}-from-4")
    assert begun.opened["group"] == again.opened["group"] == name


@pytest.mark.parametrize(
    ("name", "failure"),
    [
        ("wandb", FakePackage.Error("no such entity")),
        ("trackio", sqlite3.OperationalError("database is locked")),
        ("trackio", OSError(28, "No space left on device")),
    ],
)
def test_a_tracker_that_fails_is_dropped(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    failure: Exception,
) -> None:
    """It is said once, and the other one goes on to the end."""
    monkeypatch.setitem(sys.modules, name, FakePackage(name, failure))
    config = tiny_config(tmp_path, train__trackers=f"[{name}, tensorboard]")
    write_run(config, samples=4)
    assert train(config) is not None
    said = capsys.readouterr().err.replace("\n", " ")
    assert said.count(f"train.trackers: going on without {name}: ") == 1
    assert str(failure.args[-1]) in said
    same_as(scalars(config, "train/loss"), {line.step: line.loss for line in log_of(config)})


@pytest.mark.parametrize(
    ("name", "module", "wanted"),
    [
        ("tensorboard", "torch.utils.tensorboard", r"pip install 'synthgen\[train\]'"),
        ("trackio", "trackio", "pip install trackio"),
        ("wandb", "wandb", "pip install wandb"),
    ],
)
def test_a_package_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, module: str, wanted: str
) -> None:
    """Before anything is read, with what to install."""
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf"train\.trackers has {name}, .*{wanted}, or take it out"):
        train(tiny_config(tmp_path, train__trackers=f"[{name}]"))


def test_a_tracker_that_is_unknown_or_there_twice_is_refused(tmp_path: Path) -> None:
    """When the config is read."""
    with pytest.raises(ConfigError, match="mlflow"):
        tiny_config(tmp_path, train__trackers="[mlflow]")
    with pytest.raises(ConfigError, match=r"trackers \['wandb', 'wandb'\] has one twice"):
        tiny_config(tmp_path, train__trackers="[wandb, wandb]")

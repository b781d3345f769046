"""What goes on beside the updates: validations, the best checkpoint, the early end."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest
import torch
from typer.testing import CliRunner

from eagle.__main__ import app
from eagle.checkpoint import Progress, checkpoints
from eagle.export import export
from eagle.train import train
from eagle.validate import Validation
from eagle.watch import watching
from synthgen.corpus.config import RunConfig
from synthgen.corpus.journal import read_journal
from synthgen.corpus.manifest import Manifest, read_manifest, write_manifest
from synthgen.corpus.settings import save_config
from synthgen.errors import ArtifactError
from tests.eagle.test_train import final_weights, trainee_of
from tests.eagle.tiny import tiny_config, write_run

STANDING = {
    "train__learning_rate": "1.0e-9",
    "train__adamw_learning_rate": "1.0e-9",
    "train__validate_steps": "1",
    "train__checkpoint_steps": "100",
    "train__keep_checkpoints": "1",
    "train__patience": "2",
}
"""A draft that doesn't change: its first validation is the best, two later training ends."""


def ended(config: RunConfig) -> Manifest:
    """What training says at its end."""
    manifest = train(config)
    assert manifest is not None
    return manifest


def kept(config: RunConfig) -> list[str]:
    return [path.name for path in checkpoints(config.checkpoints_path)]


def validations(config: RunConfig) -> list[Validation]:
    """The validation log without its times."""
    lines = read_journal(config.validation_log_path, Validation)
    return [msgspec.structs.replace(line, seconds=0.0) for line in lines]


def reopened(config: RunConfig) -> None:
    """Make a training as one that was killed before its manifest was written."""
    manifest = read_manifest(config.checkpoints_path)
    assert manifest is not None
    write_manifest(config.checkpoints_path, msgspec.structs.replace(manifest, complete=False, figures={}))


def test_a_run_is_validated_every_so_often_and_at_its_end(tmp_path: Path) -> None:
    """Every 3 of 8 steps and after the last; the manifest has the best and the last."""
    config = tiny_config(tmp_path)
    write_run(config, heldout=3)
    figures = ended(config).figures["validation"]
    found = validations(config)
    assert [one.step for one in found] == [3, 6, 8]
    best = max(found, key=lambda one: one.whole.length)
    assert (figures["count"], figures["ended_early"]) == (3, False)
    assert figures["best"]["step"] == best.step
    assert figures["best"]["whole"]["length"] == best.whole.length
    assert figures["last"]["step"] == 8
    assert f"step-{best.step:08d}" in kept(config)


def test_how_often_is_validated_changes_nothing(tmp_path: Path) -> None:
    """A run that validates after each update ends with the weights of one that does so only at its end."""
    often = tiny_config(tmp_path / "a", train__validate_steps="1")
    once = tiny_config(tmp_path / "b", train__validate_steps="100")
    for config in (often, once):
        write_run(config, heldout=3)
        train(config)
    expected, found = final_weights(often), final_weights(once)
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_without_a_new_best_training_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """After step 3 of 8; the best, step 1, is kept beside the newest, and is what is exported."""
    config = tiny_config(tmp_path, **STANDING)
    write_run(config, heldout=3)
    manifest = ended(config)
    assert (manifest.figures["steps"], manifest.figures["validation"]["ended_early"]) == (3, True)
    assert kept(config) == ["step-00000001", "step-00000003"]
    assert "ended after step 3 of 8: the last 2 validations brought no new best" in capsys.readouterr().err
    assert train(config) == manifest
    assert export(config).figures["step"] == 1
    assert "export: step-00000001, the best of 3 validated" in capsys.readouterr().err


def test_the_early_end_is_remembered(tmp_path: Path) -> None:
    """Killed before the manifest it trains no more; killed before the last checkpoint it ends there again."""
    config = tiny_config(tmp_path, **STANDING)
    write_run(config, heldout=3)
    train(config)
    before, weights = validations(config), final_weights(config)
    reopened(config)
    assert ended(config).figures["steps"] == 3
    reopened(config)
    shutil.rmtree(checkpoints(config.checkpoints_path)[-1])
    assert ended(config).figures["steps"] == 3
    assert validations(config) == before
    assert kept(config) == ["step-00000001", "step-00000003"]
    assert all(torch.equal(weights[name], found) for name, found in final_weights(config).items())


def test_without_patience_it_goes_on(tmp_path: Path) -> None:
    """All 8 steps, though none was better than the first."""
    config = tiny_config(tmp_path, **STANDING | {"train__patience": "null"})
    write_run(config, heldout=3)
    figures = ended(config).figures
    assert (figures["steps"], figures["validation"]["best"]["step"]) == (8, 1)
    assert kept(config) == ["step-00000001", "step-00000008"]


def test_a_best_checkpoint_that_is_gone_is_not_replaced_by_another(tmp_path: Path) -> None:
    """The error names it."""
    config = tiny_config(tmp_path, **STANDING)
    write_run(config, heldout=3)
    train(config)
    shutil.rmtree(config.checkpoints_path / "step-00000001")
    with pytest.raises(ArtifactError, match=r"step-00000001 is missing, the best of 3 checkpoints that were"):
        export(config)


def test_an_early_error_has_no_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before the first update there is nothing to save, and none is spoken of."""
    config = tiny_config(tmp_path)
    write_run(config)
    config.checkpoints_path.mkdir(parents=True)
    start = Progress(step=0, epoch=0, index=0, seconds=0.0, targets=0)
    with watching(config, trainee_of(config), None, start, 8) as watch:
        watch.keep(start)
    assert "train: ended after step 0 of 8, before there was anything to keep" in capsys.readouterr().err
    assert kept(config) == []


def test_the_command_ends_with_a_table(tmp_path: Path) -> None:
    """By span and by domain, on stdout, within 100 columns however many steps there are."""
    config = tiny_config(tmp_path, train__ttt_steps="7", train__epochs="1")
    write_run(config, heldout=3)
    save_config(config, tmp_path / "run.yaml")
    done = CliRunner().invoke(app, ["train", str(tmp_path / "run.yaml")])
    assert done.exit_code == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert done.stdout.startswith("held out, after step 4: loss ")
    assert ["drafted", "in", "slots", "length", *(f"tok {at}" for at in range(1, 8))] == [
        *lines[2][:4],
        *(" ".join(pair) for pair in zip(lines[2][4::2], lines[2][5::2], strict=True)),
    ]
    assert {tuple(line[:2]) for line in lines[3:] if len(line) == 10} == {
        ("all", "27"),
        ("thinking", "12"),
        ("response", "15"),
        ("count", "27"),
    }
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert "0:00:00 left" in done.stderr

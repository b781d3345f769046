"""`eagle compare` refuses what can't be compared before anything starts."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from eagle.__main__ import app
from eagle.accept.servers import DRAFTED, Server
from eagle.checkpoint import checkpoints
from eagle.compare.arms import arms_of
from eagle.compare.live import measure_on
from eagle.compare.report import Comparison
from eagle.compare.stage import given_drafts
from eagle.compare.trained import trained
from eagle.draft_files import read_draft
from synthgen.client.control import Control
from synthgen.corpus.lock import claimed
from synthgen.corpus.settings import save_config
from synthgen.errors import ArtifactError, ConfigError
from tests.eagle.accept.drafting_server import DraftingServer
from tests.eagle.compare.two_parts import two_parts, write_two_parts
from tests.eagle.tiny import tiny_config, write_run, write_verifier
from tests.scripted_server import MODEL, ScriptedServer


def test_a_mix_of_one_part_is_refused(tmp_path: Path) -> None:
    """With what to do, code 2, and nothing written."""
    config = tiny_config(tmp_path)
    write_run(config)
    path = tmp_path / "run.yaml"
    save_config(config, path)
    done = CliRunner().invoke(app, ["compare", str(path)])
    assert done.exit_code == 2
    assert "mix.parts has one part only, 'native'" in done.stderr
    assert not (config.run_path / "compare").exists()


def test_a_draft_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """Before an arm is written, let alone trained."""
    config = two_parts(tmp_path)
    write_two_parts(config)
    path = tmp_path / "run.yaml"
    save_config(config, path)
    done = CliRunner().invoke(app, ["compare", str(path), "--draft", f"old={tmp_path / 'nowhere'}"])
    assert done.exit_code == 2
    assert "nowhere: no such directory or file. A draft is a local directory" in done.stderr
    assert not (config.run_path / "compare").exists()


def test_names_of_drafts_are_checked(tmp_path: Path) -> None:
    """NAME=PATH, no arm's name, none twice, and nothing that leads out of the directory."""
    config = two_parts(tmp_path)
    write_verifier(tmp_path / "verifier")
    draft = write_draft(tmp_path / "draft", 32)
    for asked in (["draft"], ["x="], ["../x=draft"], [f"a b={draft}"]):
        with pytest.raises(ConfigError, match="write it as NAME=PATH"):
            given_drafts(config, asked)
    for asked in ([f"native={draft}"], [f"mix={draft}"], [f"x={draft}", f"x={draft}"]):
        with pytest.raises(ConfigError, match="there is an arm or a draft"):
            given_drafts(config, asked)
    assert given_drafts(config, [f"old={draft}"]) == {"old": draft}


def test_a_draft_of_another_verifier_is_refused(tmp_path: Path) -> None:
    """Its tensors say so; what is no draft for vLLM is refused, too."""
    config = two_parts(tmp_path)
    write_verifier(tmp_path / "verifier")
    draft = write_draft(tmp_path / "draft", 64)
    with pytest.raises(ArtifactError, match=r"`fc.weight` is \[64, 192\]; expected \[32, 96\] for this"):
        given_drafts(config, [f"other={draft}"])
    (draft / "config.json").unlink()
    with pytest.raises(ArtifactError, match=r"has no config.json, which vLLM needs"):
        given_drafts(config, [f"other={draft}"])


def write_draft(directory: Path, hidden: int) -> Path:
    """As much of a draft as is looked at."""
    directory.mkdir()
    tensors = {"fc.weight": torch.zeros(hidden, 3 * hidden), "lm_head.weight": torch.zeros(24, hidden)}
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text(msgspec.json.encode({"hidden_size": hidden}).decode())
    return directory


def test_a_run_without_heldout_prompts_is_refused(tmp_path: Path) -> None:
    """Nothing could be measured after hours of training."""
    config = two_parts(tmp_path)
    write_two_parts(config)
    config.heldout_path.write_bytes(b"")
    path = tmp_path / "run.yaml"
    save_config(config, path)
    done = CliRunner().invoke(app, ["compare", str(path)])
    assert done.exit_code == 2
    assert "has no held-out prompts" in done.stderr
    assert not (config.run_path / "compare").exists()


def test_arms_are_trained_measured_and_set_side_by_side(tmp_path: Path, server: ScriptedServer) -> None:
    """From rows to the table, the servers aside; what is complete isn't done again."""
    config = two_parts(tmp_path)
    write_two_parts(config)
    config = msgspec.structs.replace(
        config, verifier=msgspec.structs.replace(config.verifier, served_name=MODEL)
    )
    DraftingServer(server)
    arms = arms_of(config, 60)
    for arm in arms:
        made = trained(arm)
        assert (made.figures["supervised_tokens"], made.figures["steps"]) == (60, arm.updates)
        inputs = {"draft": read_draft(str(arm.config.export_path)).sha256()}
        drafted = Server(name=DRAFTED, control=Control(server.base_url), require_alive=lambda: None)
        measure_on(config, arm.name, drafted, inputs, arm.config.accept_path)
    saved = [checkpoints(arm.config.checkpoints_path)[-1].stat().st_mtime_ns for arm in arms]

    path = tmp_path / "run.yaml"
    save_config(config, path)
    done = CliRunner().invoke(app, ["compare", str(path), "--tokens", "60", "--json"])
    assert done.exit_code == 0, done.output
    found = msgspec.json.decode(done.stdout, type=Comparison)
    assert [draft.name for draft in found.drafts] == ["generic", "native", "mix"]
    assert [draft.groups["all"].length for draft in found.drafts] == [2.0, 2.0, 2.0]
    assert [draft.groups["all"].ratio for draft in found.drafts] == [None, 1.0, 1.0]
    trainings = [draft.trained_on for draft in found.drafts]
    assert [one.by_part for one in trainings if one] == [
        {"generic": 60},
        {"native": 60},
        {"generic": 21, "native": 39},
    ]
    assert {one.supervised_tokens for one in trainings if one} == {60}
    assert len({one.updates for one in trainings if one}) == 1
    assert saved == [checkpoints(arm.config.checkpoints_path)[-1].stat().st_mtime_ns for arm in arms]
    heads = [load_file(arm.config.export_path / "model.safetensors")["lm_head.weight"] for arm in arms]
    assert not heads[0].equal(heads[1])
    assert (config.run_path / "compare" / "compare.svg").read_text().startswith("<svg")

    told = CliRunner().invoke(app, ["compare", str(path), "--tokens", "60"])
    assert told.exit_code == 0
    assert "native against generic: +0.0% tokens a step" in told.stdout


def test_a_stopped_comparison_keeps_what_was_trained(tmp_path: Path) -> None:
    """SIGTERM ends the training that is under way with a checkpoint, and both commands with it."""
    config = two_parts(tmp_path, train__epochs="2000", train__checkpoint_steps="100000")
    write_two_parts(config)
    path = tmp_path / "run.yaml"
    save_config(config, path)
    command = [sys.executable, "-m", "eagle", "compare", str(path)]
    child = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    arm = config.run_path / "compare" / "generic"
    give_up = time.monotonic() + 120
    while not (arm / "draft" / "train_log.jsonl").exists() and time.monotonic() < give_up:
        time.sleep(0.1)
    child.terminate()
    assert child.wait(60) == 130
    assert len(checkpoints(arm / "draft" / "checkpoints")) == 1
    with claimed(arm / "draft" / "checkpoints", parts=1):  # nobody trains it any more
        pass

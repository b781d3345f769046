"""The run and its command lines: plans, refusals, exit codes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from synthgen.corpus.journal import read_journal
from synthgen.corpus.manifest import manifest_of, write_manifest
from synthgen.corpus.records import Trace
from synthgen.corpus.settings import load_config
from synthgen.errors import DiskError
from synthgen.mock_server import Fixed, MockConfig, MockServer
from synthgen.plan.stages import plan
from synthgen.run import Stage, StageFailed, _run_stage, require_disk, run, stage_command, stages

ROOT = Path(__file__).parent.parent


def command(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run a command line as a user would."""
    return subprocess.run(
        [sys.executable, "-m", *arguments], capture_output=True, text=True, timeout=60, check=False, cwd=cwd
    )


@pytest.mark.parametrize("name", ["demo", "smollm2-135m", "kimi-k2.5"])
def test_a_dry_run_prints_each_stages_command(name: str) -> None:
    """Nothing is started, nothing is written."""
    config = f"configs/{name}.yaml"
    done = command("synthgen", "run", config, "--dry-run", "--set", "run_dir=/nonexistent/run")
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert lines[0] == f"synthgen generate {config} --set run_dir=/nonexistent/run"
    assert [line.split()[1] for line in lines if "--untrained" not in line] == [
        "generate", "screen", "mix", "extract", "vocab", "train", "export", "accept",
    ]  # fmt: skip


def test_streamed_states_have_no_stage(demo_values: dict[str, Any], write_config: Any) -> None:
    """The training asks for them; the run needs the disk of the spool, until the training is complete."""
    demo_values["train"]["stream"] = True
    config = load_config(write_config(demo_values))
    assert ("eagle", "extract") not in [stage.command for stage in stages(config)]
    planned = plan(config)
    assert planned.stage("extract").disk_bytes == 64 << 20
    require_disk(config, planned)


def test_training_on_many_gpus_goes_through_torchrun() -> None:
    """Of all stages only training takes `train.processes`; a dry run prints what can be typed."""
    many = ("train.processes=8", "train.batches_per_step=16")
    config = load_config(ROOT / "configs/kimi-k2.5.yaml", many)
    (line,) = [stage_command(stage, Path("my.yaml")) for stage in stages(config) if stage.processes > 1]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "8"]
    torchrun += ["--shutdown-timeout", "120"]
    assert line == [sys.executable, *torchrun, "-m", "eagle", "train", "my.yaml"]
    sets = [part for setting in many for part in ("--set", setting)]
    done = command("synthgen", "run", "configs/kimi-k2.5.yaml", "--dry-run", *sets)
    start = " ".join(["python", *torchrun, "-m eagle train"])
    assert f"{start} configs/kimi-k2.5.yaml --set train.processes=8" in done.stdout


def test_the_demos_states_are_bounded_before_it_starts(
    demo_values: dict[str, Any], write_config: Any
) -> None:
    """400 samples of at most 512 tokens at 4 x 128 x 2 bytes: 200 MiB."""
    config = load_config(write_config(demo_values))
    assert plan(config).stage("extract").disk_bytes == 400 * 512 * 1024


def test_the_untrained_draft_is_a_stage_only_when_wanted(
    demo_values: dict[str, Any], write_config: Any
) -> None:
    """For Kimi-K2.5 it would cost a load of 22 minutes."""
    with_it = stages(load_config(write_config(demo_values)))
    demo_values["accept"]["untrained"] = False
    without = stages(load_config(write_config(demo_values)))
    assert len(with_it) == len(without) + 1 == 9


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("synthgen", "run", "configs/none.yaml"), 2, "configs/none.yaml: no such file"),
        (("synthgen", "run", "configs/demo.yaml", "--set", "train.epoch=1"), 2, "did you mean `epochs`?"),
        (("synthgen", "run", "configs/demo.yaml", "--dry"), 2, "No such option"),
        (("eagle", "train", "configs/demo.yaml", "--set", "run_dir=/nonexistent/r"), 2, "first"),
        (
            ("eagle", "extract", "configs/demo.yaml", "--set", "run_dir=/nonexistent/r"),
            2,
            "synthgen mix",
        ),
        (
            ("synthgen", "run", "configs/demo.yaml", "--set", "prompts.sources=[x.jsonl]"),
            2,
            "x.jsonl: No such file",
        ),
        (("synthgen", "--help"), 0, "generate"),
        (("synthgen", "run", "--help"), 0, "--dry-run"),
        (("eagle", "--help"), 0, "accept"),
    ],
)
def test_a_wrong_call_is_one_clear_line_and_exit_code_2(
    arguments: tuple[str, ...], code: int, message: str
) -> None:
    """No traceback for what a user can mend."""
    done = command(*arguments)
    said = done.stdout + done.stderr
    assert done.returncode == code, said
    assert message in said
    assert "Traceback" not in said


def test_too_little_disk_is_refused_before_the_first_stage(
    demo_values: dict[str, Any], write_config: Any, tmp_path: Path
) -> None:
    """A run that can't fit starts nothing: a billion samples a prompt here."""
    demo_values["generate"]["samples_per_prompt"] = 1_000_000_000
    done = command("synthgen", "run", str(write_config(demo_values)))
    assert done.returncode == 2
    assert "the traces, the hidden states, the checkpoints need" in done.stderr
    assert not (tmp_path / "run").exists()


def test_torchruns_code_1_is_always_an_error(tmp_path: Path) -> None:
    """It stands for every error of a process: a refused training isn't taken for one that lacks rows."""
    made = manifest_of("train", settings={}, inputs={}, figures={"samples_left_out": 1}, seconds=1.0)
    write_manifest(tmp_path / "checkpoints", made)
    stage = Stage(("eagle", "train"), tmp_path / "checkpoints", processes=2)
    with pytest.raises(StageFailed, match="eagle train ended with code 1"):
        _run_stage(stage, tmp_path / "nowhere.yaml", tmp_path)


def test_a_stage_is_stopped_before_the_disk_is_full(
    monkeypatch: pytest.MonkeyPatch, demo_values: dict[str, Any], write_config: Any
) -> None:
    """Here any disk counts as nearly full: generate drains, and the run says why."""
    monkeypatch.setattr("synthgen.run.DISK_WATCH_S", 12.0)
    monkeypatch.setattr("synthgen.run.DISK_RESERVE_BYTES", 1 << 60)
    with MockServer(MockConfig(model="tiny-kimi", latency_s=Fixed(0.3))) as server:
        demo_values["server"]["base_urls"] = [server.base_url]
        demo_values["generate"] |= {"concurrency": 2}
        config = load_config(write_config(demo_values))
        with pytest.raises(
            DiskError, match=r"has less than .* free, so the stage was stopped with all it had"
        ):
            run(config)
        kept = len({trace.key for trace in read_journal(config.traces_path, Trace)})
        assert 1 <= kept == server.counters.served.total() < 400

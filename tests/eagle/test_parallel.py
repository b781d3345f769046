"""Training on many processes: the same curve as on one, whatever the engine, through stops and kills.

Processes are real ones that talk over gloo on 127.0.0.1. They are forked from a server that has torch
loaded, or started by torchrun itself where its part is looked at.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import msgspec
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from eagle.checkpoint import checkpoints, load_progress
from eagle.feed import ShardFeed, plans_of
from eagle.muon import Muon
from eagle.train import train
from eagle.training_log import LogLine
from eagle.validate import Validation
from synthgen.corpus.config import RunConfig
from synthgen.corpus.console import exits
from synthgen.corpus.journal import read_journal
from synthgen.corpus.manifest import read_manifest, write_manifest
from synthgen.corpus.settings import save_config
from tests.eagle.tiny import tiny_config, write_run

ROOT = Path(__file__).parent.parent.parent
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.eagle.test_parallel", "torch._dynamo", "torch.distributed.fsdp"])
PATIENCE_S = 300.0

SIX = {
    "train__batches_per_step": "6",
    "train__batch_tokens": "39",
    "train__max_seq_tokens": "24",
    "train__epochs": "4",
    "train__checkpoint_steps": "3",
    "train__log_steps": "1",
}
"""Six updates, of 6, 1, 6, 6, 6 and 1 batches: in two of them only the first process has any."""
LONG = {"train__batches_per_step": "2", "train__checkpoint_steps": "1000", "train__log_steps": "1"}


# ---- Processes -------------------------------------------------------------------------------------


def started(world: int, work: Callable[..., None], *arguments: object) -> list[BaseProcess]:
    """`work(*arguments)` on `world` processes, each told its place as torchrun tells it."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    common = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    places = [common | {"RANK": str(number), "LOCAL_RANK": str(number)} for number in range(world)]
    found: list[BaseProcess] = [
        FORKS.Process(target=placed, args=(place if world > 1 else {}, work, *arguments)) for place in places
    ]
    for process in found:
        process.start()
    return found


def placed(place: dict[str, str], work: Callable[..., None], *arguments: object) -> None:
    os.environ |= place
    torch.set_num_threads(1)
    work(*arguments)


def train_aloud(config: RunConfig) -> None:
    """What `eagle train` does; what it says is kept beside the run."""
    path = config.run_path / f"said-{os.environ.get('RANK', '0')}"
    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    with exits():
        train(config)


def codes(processes: list[BaseProcess]) -> list[int | None]:
    """Exit codes, once all have ended."""
    for process in processes:
        process.join(PATIENCE_S)
    return [process.exitcode for process in processes]


def trained(config: RunConfig, world: int) -> RunConfig:
    """`config`'s run, trained to the end by `world` processes."""
    assert codes(started(world, train_aloud, config)) == [0] * world, said(config, world)
    return config


def said(config: RunConfig, world: int) -> list[str]:
    return [(config.run_path / f"said-{number}").read_text() for number in range(world)]


def written(directory: Path, heldout: int = 0, /, **settings: str) -> RunConfig:
    """A run that is ready to be trained."""
    config = tiny_config(directory, **settings)
    write_run(config, heldout=heldout)
    return config


# ---- What training leaves --------------------------------------------------------------------------


def log_path(config: RunConfig) -> Path:
    return config.run_path / "draft/train_log.jsonl"


def log_of(config: RunConfig) -> list[LogLine]:
    return list(read_journal(log_path(config), LogLine))


def validations(config: RunConfig) -> list[Validation]:
    return list(read_journal(config.validation_log_path, Validation))


def weights_of(config: RunConfig) -> dict[str, torch.Tensor]:
    return load_file(checkpoints(config.checkpoints_path)[-1] / "weights.safetensors")


def assert_same_curve(found: RunConfig, expected: RunConfig) -> None:
    """Losses, gradients and weights to float32's rounding, counts exactly."""
    for ours, theirs in zip(log_of(found), log_of(expected), strict=True):
        assert (ours.step, ours.epoch, ours.targets) == (theirs.step, theirs.epoch, theirs.targets)
        assert ours.losses == pytest.approx(theirs.losses, rel=1e-5)
        assert ours.grad_norm == pytest.approx(theirs.grad_norm, rel=1e-4)
        assert ours.accuracy == theirs.accuracy
        assert ours.accuracy_by_kind == theirs.accuracy_by_kind
        assert ours.acceptance_predicted == theirs.acceptance_predicted
    weights = weights_of(found)
    for name, weight in weights_of(expected).items():
        assert (weights[name] - weight).norm() < 1e-4 * weight.norm(), name


def assert_same_weights(found: RunConfig, expected: RunConfig) -> None:
    """Bit for bit."""
    ours, theirs = weights_of(found), weights_of(expected)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def back_at_step_3(run: RunConfig, directory: Path, **settings: str) -> RunConfig:
    """A copy of a finished run as it was when it had done three of its steps."""
    shutil.copytree(run.run_path.parent, directory)
    config = tiny_config(directory, verifier__model=run.verifier.model, **settings)
    shutil.rmtree(checkpoints(config.checkpoints_path)[-1])
    manifest = read_manifest(config.checkpoints_path)
    assert manifest is not None
    write_manifest(config.checkpoints_path, msgspec.structs.replace(manifest, complete=False, figures={}))
    return config


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunConfig]:
    """The same training on one process, on two with DDP, and on two with FSDP2; five samples held out."""
    directory = tmp_path_factory.mktemp("runs")
    made = {
        name: trained(written(directory / name, 5, train__parallel=engine, **SIX), world)
        for name, engine, world in (("one", "ddp", 1), ("ddp", "ddp", 2), ("fsdp", "fsdp", 2))
    }
    assert [len(p) for p in plans_of(made["one"], ShardFeed(made["one"]).outlines)] == [7, 6, 6, 7]
    return made


# ---- The tests -------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["ddp", "fsdp"])
def test_two_processes_learn_what_one_does(runs: dict[str, RunConfig], engine: str) -> None:
    """With several batches each, and where only the first has one; only the first says anything."""
    assert_same_curve(runs[engine], runs["one"])
    first, second = said(runs[engine], 2)
    assert "train: 6/6" in first
    assert second == ""


@pytest.mark.parametrize("engine", ["ddp", "fsdp"])
def test_two_processes_share_a_validation(runs: dict[str, RunConfig], engine: str) -> None:
    """Three batches on two processes: the counts are one's, the losses to float32's rounding."""
    for ours, theirs in zip(validations(runs[engine]), validations(runs["one"]), strict=True):
        assert ours.losses == pytest.approx(theirs.losses, rel=1e-5)
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-5)
        assert (ours.step, ours.whole) == (theirs.step, theirs.whole)
        assert (ours.by_kind, ours.by_domain) == (theirs.by_kind, theirs.by_domain)


def test_checkpoints_after_a_validation_hold_the_masters(tmp_path: Path) -> None:
    """FSDP2 in bfloat16, validated after each update on one batch, so that one process has none of it:
    weights are float32, and what goes on from step 3 ends as an uninterrupted run, bit for bit."""
    settings = SIX | {"train__parallel": "fsdp", "train__compute_dtype": "bfloat16"}
    settings |= {"train__validate_steps": "1"}
    whole = trained(written(tmp_path / "whole", 1, **settings), 2)
    assert [one.step for one in validations(whole)] == [1, 2, 3, 4, 5, 6]
    assert {weight.dtype for weight in weights_of(whole).values()} == {torch.float32}
    again = trained(back_at_step_3(whole, tmp_path / "again", **settings), 2)
    assert_same_weights(again, whole)


def test_three_with_fsdp_go_on_where_two_with_ddp_stopped(runs: dict[str, RunConfig], tmp_path: Path) -> None:
    """Parts of unequal length: no side of any matrix here is a multiple of three."""
    config = back_at_step_3(runs["ddp"], tmp_path / "a", train__parallel="fsdp", **SIX)
    trained(config, 3)
    assert "going on from" in said(config, 3)[0]
    assert_same_curve(config, runs["one"])


def test_one_goes_on_where_two_with_fsdp_stopped(runs: dict[str, RunConfig], tmp_path: Path) -> None:
    """The checkpoint of a shared draft is a single process's."""
    assert_same_curve(trained(back_at_step_3(runs["fsdp"], tmp_path / "a", **SIX), 1), runs["one"])


def test_a_loss_that_is_no_number_stops_all_and_is_said_once(tmp_path: Path) -> None:
    """A rate of 1e30 ruins the first update: both end at the second, which names all its samples."""
    config = written(tmp_path, **SIX | {"train__learning_rate": "1.0e+30"})
    assert codes(started(2, train_aloud, config)) == [2, 2]
    text = "".join(said(config, 2))
    assert text.count("error:") == text.count("step 2 (epoch 0, batch 6): loss nan") == 1
    assert checkpoints(config.checkpoints_path) == []


def test_batches_that_processes_cannot_share_are_refused_once(tmp_path: Path) -> None:
    """Nothing is read before; one of the three says it."""
    config = tiny_config(tmp_path, train__batches_per_step="4")
    config.run_path.mkdir()
    assert codes(started(3, train_aloud, config)) == [2, 2, 2]
    text = "".join(said(config, 3))
    said_it = "error: train.batches_per_step 4 is no multiple of the 3 processes: set it to 6\n"
    assert text.count("error:") == text.count(said_it) == 1


def test_a_damaged_shard_is_said_once(tmp_path: Path) -> None:
    """Each of two processes reads half of the shards: the second finds it, both end."""
    config = written(tmp_path, **SIX)
    path = config.states_path / "states-00001.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    assert codes(started(2, train_aloud, config)) == [2, 2]
    text = "".join(said(config, 2))
    assert text.count("error:") == text.count("states-00001.safetensors: sha256 is") == 1, text


def muon_on_parts(path: Path) -> None:
    """One update of matrices that two processes keep parts of; the first writes what came out."""
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,))
    starts, gradients = muon_problem()
    parts = [nn.Parameter(distribute_tensor(start, mesh, [Shard(0)])) for start in starts]
    for part, gradient in zip(parts, gradients, strict=True):
        part.grad = distribute_tensor(gradient, mesh, [Shard(0)])
    Muon(parts, lr=0.02, weight_decay=0.1, rank=dist.get_rank(), world=2).step()
    whole = [part.full_tensor() for part in parts if isinstance(part, DTensor)]
    if dist.get_rank() == 0:
        torch.save(whole, path)
    dist.destroy_process_group()


def muon_problem() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Three matrices, wide, tall and with an odd number of rows, and their gradients."""
    generator = torch.Generator().manual_seed(3)
    shapes = [(24, 40), (40, 24), (15, 32)]
    starts = [torch.randn(shape, generator=generator) for shape in shapes]
    return starts, [torch.randn(shape, generator=generator) for shape in shapes]


def test_muon_on_parts_is_muon_on_the_whole(tmp_path: Path) -> None:
    """Each matrix is orthogonalised whole by one of the processes: bit for bit torch's own update."""
    assert codes(started(2, muon_on_parts, tmp_path / "whole.pt")) == [0, 0]
    starts, gradients = muon_problem()
    expected = [nn.Parameter(start) for start in starts]
    for parameter, gradient in zip(expected, gradients, strict=True):
        parameter.grad = gradient
    torch.optim.Muon(expected, lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw").step()  # type: ignore[no-untyped-call]
    found = torch.load(tmp_path / "whole.pt")
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True))


def test_ten_kills_leave_no_trace(tmp_path: Path) -> None:
    """SIGKILL at ten random steps of 60, resumed each time: the end is that of a run without them."""
    settings = {"train__epochs": "15", "train__checkpoint_steps": "3", "train__log_steps": "1"}
    whole = trained(written(tmp_path / "whole", **settings), 1)
    killed = written(tmp_path / "killed", **settings)
    for step in sorted(random.Random(7).sample(range(1, 58), 10)):
        (process,) = started(1, train_aloud, killed)
        wait_for_step(killed, step)
        process.kill()
        assert codes([process]) == [-signal.SIGKILL]
    trained(killed, 1)
    assert_same_weights(killed, whole)
    assert [line.loss for line in log_of(killed)] == [line.loss for line in log_of(whole)]


def wait_for_step(config: RunConfig, step: int) -> None:
    """Wait until the log has a line of `step`."""
    ends = time.monotonic() + PATIENCE_S
    needle = f'"step":{step},'.encode()
    while not log_path(config).exists() or needle not in log_path(config).read_bytes():
        assert time.monotonic() < ends
        time.sleep(0.001)


# ---- torchrun itself -------------------------------------------------------------------------------


def torchrun(config: RunConfig) -> subprocess.Popen[str]:
    """`eagle train` on two processes, as a user starts it."""
    path = config.run_path / "given.yaml"
    save_config(config, path)
    launch = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "eagle", "train"]
    return subprocess.Popen(
        [sys.executable, "-m", *launch, str(path)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )


def test_sigterm_to_torchrun_saves_a_checkpoint(tmp_path: Path) -> None:
    """All stop at the same step; what goes on from there ends as an uninterrupted run, bit for bit."""
    settings = LONG | {"train__epochs": "20"}
    stopped = written(tmp_path / "stopped", **settings)
    child = torchrun(stopped)
    wait_for_step(stopped, 5)
    child.terminate()
    _, text = child.communicate(timeout=PATIENCE_S)
    (path,) = checkpoints(stopped.checkpoints_path)
    step = load_progress(path).step
    assert 5 <= step == log_of(stopped)[-1].step < 41
    assert text.count(f"train: stopped after step {step} of 41, with a checkpoint") == 1
    whole = trained(written(tmp_path / "whole", **settings), 2)
    trained(stopped, 2)
    assert_same_weights(stopped, whole)

"""kill -9 of clients and of servers at seeded moments: every sample's states are there, once, and the same.

One vLLM at a time serves all tests; those who kill it start the next one on the same port.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import yaml

from eagle.__main__ import main
from eagle.collect import StatesFailure
from eagle.extract import wanted_samples
from eagle.shards import read_all, read_index, verify_shard
from eagle.states import SampleStates
from eagle.transformers_backend import tokenizer_digest
from synthgen.client.control import Control
from synthgen.corpus.config import RunConfig
from synthgen.corpus.console import console
from synthgen.corpus.journal import read_journal
from synthgen.corpus.manifest import require_manifest
from synthgen.corpus.records import Failure, Trace
from synthgen.corpus.samples import Sample, read_samples
from synthgen.corpus.settings import load_config
from synthgen.corpus.token_ids import encode_ids
from tests.conftest import ROOT
from tests.eagle.tiny import trace, write_dataset

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

PORT = 8230
SAMPLES, TEXT_TOKENS = 240, 1000
CLIENT_KILLS, SPAWNED = 25, 3
"""So many lives are killed; the first ones are processes of a command line, the others start faster."""
MOST_SHARDS = 1
"""That a life may write before it is killed: the set must not be complete before the last kill."""
START_S = 300.0


class Server:
    """A capturing vLLM that `synthgen serve` owns, on the port that the run asks."""

    def __init__(self, path: Path, config: RunConfig) -> None:
        self._path, self._config = path, config

    def start(self) -> None:
        """Start one and wait until it is healthy."""
        command = [sys.executable, "-m", "synthgen", "serve", str(self._path), "--role", "capture"]
        self._owner = subprocess.Popen(command, cwd=ROOT)
        control = Control(self._config.server.base_urls[0])
        until(control.is_healthy, START_S, self._owner)
        children = Path(f"/proc/{self._owner.pid}/task/{self._owner.pid}/children").read_text().split()
        (self._group,) = map(int, children)

    def members(self) -> list[int]:
        """The processes of the server that run: the tether, the API server, the engine core and more."""
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                state, _, group = path.read_text().rpartition(")")[2].split()[:3]
            except OSError:
                continue
            if int(group) == self._group and state != "Z":
                found.append(int(path.parent.name))
        return found

    def kill(self) -> None:
        """kill -9 of all of the server; its owner ends with an error."""
        os.killpg(self._group, signal.SIGKILL)
        assert self._owner.wait(60) == 2

    def kill_owner(self) -> None:
        """kill -9 of the process that started it."""
        self._owner.kill()
        self._owner.wait()

    def stop(self) -> None:
        """End it as Ctrl-C does."""
        if self._owner.poll() is None:
            self._owner.terminate()
            self._owner.wait(60)


def until(done: Callable[[], bool], seconds: float, process: subprocess.Popen[Any] | None = None) -> None:
    """Look every millisecond until it is so; a process that ends before, or the time, fails the test."""
    give_up = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < give_up, "too late"
        assert process is None or process.poll() is None, "the process has ended"
        time.sleep(0.001)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The YAML of a run with small shards, whose server runs already."""
    directory = tmp_path_factory.mktemp("kill")
    values: dict[str, Any] = yaml.safe_load((ROOT / "configs/demo.yaml").read_text())
    values["run_dir"] = str(directory / "run")
    values["verifier"]["model"] = str(ROOT / "models/tiny-kimi")
    values["server"] |= {"port": PORT, "base_urls": [f"http://127.0.0.1:{PORT}/v1"]}
    values["server"]["start_timeout_s"] = START_S
    values["prompts"] |= {"sources": [str(ROOT / "prompts/demo.jsonl")], "limit": 96, "heldout": 4}
    values["generate"] |= {"capture": True, "concurrency": 8, "max_tokens": 96, "down_wait_s": START_S}
    values["extract"] |= {"shard_tokens": 512, "concurrency": 8}
    values["accept"] |= {"prompts": 4, "single_prompts": 4}
    made = directory / "kill.yaml"
    made.write_text(yaml.safe_dump(values))
    return made


@pytest.fixture(scope="module")
def config(path: Path) -> RunConfig:
    """The same, loaded."""
    return load_config(path)


@pytest.fixture(scope="module")
def server(path: Path, config: RunConfig) -> Iterator[Server]:
    """A server for all tests."""
    made = Server(path, config)
    made.start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def samples(config: RunConfig) -> list[Sample]:
    """A dataset of 240 samples of random tokens, 40 to 200 each."""
    rng = random.Random(5)
    traces = []
    for number in range(SAMPLES):
        ids = [rng.randrange(TEXT_TOKENS) for _ in range(rng.randint(40, 200))]
        one = msgspec.structs.replace(trace(number), seed_id=f"seed{number:03d}")
        one = msgspec.structs.replace(one, prompt_token_ids=tuple(ids[:20]), output=encode_ids(ids[20:]))
        traces.append(one)
    write_dataset(config, traces)
    return read_samples(config.train_path, config.extract.max_seq_tokens)


@pytest.fixture(scope="module")
def unkilled(path: Path, config: RunConfig, server: Server, samples: list[Sample]) -> dict[str, SampleStates]:
    """The states of an extraction that nothing happened to."""
    assert spawned(path).wait(300) == 0
    kept = config.run_path / "unkilled"
    config.states_path.rename(kept)
    return {states.sample_id: states for states in read_all(kept)}


def spawned(path: Path, **streams: Any) -> subprocess.Popen[Any]:
    """`python -m eagle extract CONFIG`."""
    return subprocess.Popen([sys.executable, "-m", "eagle", "extract", str(path)], cwd=ROOT, **streams)


def command(path: Path) -> None:
    """The same, in a process that has its imports already."""
    sys.argv = ["eagle", "extract", str(path)]
    main()


def lives(path: Path) -> Iterator[Callable[[], int]]:
    """Processes that extract; each is given as what kills it and returns its exit code."""
    for _ in range(SPAWNED):
        yield functools.partial(killed, spawned(path))
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["eagle.__main__"])
    while True:
        life = processes.Process(target=command, args=(path,))
        life.start()
        yield functools.partial(killed, life)


def killed(life: BaseProcess | subprocess.Popen[Any]) -> int:
    """kill -9, and the exit code."""
    life.kill()
    if isinstance(life, subprocess.Popen):
        return life.wait()
    life.join()
    assert life.exitcode is not None
    return life.exitcode


def in_shards(config: RunConfig, samples: list[Sample]) -> set[str]:
    """The samples whose states are there: each once, whole, in a shard that verifies."""
    entries = read_index(config.states_path)
    for entry in entries:
        verify_shard(config.states_path, entry)
    ids = {sample.id: sample.token_ids for sample in samples}
    found = [(one.sample_id, tuple(one.token_ids_T.tolist())) for one in read_all(config.states_path)]
    assert all(tokens in (ids[name], ids[name][:-1]) for name, tokens in found)
    assert not [name for name, times in Counter(name for name, _ in found).items() if times > 1]
    return {name for name, _ in found}


def require_same_states(config: RunConfig, unkilled: dict[str, SampleStates]) -> None:
    """The same tokens and the same states, bit for bit: this vLLM's don't hang on what else is in a batch."""
    for states in read_all(config.states_path):
        other = unkilled[states.sample_id]
        assert torch.equal(states.token_ids_T, other.token_ids_T)
        assert torch.equal(states.final_at_F, other.final_at_F)
        assert torch.equal(states.aux.read(), other.aux.read())
        assert torch.equal(states.final.read(), other.final.read())


def asides(directory: Path) -> list[Path]:
    """Files that are not whole yet, or never will be."""
    return list(directory.glob("*.tmp")) if directory.is_dir() else []  # glob matches dot files, too


def lines(path: Path) -> int:
    """How many records a journal has, or an index."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


def leave_unfinished(config: RunConfig) -> Path:
    """What a server that was killed leaves: a part of a file, under the name that it writes aside."""
    config.spool_path.mkdir(parents=True, exist_ok=True)
    left = config.spool_path / f"{'0' * 32}.tmp"
    left.write_bytes(b"\x40\0\0\0\0\0\0\0" + b'{"token_ids":')
    return left


def test_clients_are_killed(
    path: Path, config: RunConfig, samples: list[Sample], unkilled: dict[str, SampleStates]
) -> None:
    """25 times, at the start, between shards and within the writing of one; nothing is lost or doubled.

    What the killed ones left, in the spool and beside the shards, is gone in the end.
    """
    rng = random.Random(11)
    console.print("seed 11")
    there: set[str] = set()
    left = orphans = 0
    for number, kill in zip(range(CLIENT_KILLS), lives(path), strict=False):
        moment = rng.choice(["start", "shard", "aside", "aside"])
        if moment == "start":
            time.sleep(rng.uniform(0, 0.5))
        elif moment == "shard":
            until_shards(config, more=rng.randint(1, MOST_SHARDS))
            time.sleep(rng.uniform(0, 0.02))
        else:
            until_writing(config)
        assert kill() == -signal.SIGKILL, f"life {number} ended by itself"
        left += bool(asides(config.states_path))
        orphans += config.spool_path.is_dir() and any(config.spool_path.iterdir())
        before, there = there, in_shards(config, samples)
        assert before <= there
    console.print(
        f"{left} left part of a shard, {orphans} files in the spool; {len(there)} samples are there"
    )
    assert left > 0
    assert orphans > 0
    assert 0 < len(there) < SAMPLES

    leave_unfinished(config)
    assert spawned(path).wait(300) == 0
    assert in_shards(config, samples) == {sample.id for sample in samples}
    require_same_states(config, unkilled)
    figures = require_manifest(config.states_path, "").figures
    assert (figures["samples"], figures["failed"]) == (SAMPLES, 0)
    assert figures["tokenizer"] == tokenizer_digest(config.verifier)
    assert asides(config.states_path) == []
    assert not config.spool_path.exists()


def until_shards(config: RunConfig, *, more: int, process: subprocess.Popen[Any] | None = None) -> None:
    """Wait until so many shards more are there."""
    index = config.states_path / "index.jsonl"
    wanted = lines(index) + more
    until(lambda: lines(index) >= wanted, 120, process)


def until_writing(config: RunConfig) -> None:
    """Wait until a shard is being written that was not before."""
    before = set(asides(config.states_path))
    until(lambda: any(".states-" in aside.name for aside in set(asides(config.states_path)) - before), 120)


def test_servers_are_killed(
    path: Path, config: RunConfig, server: Server, samples: list[Sample], unkilled: dict[str, SampleStates]
) -> None:
    """The extraction waits for the next one and goes on: no sample is lost, blamed or there twice.

    The second server is not killed itself but its owner: it ends with it, to its last process.
    """
    rng = random.Random(12)
    console.print("seed 12")
    shutil.rmtree(config.states_path, ignore_errors=True)
    left = leave_unfinished(config)
    client = spawned(path, stderr=subprocess.PIPE, text=True)
    ends = [server.kill, server.kill_owner]
    for end in ends:
        until_shards(config, more=rng.randint(3, 12), process=client)
        time.sleep(rng.uniform(0, 0.1))
        assert len(server.members()) >= 3
        end()
        until(lambda: not server.members(), 10)
        assert 0 < len(in_shards(config, samples)) < SAMPLES
        server.start()
    _, said = client.communicate(timeout=300)
    assert client.returncode == 0, said
    assert said.count("waiting for it, 300 s at most (generate.down_wait_s)") == 2
    assert said.count(f"http://127.0.0.1:{PORT}/v1 is back after") == 2
    assert in_shards(config, samples) == {sample.id for sample in samples}
    require_same_states(config, unkilled)
    assert list(read_journal(config.states_path / "failures.jsonl", StatesFailure)) == []
    assert not left.exists()
    assert not config.spool_path.exists()


def test_a_server_is_killed_that_captures(path: Path, config: RunConfig, server: Server) -> None:
    """Replies whose states it took with it are asked for again: each reply has its states, once."""
    rng = random.Random(13)
    console.print("seed 13")
    for directory in (config.states_path, config.dataset_path):
        shutil.rmtree(directory, ignore_errors=True)
    generation = run("synthgen", "generate", path)
    replies = rng.randint(15, 50)
    until(lambda: lines(config.traces_path) >= replies, 120, generation)
    server.kill()
    server.start()
    assert generation.wait(300) == 0
    traces = list(read_journal(config.traces_path, Trace))
    assert len({one.id for one in traces}) == len(traces) == 96
    assert list(read_journal(config.failures_path, Failure)) == []
    named = {config.spool_path / str(one.states_file) for one in traces}
    lost = [file for file in named if not file.exists()]
    cut, gone = sorted(named - set(lost))[:2]  # what else a kill may do, between a reply and its file
    cut.with_suffix(".tmp").write_bytes(cut.read_bytes()[:1000])
    cut.unlink()
    gone.unlink()
    console.print(f"killed after {replies} replies; {len(lost)} lost their states, and 2 by us")

    for stage in ("screen", "mix"):
        assert run("synthgen", stage, path).wait(120) == 0
    assert spawned(path).wait(300) == 0
    samples = wanted_samples(config)
    assert len(samples) > 60
    assert in_shards(config, samples) == {sample.id for sample in samples}
    assert asides(config.spool_path) == []
    assert require_manifest(config.states_path, "").figures["failed"] == 0


def run(package: str, stage: str, path: Path) -> subprocess.Popen[Any]:
    """A stage of the run."""
    return subprocess.Popen([sys.executable, "-m", package, stage, str(path)], cwd=ROOT)

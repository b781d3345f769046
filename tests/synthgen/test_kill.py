"""kill -9, two hundred times in one run: nothing lost, nothing doubled, nothing paid for twice."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from synthgen.client.api import chat_body
from synthgen.corpus.config import RunConfig
from synthgen.corpus.journal import read_journal, read_keys
from synthgen.corpus.records import Trace
from synthgen.corpus.settings import load_config
from synthgen.generate import generate
from synthgen.mock_server import Fixed, MockConfig, MockServer, body_hash
from synthgen.seeds import split_prompts
from synthgen.traces import sampling_of

ROWS, KILLS = 2000, 200
REPLIES_AT_MOST = 10
"""Replies that a life gets at most, before those in flight: the run can't end before its last kill."""


@pytest.fixture
def server() -> Iterator[MockServer]:
    """Short replies after 10 ms."""
    config = MockConfig(thinking_tokens=Fixed(6), response_tokens=Fixed(3), latency_s=Fixed(0.01))
    with MockServer(config) as running:
        yield running


@pytest.fixture
def config(demo_values: dict[str, Any], write_config: Any, tmp_path: Path, server: MockServer) -> RunConfig:
    """Two thousand prompts, four in flight."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(f'{{"prompt": "q{i}"}}\n' for i in range(ROWS + 1)))
    demo_values["verifier"]["served_name"] = "mock"
    demo_values["server"]["base_urls"] = [server.base_url]
    demo_values["prompts"] |= {"sources": [str(prompts)], "limit": None, "heldout": 1}
    demo_values["generate"] |= {"concurrency": 4}
    demo_values["accept"] |= {"prompts": 1, "single_prompts": 1}
    return load_config(write_config(demo_values))


@pytest.mark.timeout(900)
def test_two_hundred_kills_lose_and_repeat_no_row(config: RunConfig, server: MockServer) -> None:
    """Killed at seeded moments, at the start, between replies and within writes; resumed each time."""
    rng = random.Random(11)
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["synthgen.generate"])
    bodies = request_bodies(config)
    asked_when_committed: dict[tuple[str, int], int] = {}
    for _ in range(KILLS):
        life = processes.Process(target=generate, args=(config,))
        life.start()
        kill_at(life, server, replies=rng.randint(0, REPLIES_AT_MOST), delay_s=rng.uniform(0, 0.02))
        for key in read_keys(config.traces_path) - asked_when_committed.keys():
            asked_when_committed[key] = server.counters.requests[bodies[key]]
    assert 500 < len(asked_when_committed) < ROWS

    manifest, tally = generate(config)
    assert tally.traces == ROWS - len(asked_when_committed)
    assert manifest.complete
    found = Counter(trace.key for trace in read_journal(config.traces_path, Trace))
    assert found == Counter(bodies.keys())  # none lost, none twice
    again = [
        key for key, asked in asked_when_committed.items() if server.counters.requests[bodies[key]] > asked
    ]
    assert again == []


def request_bodies(config: RunConfig) -> dict[tuple[str, int], str]:
    """How the server counts each row: by the hash of its request."""
    return {
        (prompt.id, 0): body_hash(chat_body(prompt, config.verifier.served_name, sampling_of(config, prompt)))
        for prompt in split_prompts(config.prompts, config.seed).corpus
    }


def kill_at(life: BaseProcess, server: MockServer, *, replies: int, delay_s: float) -> None:
    """kill -9 once the server has sent so many replies more and a moment has passed."""
    target = server.counters.served.total() + replies
    give_up = time.monotonic() + 60
    while server.counters.served.total() < target and time.monotonic() < give_up:
        time.sleep(0.001)
    time.sleep(delay_s)
    assert life.pid is not None
    with contextlib.suppress(ProcessLookupError):
        os.kill(life.pid, signal.SIGKILL)
    life.join()
    assert life.exitcode == -signal.SIGKILL

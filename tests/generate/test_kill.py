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

import msgspec
import pytest

from synthgen.client.bodies import chat_body
from synthgen.corpus.config import RunConfig
from synthgen.corpus.journal import read_journal
from synthgen.corpus.records import Message, SeedPrompt, Trace
from synthgen.corpus.settings import load_config
from synthgen.generate.resume import held
from synthgen.generate.stage import generate
from synthgen.generate.traces import sampling_of
from synthgen.mock_server import Fixed, MockConfig, MockServer, body_hash
from synthgen.seeds.choose import split_prompts

ROWS, KILLS = 2000, 200
TURNS = 100
"""Rows of two turns."""
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
    """Two thousand prompts, four in flight; the first hundred lines are conversations of two turns."""
    prompts = tmp_path / "prompts.jsonl"
    turns = [f'["q{i}", "and?"]' if i < TURNS else f'["q{i}"]' for i in range(ROWS + 1)]
    prompts.write_text("".join(f'{{"turns": {texts}}}\n' for texts in turns))
    demo_values["verifier"]["served_name"] = "mock"
    demo_values["server"]["base_urls"] = [server.base_url]
    demo_values["prompts"] |= {"sources": [str(prompts)], "limit": None, "heldout": 1}
    demo_values["generate"] |= {"concurrency": 4}
    demo_values["accept"] |= {"prompts": 1, "single_prompts": 1}
    return load_config(write_config(demo_values))


@pytest.mark.timeout(900)
def test_two_hundred_kills_lose_and_repeat_no_row(config: RunConfig, server: MockServer) -> None:
    """Killed at seeded moments, at the start, between replies and within writes; resumed each time.

    A conversation that was killed between its turns goes on with the history that was answered.
    """
    rng = random.Random(11)
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["synthgen.generate.stage"])
    prompts = {prompt.id: prompt for prompt in split_prompts(config.prompts, config.seed).corpus}
    wanted = {(id, turn) for id, prompt in prompts.items() for turn in range(1 + len(prompt.turns))}
    asked_when_committed: dict[str, int] = {}
    between_turns = 0
    for _ in range(KILLS):
        life = processes.Process(target=generate, args=(config,))
        life.start()
        kill_at(life, server, replies=rng.randint(0, REPLIES_AT_MOST), delay_s=rng.uniform(0, 0.02))
        for said in read_journal(config.traces_path, Said):
            if (body := request_body(config, prompts[said.seed_id], said)) not in asked_when_committed:
                asked_when_committed[body] = server.counters.requests[body]
        between_turns += len(held(config).open)
    assert between_turns
    assert 500 < len(asked_when_committed) < len(wanted)

    manifest, tally = generate(config)
    assert tally.traces == len(wanted) - len(asked_when_committed)
    assert manifest.complete
    found = Counter((trace.seed_id, trace.turn) for trace in read_journal(config.traces_path, Trace))
    assert found == Counter(wanted)  # none lost, none twice
    again = [body for body, asked in asked_when_committed.items() if server.counters.requests[body] > asked]
    assert again == []


class Said(msgspec.Struct):
    """Of a trace, what was asked."""

    seed_id: str
    messages: tuple[Message, ...]


def request_body(config: RunConfig, prompt: SeedPrompt, said: Said) -> str:
    """How the server counts a reply: by the hash of its request."""
    asked = msgspec.structs.replace(prompt, messages=said.messages)
    return body_hash(chat_body(asked, config.verifier.served_name, sampling_of(config, prompt)))


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

"""A server that goes away during extraction is waited for, not blamed on samples, and given up in time."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from eagle.collect import StatesFailure
from eagle.extract import extract
from eagle.shards import read_all
from synthgen.corpus.config import RunConfig
from synthgen.corpus.journal import read_journal
from synthgen.corpus.manifest import read_manifest
from synthgen.errors import ServerMismatch, ServerUnreachable
from tests.eagle.test_extract import Capturing
from tests.eagle.tiny import tiny_config, trace, write_dataset, write_verifier
from tests.scripted_server import MODEL, ScriptedServer

SAMPLES = 12


class GoingAway(Capturing):
    """A capturing server that is gone, to its health check, for a while after so many requests."""

    def __init__(self, config: RunConfig, server: ScriptedServer, *, after: int, gone_s: float) -> None:
        super().__init__(config)
        self.server, self.after, self.gone_s = server, after, gone_s
        self.takes_file = False
        """Whether the last reply before it goes comes, and its file doesn't."""
        self.tries: list[tuple[int, ...]] = []
        self.deadly: tuple[int, ...] | None = None
        """Ids that it goes away of, each time."""

    async def __call__(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        ids = tuple(body["prompt"])
        self.tries.append(ids)
        dies = ids == self.deadly if self.deadly else len(self.tries) == self.after
        if dies:
            self.server.healthy = False
            asyncio.get_running_loop().call_later(self.gone_s, self._come_back)
        if dies and self.takes_file:
            told = {"states_file": "never.safetensors", "layer_ids": self.layers}
            choices = [{"token_ids": [1]}]
            return web.json_response(
                {"choices": choices, "usage": {"prompt_tokens": 1}, "kv_transfer_params": told}
            )
        if not self.server.healthy:
            return web.json_response({"error": "no"}, status=503)
        return await super().__call__(request, body)

    def _come_back(self) -> None:
        self.server.healthy = True


@pytest.fixture
def config(tmp_path: Path, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    """Twelve samples, two in flight, a server that is waited for at most 20 s and looked at often."""
    made = tiny_config(
        tmp_path,
        server__base_urls=f"[{server.base_url}]",
        verifier__served_name=MODEL,
        extract__concurrency="2",
        extract__shard_tokens="20",
        generate__down_wait_s="20",
    )
    write_verifier(Path(made.verifier.model))
    write_dataset(made, [trace(number) for number in range(SAMPLES)])
    monkeypatch.setattr("eagle.patience.PROBE_S", 0.05)
    monkeypatch.setattr("eagle.prefill.PROBE_S", 0.05)
    return made


def test_a_server_that_is_gone_for_a_while_costs_no_sample(
    config: RunConfig, server: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """All wait for it together, and each sample is there once."""
    server.handler = GoingAway(config, server, after=4, gone_s=1.0)
    made = extract(config)
    assert (made.complete, made.figures["samples"], made.figures["failed"]) == (True, SAMPLES, 0)
    assert len({states.sample_id for states in read_all(config.states_path)}) == SAMPLES
    said = capsys.readouterr().err
    assert said.count("waiting for it, 20 s at most (generate.down_wait_s)") == 1
    assert said.count(f"{server.base_url} is back after 1 s") == 1


def test_a_file_that_went_with_its_server_is_asked_for_again(
    config: RunConfig, server: ScriptedServer
) -> None:
    """The reply named it before the server was killed; who waits for it looks at the server meanwhile."""
    server.handler = handler = GoingAway(config, server, after=4, gone_s=1.0)
    handler.takes_file = True
    made = extract(config)
    assert (made.figures["samples"], made.figures["failed"]) == (SAMPLES, 0)
    assert handler.asked == SAMPLES


def test_a_server_that_stays_away_ends_the_stage_and_keeps_what_is_there(
    config: RunConfig, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After generate.down_wait_s; the same command asks for the rest when it is back."""
    server.handler = handler = GoingAway(config, server, after=7, gone_s=600.0)
    impatient = tiny_config(Path(config.run_dir).parent, **SHORT, server__base_urls=f"[{server.base_url}]")
    with pytest.raises(ServerUnreachable, match=r"has answered for 1 s \(generate\.down_wait_s\).* are kept"):
        extract(impatient)
    before = read_manifest(config.states_path)
    assert before is not None
    assert not before.complete
    there = len(list(read_all(config.states_path)))
    assert 2 <= there <= 6
    server.healthy = True
    asked = handler.asked
    assert extract(impatient).figures["samples"] == SAMPLES
    assert handler.asked == asked + SAMPLES - there


SHORT = {
    "verifier__served_name": MODEL,
    "extract__concurrency": "2",
    "extract__shard_tokens": "20",
    "generate__down_wait_s": "1",
}


def test_a_server_that_comes_back_as_another_is_refused(config: RunConfig, server: ScriptedServer) -> None:
    """With another tokenizer the ids would be read as other tokens; no sample is blamed."""
    server.handler = handler = GoingAway(config, server, after=4, gone_s=600.0)

    def come_back() -> None:
        server.tokenizer_suffix = [7]
        server.healthy = True

    handler.gone_s = 0.5
    handler._come_back = come_back  # type: ignore[method-assign]
    with pytest.raises(ServerMismatch, match="is another server than the run's: its tokenizer is"):
        extract(config)
    assert list(read_journal(config.states_path / "failures.jsonl", StatesFailure)) == []


def test_a_sample_that_the_server_dies_of_is_a_record(config: RunConfig, server: ScriptedServer) -> None:
    """After five times; the others are there. It may have taken neighbours with it into the record."""
    server.handler = handler = GoingAway(config, server, after=0, gone_s=0.2)
    poison = trace(5)
    handler.deadly = poison.prompt_token_ids + poison.output_token_ids
    made = extract(config)
    failures = list(read_journal(config.states_path / "failures.jsonl", StatesFailure))
    assert poison.id in {failure.sample_id for failure in failures}
    assert "5 servers went away while they had this sample" in failures[0].message
    assert len(failures) <= 4
    assert made.figures["samples"] == SAMPLES - len(failures)
    assert handler.tries.count(handler.deadly) == 5

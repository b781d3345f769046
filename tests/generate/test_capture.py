"""Hidden states asked for with the replies: of the right layers, into the right place, or it is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from synthgen.client import capture
from synthgen.client.launch import captured_layers
from synthgen.corpus.config import RunConfig
from synthgen.corpus.journal import read_journal
from synthgen.corpus.records import Trace
from synthgen.errors import ServerMismatch
from synthgen.generate.stage import generate
from tests.scripted_server import ScriptedServer, chat_reply


class Capturing:
    """A server with the connector, whose replies name files; from its `lost`th reply on it has none."""

    def __init__(self, config: RunConfig, spool: Path | None = None, lost: int = 1000) -> None:
        self.spool = spool or config.spool_path
        self.layers = list(captured_layers(config))
        self.lost = lost
        self.asked: list[dict[str, Any]] = []

    async def __call__(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        self.spool.mkdir(parents=True, exist_ok=True)
        self.asked.append(body)
        (self.spool / f"{len(self.asked)}.safetensors").write_bytes(b"states")
        told = {"states_file": f"{len(self.asked)}.safetensors", "layer_ids": self.layers}
        if "prompt" in body:
            answer = {"choices": [{"token_ids": [1]}], "usage": {"prompt_tokens": 1}}
            return web.json_response(answer | {"kv_transfer_params": told})
        return web.json_response(chat_reply(kv_transfer_params=told if len(self.asked) < self.lost else None))


@pytest.fixture
def config(scripted_config: RunConfig) -> RunConfig:
    """Twelve prompts whose replies are asked for with their states."""
    return msgspec.structs.replace(
        scripted_config, generate=msgspec.structs.replace(scripted_config.generate, capture=True)
    )


def test_each_trace_names_its_states(config: RunConfig, server: ScriptedServer) -> None:
    """Asked for with the longest sample that is kept; the probe's own file is gone."""
    server.handler = handler = Capturing(config)
    _, tally = generate(config)
    traces = list(read_journal(config.traces_path, Trace))
    assert sorted(trace.states_file or "" for trace in traces) == sorted(
        f"{number}.safetensors" for number in range(2, 14)
    )
    assert handler.asked[1]["kv_transfer_params"] == {"states": "all", "most": config.extract.max_seq_tokens}
    assert not (config.spool_path / "1.safetensors").exists()
    assert tally.uncaptured == 0


def test_replies_without_their_states_are_kept_and_counted(config: RunConfig, server: ScriptedServer) -> None:
    """As from a server that came back without the connector: what was paid for stays."""
    server.handler = Capturing(config, lost=8)
    _, tally = generate(config)
    traces = list(read_journal(config.traces_path, Trace))
    assert len(traces) == 12
    assert tally.uncaptured == sum(trace.states_file is None for trace in traces) == 6


def test_states_of_other_layers_are_not_taken_for_the_runs(config: RunConfig, server: ScriptedServer) -> None:
    """Changed after the probe, they leave the trace without a file."""
    server.handler = handler = Capturing(config)

    async def changed(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        answer = await handler(request, body)
        handler.layers = [1, 2, 3, 8]
        return answer

    server.handler = changed
    _, tally = generate(config)
    assert tally.uncaptured == 12


def test_a_server_that_captures_otherwise_is_refused_before_anything_is_sent(
    config: RunConfig, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No connector, other layers, another directory: each in one line."""
    monkeypatch.setattr(capture, "FILE_WAIT_S", 0.2)
    with pytest.raises(ServerMismatch, match="it runs without the connector"):
        generate(config)
    server.handler = handler = Capturing(config)
    handler.layers = [1, 2, 3, 8]
    with pytest.raises(
        ServerMismatch, match=r"captures layers \[1, 2, 3, 8\], this run wants \[2, 4, 5, 8\]"
    ):
        generate(config)
    (config.spool_path / "1.safetensors").unlink()
    server.handler = Capturing(config, spool=tmp_path / "elsewhere")
    with pytest.raises(ServerMismatch, match="did not write its hidden states into"):
        generate(config)
    assert not list(read_journal(config.traces_path, Trace))

"""A draft's measurement on a server that counts, streams its steps, and is no vLLM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from eagle.accept.servers import DRAFTED, Server
from eagle.accept.steps import PromptSteps
from eagle.compare.live import heldout_prompts, measure_on, measured
from eagle.draft_files import read_draft
from synthgen.client.control import Control
from synthgen.corpus.config import RunConfig
from synthgen.corpus.journal import read_journal, write_journal
from synthgen.corpus.manifest import read_manifest
from synthgen.corpus.records import Message, SeedPrompt
from synthgen.corpus.settings import load_config
from synthgen.errors import ArtifactError, ServerMismatch
from tests.eagle.accept.drafting_server import DraftingServer
from tests.eagle.compare.two_parts import two_parts, write_two_parts
from tests.scripted_server import MODEL, ScriptedServer


@pytest.fixture
def config(demo_values: dict[str, Any], write_config: Any) -> RunConfig:
    """Five held-out prompts, four of which are measured."""
    demo_values["verifier"]["served_name"] = MODEL
    demo_values["accept"] |= {"prompts": 4, "single_prompts": 2}
    loaded: RunConfig = load_config(write_config(demo_values))
    prompts = [
        SeedPrompt(id=f"p{i}", source="t", domain="d", messages=(Message(role="user", content=f"q{i}"),))
        for i in range(5)
    ]
    write_journal(loaded.heldout_path, prompts)
    return loaded


def server_of(scripted: ScriptedServer) -> Server:
    """It, as measuring sees it."""
    return Server(name=DRAFTED, control=Control(scripted.base_url), require_alive=lambda: None)


def test_the_steps_of_each_prompt_are_kept(config: RunConfig, server: ScriptedServer, tmp_path: Path) -> None:
    """Four replies of three steps that accept 1, 0 and 2; the warm-up is in no figure."""
    DraftingServer(server)
    made = measure_on(config, "native", server_of(server), {"draft": "x"}, tmp_path / "accept")
    assert made.figures["acceptance_length"] == 2.0
    assert made.figures["drafts"] == made.figures["steps_seen"] == 12
    assert made.figures["rate_by_position"] == pytest.approx([2 / 3, 1 / 3])
    assert made.figures["warnings"] == []
    steps = list(read_journal(tmp_path / "accept" / "prompts.jsonl", PromptSteps))
    assert [(one.id, one.draft, one.accepted) for one in steps] == [
        (f"p{number}", "native", (1, 0, 2)) for number in range(4)
    ]
    assert read_manifest(tmp_path / "accept") == made


def test_a_server_without_a_draft_is_named(config: RunConfig, server: ScriptedServer, tmp_path: Path) -> None:
    """Nothing is written then."""
    DraftingServer(server, events=())
    with pytest.raises(ServerMismatch, match="no server with a draft"):
        measure_on(config, "native", server_of(server), {}, tmp_path / "accept")
    assert not (tmp_path / "accept").exists()


def test_what_is_measured_is_not_measured_again(tmp_path: Path) -> None:
    """Without a server: what is there is taken if it is of this draft and these settings, or refused."""
    config = two_parts(tmp_path)
    write_two_parts(config)
    draft, directory = tmp_path / "verifier", tmp_path / "accept"
    server = ScriptedServer()
    server.start()
    DraftingServer(server)
    inputs = {"draft": read_draft(str(draft)).sha256()}
    named = msgspec.structs.replace(
        config, verifier=msgspec.structs.replace(config.verifier, served_name=MODEL)
    )
    made = measure_on(named, "x", server_of(server), inputs, directory)
    server.stop()
    found = measured(named, "x", draft, directory)
    assert found.manifest == made
    assert [one.accepted for one in found.steps] == [(1, 0, 2)]
    accept = msgspec.structs.replace(named.accept, max_tokens=5)
    with pytest.raises(ArtifactError, match=r"settings.max_tokens = 384, this run has 5: set it back, or"):
        measured(msgspec.structs.replace(named, accept=accept), "x", draft, directory)


def test_heldout_prompts_are_the_first_of_them(config: RunConfig) -> None:
    """The same for every draft."""
    assert [prompt.id for prompt in heldout_prompts(config)] == ["p0", "p1", "p2", "p3"]

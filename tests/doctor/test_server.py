"""What `synthgen doctor` says of a server: a healthy one, and each way in which one is not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from aiohttp import web
from packaging.specifiers import SpecifierSet

from synthgen.client.control import Control
from synthgen.corpus.config import RunConfig
from synthgen.doctor.findings import Finding, Level
from synthgen.doctor.server import Patient, judged_version, server_findings
from synthgen.mock.faults import MissingTokenIds, Rule, WrongUsage
from synthgen.mock_server import MockConfig, MockServer, Uniform
from tests.client.test_control import LOAD, METRICS
from tests.generate.test_capture import Capturing
from tests.scripted_server import MODEL, ScriptedServer, chat_reply

OK, WARNING, PROBLEM = Level.OK, Level.WARNING, Level.PROBLEM
SHORT: dict[str, Any] = {"thinking_tokens": Uniform(5, 30), "response_tokens": Uniform(5, 20)}


def looked_at(base_url: str, config: RunConfig | None = None) -> dict[str, Finding]:
    """The findings by their check."""
    return {found.check: found for found in server_findings(base_url, config, None)}


def levels(found: dict[str, Finding]) -> dict[str, str]:
    """How bad each is."""
    return {check: str(finding.level) for check, finding in found.items()}


def faulty(*faults: Rule) -> MockServer:
    """A mock server with short replies and these faults."""
    return MockServer(MockConfig(faults=faults, **SHORT))


@pytest.fixture
def mock() -> Iterator[MockServer]:
    """A healthy mock server."""
    with faulty() as server:
        yield server


def test_a_healthy_server_is_ok_in_everything(mock: MockServer) -> None:
    """Each check says what it saw, with the server's address."""
    found = looked_at(mock.base_url)
    assert levels(found) == {
        "server": "ok", "model": "ok", "version": "ok", "template": "ok", "token ids": "ok",
        "thinking": "ok", "metrics": "ok", "capture": "ok", "draft": "ok",
    }  # fmt: skip
    assert {finding.where for finding in found.values()} == {mock.base_url}
    assert found["model"].said == "mock, 32,768 tokens at most"
    assert found["version"].said == "vLLM 0.32.0+mock"
    assert found["thinking"].said.startswith("comes apart; it ends at token ")
    assert found["metrics"].said == "0 requests running, 0 waiting"
    assert found["draft"].said == "none: replies are the verifier's alone"


def test_nobody_there_is_the_only_finding() -> None:
    """With how to start one."""
    (found,) = server_findings("http://127.0.0.1:9/v1", None, None)
    assert (found.check, found.level) == ("server", PROBLEM)
    assert "nothing answers at http://127.0.0.1:9/v1/models" in found.said
    assert "synthgen serve CONFIG" in found.said


def test_an_address_without_v1_is_told_so(mock: MockServer) -> None:
    """The commonest slip."""
    (found,) = server_findings(mock.root_url, None, None)
    assert (found.check, found.level) == ("server", PROBLEM)
    assert "A base URL ends in /v1" in found.said


def test_another_model_than_the_configs_ends_the_examination(
    mock: MockServer, scripted_config: RunConfig
) -> None:
    """Both names; nothing is asked of a model that isn't wanted."""
    found = looked_at(mock.base_url, scripted_config)
    assert levels(found) == {"server": "ok", "model": "problem"}
    assert "serves 'mock', not 'scripted'" in found["model"].said
    assert mock.counters.requests.total() == 0


def test_a_shorter_context_than_the_configs_is_named(
    server: ScriptedServer, scripted_config: RunConfig
) -> None:
    """The scripted server has 1,024 tokens: too few is a problem, fewer than planned a warning."""
    settings = msgspec.structs.replace(scripted_config.server, max_model_len_tokens=4096)
    longer = msgspec.structs.replace(scripted_config, server=settings)
    assert looked_at(server.base_url, scripted_config)["model"].level is OK
    warned = looked_at(server.base_url, longer)["model"]
    assert warned.level is WARNING
    assert "1,024 tokens at most, but server.max_model_len_tokens is 4,096" in warned.said
    generate = msgspec.structs.replace(longer.generate, max_tokens=2048)
    refused = looked_at(server.base_url, msgspec.structs.replace(longer, generate=generate))["model"]
    assert refused.level is PROBLEM
    assert "generate.max_tokens 2,048 leaves no room" in refused.said


@pytest.mark.parametrize(("version", "level"), [("0.32.1", OK), ("0.32.0+cpu", OK), ("0.33.0", WARNING)])
def test_versions_outside_the_tested_range_are_a_warning(
    server: ScriptedServer, version: str, level: Level
) -> None:
    """They may do; what to try first is said."""
    patient = Patient(control=Control(server.base_url), model=MODEL, config=None, key=None)
    found = judged_version(patient, version, SpecifierSet(">=0.32,<0.33"))
    assert found.level is level
    assert ("eagle verify states" in found.said) == (level is WARNING)


@pytest.mark.parametrize(
    ("fault", "said"),
    [(MissingTokenIds(), "the reply has no token ids"), (WrongUsage(), "token ids, but usage says")],
)
def test_replies_without_exact_ids_are_a_problem(fault: Any, said: str) -> None:
    """No corpus can be made from them, which shows before the first thousand are paid for."""
    with faulty(Rule(fault=fault)) as server:
        found = looked_at(server.base_url)
    assert found["token ids"].level is PROBLEM
    assert said in found["token ids"].said
    assert "thinking" not in found


def test_a_missing_reasoning_parser_is_told_by_the_ids(
    server: ScriptedServer, scripted_config: RunConfig
) -> None:
    """`</think>` is in the ids, and the text has no reasoning."""

    async def unparsed(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(chat_reply(reasoning=None))

    server.handler = unparsed
    found = looked_at(server.base_url, scripted_config)["thinking"]
    assert found.level is PROBLEM
    assert "token 1 of 4" in found.said
    assert "--reasoning-parser" in found.said


def test_a_reply_without_any_thinking_is_a_warning(
    server: ScriptedServer, scripted_config: RunConfig
) -> None:
    """A model that doesn't think looks just like one whose thinking isn't parsed."""

    async def plain(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(chat_reply([11, 12], reasoning=None))

    server.handler = plain
    found = looked_at(server.base_url, scripted_config)["thinking"]
    assert found.level is WARNING
    assert "set generate.thinking to false" in found.said


def test_a_server_without_metrics_is_a_warning(server: ScriptedServer) -> None:
    """Auto concurrency goes by them; a number does without."""
    found = looked_at(server.base_url)["metrics"]
    assert found.level is WARNING
    assert "generate.concurrency auto can't see" in found.said
    server.counters = LOAD
    assert looked_at(server.base_url)["metrics"].said == "60 requests running, 17 waiting"


def test_a_template_that_refuses_is_a_problem(server: ScriptedServer) -> None:
    """With what the server said."""

    def refuse(body: dict[str, Any]) -> str:
        raise ValueError("roles must alternate")

    server.template = refuse
    found = looked_at(server.base_url)["template"]
    assert found.level is PROBLEM
    assert "roles must alternate" in found.said


def test_a_server_that_wants_a_key_says_where_it_goes(server: ScriptedServer) -> None:
    """Not that its address is wrong."""
    server.tokenize_status = 401
    found = looked_at(server.base_url)["template"]
    assert found.level is PROBLEM
    assert "answered 401" in found.said
    assert "the variable that server.api_key_env names" in found.said


def test_a_server_that_names_no_tokens_is_a_warning(server: ScriptedServer) -> None:
    """Leaked special tokens can't be found by id then."""
    server.names_tokens = False
    assert looked_at(server.base_url)["template"].level is WARNING


def test_a_draft_is_seen_by_its_counters(server: ScriptedServer, scripted_config: RunConfig) -> None:
    """Good for `eagle accept`, and no server to generate from above temperature 0 on a CPU."""
    server.counters = METRICS
    found = looked_at(server.base_url)["draft"]
    assert (found.level, found.said) == (OK, "speculative decoding is on, 10 drafts so far")
    assert looked_at(server.base_url, scripted_config)["draft"].level is WARNING


def test_a_connector_is_missed_where_the_config_needs_it(
    server: ScriptedServer, scripted_config: RunConfig
) -> None:
    """A problem for generate.capture, a warning where only extraction comes to it."""
    assert looked_at(server.base_url, scripted_config)["capture"].level is WARNING
    generate = msgspec.structs.replace(scripted_config.generate, capture=True)
    found = looked_at(server.base_url, msgspec.structs.replace(scripted_config, generate=generate))["capture"]
    assert found.level is PROBLEM
    assert "--role capture`; generate.capture does, too" in found.said


def test_a_connector_of_other_layers_is_a_problem_and_of_the_runs_own_is_ok(
    server: ScriptedServer, scripted_config: RunConfig
) -> None:
    """One token is captured into the run's spool, and removed again."""
    server.handler = handler = Capturing(scripted_config)
    handler.layers = [2, 4, 6, 8]
    found = looked_at(server.base_url, scripted_config)["capture"]
    assert found.level is PROBLEM
    assert "captures layers [2, 4, 6, 8], this run wants [2, 4, 5, 8]" in found.said
    handler.layers = [2, 4, 5, 8]
    found = looked_at(server.base_url, scripted_config)["capture"]
    assert (found.level, found.said) == (OK, f"layers [2, 4, 5, 8], into {scripted_config.spool_path}")
    last = f"{len(handler.asked)}.safetensors"
    assert not (scripted_config.spool_path / last).exists()

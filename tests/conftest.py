"""Fixtures that many tests share."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from synthgen.client.launch import undraftable
from synthgen.corpus.config import RunConfig
from synthgen.corpus.sections import PromptsConfig
from synthgen.corpus.settings import load_config
from tests.line import Line, make_line
from tests.scripted_server import MODEL, ScriptedServer

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="session", autouse=True)
def signals_arrive() -> None:
    """Also where the tests run under nohup, or in the background of a script: those ignore some."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session")
def serves_drafts() -> None:
    """Skips what needs a server of the demo's verifier with a draft where vLLM can't serve the two."""
    if reason := undraftable(load_config(ROOT / "configs/demo.yaml")):
        pytest.skip(reason)


@pytest.fixture(scope="session")
def line(tmp_path_factory: pytest.TempPathFactory, serves_drafts: None) -> Line:
    """The finished run; making it starts real servers and takes minutes."""
    return make_line(tmp_path_factory.mktemp("line"))


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    """A scripted server, stopped after the test."""
    scripted = ScriptedServer()
    scripted.start()
    yield scripted
    scripted.stop()


@pytest.fixture
def demo_values(tmp_path: Path) -> dict[str, Any]:
    """The demo's config as plain values, with its run directory and prompts in a fresh place."""
    values: dict[str, Any] = yaml.safe_load((ROOT / "configs/demo.yaml").read_text())
    values["run_dir"] = str(tmp_path / "run")
    values["verifier"]["model"] = str(ROOT / "models/tiny-kimi")
    values["prompts"]["sources"] = [str(ROOT / "prompts/demo.jsonl")]
    return values


def prompts_config(**changes: Any) -> PromptsConfig:
    """A section `prompts` that takes all there is, with some of its keys otherwise."""
    values: dict[str, Any] = {
        "sources": (),
        "field": None,
        "on_bad_row": "refuse",
        "near_duplicates": None,
        "exclude": (),
        "caps": {},
        "strata": "proportional",
        "limit": None,
        "heldout": 1,
    }
    return PromptsConfig(**(values | changes))


@pytest.fixture
def write_config(tmp_path: Path) -> Any:
    """A function that writes values as YAML and returns the path."""

    def write(values: dict[str, Any]) -> Path:
        path = tmp_path / "config.yaml"
        path.write_text(yaml.safe_dump(values))
        return path

    return write


@pytest.fixture
def scripted_config(
    demo_values: dict[str, Any], write_config: Any, server: ScriptedServer, tmp_path: Path
) -> RunConfig:
    """A run of twelve small prompts against the scripted server."""
    prompts = tmp_path / "prompts.jsonl"
    rows = [{"domain": "d", "messages": [{"role": "user", "content": f"q{i}"}]} for i in range(14)]
    prompts.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    demo_values["verifier"]["served_name"] = MODEL
    demo_values["server"]["base_urls"] = [server.base_url]
    demo_values["prompts"] |= {"sources": [str(prompts)], "limit": None, "heldout": 2}
    demo_values["generate"] |= {"concurrency": 4, "down_wait_s": 20, "retry_attempts": 2, "retry_seconds": 5}
    demo_values["accept"] |= {"prompts": 2, "single_prompts": 2}
    return load_config(write_config(demo_values))

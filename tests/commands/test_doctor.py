"""`synthgen doctor` as it is called: its table, its JSON, its exit codes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from synthgen.__main__ import app
from synthgen.mock_server import MockConfig, MockServer, Uniform
from tests.conftest import ROOT

RUNNER = CliRunner()


def test_a_machine_with_warnings_alone_ends_with_0() -> None:
    """The table has at most 100 columns and ends with the count."""
    done = RUNNER.invoke(app, ["doctor", str(ROOT / "configs/demo.yaml")])
    assert done.exit_code == 0, done.output
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    assert lines[0] == "this machine"
    assert lines[1].split()[:2] == ["ok", "config"]
    assert lines[-1].startswith("nothing is wrong")
    assert max(map(len, done.stdout.splitlines())) <= 100


def test_a_healthy_server_in_json() -> None:
    """Everything the table holds."""
    short = Uniform(5, 9)
    with MockServer(MockConfig(thinking_tokens=short, response_tokens=short)) as server:
        done = RUNNER.invoke(app, ["doctor", "--url", server.base_url, "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["problems"] == 0
    there = [found for found in told["findings"] if found["where"] == server.base_url]
    assert {found["level"] for found in there} == {"ok"}
    assert there[0] == {"where": server.base_url, "check": "server", "level": "ok", "said": "answers"}


def test_a_dead_server_ends_with_1_and_the_table_names_it() -> None:
    """Wide lines are folded."""
    done = RUNNER.invoke(app, ["doctor", "--url", "http://127.0.0.1:9/v1"])
    assert done.exit_code == 1
    assert "1 problem" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100


def test_a_config_that_does_not_load_is_a_finding(demo_values: dict[str, Any], write_config: Any) -> None:
    """The rest of the machine is looked at all the same."""
    demo_values["generate"]["temprature"] = 1.0
    done = RUNNER.invoke(app, ["doctor", str(write_config(demo_values)), "--json"])
    assert done.exit_code == 1
    first, second, *_ = json.loads(done.stdout)["findings"]
    assert (first["check"], first["level"], second["check"]) == ("config", "problem", "python")
    assert "unknown key `generate.temprature`" in first["said"]


def test_the_servers_of_a_config_are_looked_at(
    demo_values: dict[str, Any], write_config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without --url; a key that fits no header is a finding and nobody is asked."""
    demo_values["server"]["base_urls"] = ["http://127.0.0.1:9/v1", "http://127.0.0.1:10/v1"]
    path = str(write_config(demo_values))
    told = json.loads(RUNNER.invoke(app, ["doctor", path, "--json"]).stdout)
    asked = [found["where"] for found in told["findings"] if found["check"] == "server"]
    assert asked == ["http://127.0.0.1:9/v1", "http://127.0.0.1:10/v1"]
    monkeypatch.setenv("OPENAI_API_KEY", "bad\n")
    told = json.loads(RUNNER.invoke(app, ["doctor", path, "--json"]).stdout)
    assert [found["check"] for found in told["findings"]][-1] == "key"


def test_an_empty_address_is_looked_at_like_any_other() -> None:
    """`--url "$URL"` with nothing in the variable isn't taken for no --url."""
    done = RUNNER.invoke(app, ["doctor", "--url", "", "--json"])
    assert done.exit_code == 1, done.output
    (there,) = (found for found in json.loads(done.stdout)["findings"] if found["where"] == "")
    assert (there["check"], there["level"]) == ("server", "problem")


def test_a_set_without_a_config_is_refused() -> None:
    """It would be looked at by nobody."""
    done = RUNNER.invoke(app, ["doctor", "--set", "server.device=cuda"])
    assert done.exit_code == 2
    assert "--set lays values over a YAML: name that, too" in done.stderr
    assert not done.stdout

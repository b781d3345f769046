"""Pushing: what is refused before anything is written, and an upload to a server with the hub's calls."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from synthgen.__main__ import app
from synthgen.corpus.config import RunConfig
from synthgen.corpus.settings import load_config
from tests.export.dataset import write_dataset

ROOT = Path(__file__).parents[2]
TOKEN = "hf_verysecretverysecret"


class FakeHub(ThreadingHTTPServer):
    """The few calls of an upload; what was committed is in `files`, what was asked in `calls`."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), FakeHubHandler)
        self.calls: list[tuple[str, str]] = []
        self.created: dict[str, Any] = {}
        self.files: dict[str, bytes] = {}
        self.writable = True

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class FakeHubHandler(BaseHTTPRequestHandler):
    """Answers as the hub does, as far as an upload of small files asks."""

    server: FakeHub

    def do_GET(self) -> None:
        """Who am I, and what is in the repository."""
        self.server.calls.append(("GET", self.path))
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            self._answer(401, {"error": "Invalid user token."})
        elif self.path == "/api/whoami-v2":
            self._answer(200, {"name": "me", "type": "user"})
        else:
            self._answer(
                200, [] if "/tree/" in self.path else {"id": "me/traces", "sha": "0" * 40, "siblings": []}
            )

    def do_POST(self) -> None:
        """Create, ask how each file goes, commit."""
        self.server.calls.append(("POST", self.path))
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if not self.server.writable:
            self._answer(403, {"error": "You don't have the rights to write here."})
        elif self.path == "/api/repos/create":
            self.server.created = json.loads(body)
            self._answer(200, {"url": f"{self.server.url}/datasets/me/traces", "name": "me/traces"})
        elif "/preupload/" in self.path:
            asked = json.loads(body)["files"]
            files = [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in asked]
            self._answer(200, {"files": files})
        elif "/commit/" in self.path:
            self._commit(body)
        else:
            self._answer(200, {"errors": [], "warnings": []})

    def _commit(self, body: bytes) -> None:
        for line in body.splitlines():
            operation = json.loads(line)
            if operation["key"] == "file":
                value = operation["value"]
                self.server.files[value["path"]] = base64.b64decode(value["content"])
        address = f"{self.server.url}/datasets/me/traces/commit/{'0' * 40}"
        self._answer(200, {"success": True, "commitOid": "0" * 40, "commitUrl": address})

    def _answer(self, status: int, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing on stderr."""


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    """A hub of our own, stopped after the test."""
    server = FakeHub()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def config(demo_values: dict[str, Any], write_config: Any) -> RunConfig:
    """A run with the small dataset."""
    loaded = load_config(write_config(demo_values))
    write_dataset(loaded)
    return loaded


def pushed(config: RunConfig, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`synthgen export … --push-to-hub`, in a process that has no token but what is given."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    home = config.run_path.parent / "hf"
    file = config.run_path.parent / "config.yaml"
    return subprocess.run(
        [sys.executable, "-m", "synthgen", "export", str(file), *arguments],
        env=clean | {"HF_HOME": str(home), "PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


REFUSED = [
    (("me/traces",), {}, "no token: set HF_TOKEN to one that may write, or run `hf auth login`"),
    (("me/traces",), {"HF_TOKEN": TOKEN, "HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE is set"),
    (("me/traces",), {"HF_TOKEN": TOKEN, "HF_ENDPOINT": "http://127.0.0.1:9"}, "whoami failed at http://127"),
    (("a/b/c",), {"HF_TOKEN": TOKEN}, "Write it as OWNER/NAME"),
    (("me/traces", "--format", "openai", "--format", "parquet"), {"HF_TOKEN": TOKEN}, "holds one format"),
]


@pytest.mark.parametrize(("arguments", "environment", "message"), REFUSED)
def test_a_push_that_cannot_succeed_is_refused_before_anything_is_written(
    config: RunConfig, arguments: tuple[str, ...], environment: dict[str, str], message: str
) -> None:
    """No token, no hub, no name, or two formats for one repository."""
    done = pushed(config, "--push-to-hub", *arguments, **environment)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not config.exports_path.exists()
    assert TOKEN not in done.stdout + done.stderr


def test_a_token_that_the_hub_does_not_know_is_refused_first(config: RunConfig, hub: FakeHub) -> None:
    """The error names the hub, not the token."""
    done = pushed(config, "--push-to-hub", "me/traces", HF_TOKEN="hf_other", HF_ENDPOINT=hub.url)
    assert done.returncode == 2
    assert f"whoami failed at {hub.url}" in done.stderr
    assert "hf_other" not in done.stdout + done.stderr
    assert not config.exports_path.exists()


def test_an_export_is_uploaded_without_the_addresses_of_this_machine(config: RunConfig, hub: FakeHub) -> None:
    """Data, card and manifest are; run.yaml isn't. A new repository is private."""
    done = pushed(config, "--push-to-hub", "me/traces", "--json", HF_TOKEN=TOKEN, HF_ENDPOINT=hub.url)
    assert done.returncode == 0, done.stderr
    assert sorted(hub.files) == [
        "README.md",
        "data/train-00000.parquet",
        "data/validation-00000.parquet",
        "manifest.json",
    ]
    here = config.exports_path / "parquet"
    assert hub.files["README.md"] == (here / "README.md").read_bytes()
    assert hub.files["data/train-00000.parquet"] == (here / "data/train-00000.parquet").read_bytes()
    assert (hub.created["name"], hub.created["type"]) == ("traces", "dataset")
    assert hub.created.get("private") is True or hub.created.get("visibility") == "private"
    assert json.loads(done.stdout)["pushed_to"] == f"{hub.url}/datasets/me/traces"
    for content in hub.files.values():
        assert str(config.run_path.parent).encode() not in content
    assert TOKEN not in done.stdout + done.stderr


def test_a_repository_can_be_made_public(config: RunConfig, hub: FakeHub) -> None:
    """Only when it is asked for."""
    done = pushed(
        config,
        "--format",
        "openai",
        "--push-to-hub",
        "me/traces",
        "--public",
        HF_TOKEN=TOKEN,
        HF_ENDPOINT=hub.url,
    )
    assert done.returncode == 0, done.stderr
    assert hub.created.get("private") is False or hub.created.get("visibility") == "public"
    assert f"pushed to {hub.url}/datasets/me/traces" in done.stdout


def test_the_help_says_what_a_push_deletes() -> None:
    """Before somebody names a repository that has other data."""
    done = CliRunner().invoke(app, ["export", "--help"], terminal_width=100)
    told = " ".join(done.stdout.replace("│", " ").split())
    assert "files of data/ that the export doesn't have are deleted" in told


def test_a_push_that_the_hub_refuses_keeps_the_export(config: RunConfig, hub: FakeHub) -> None:
    """A token that may only read is told from one that isn't known, and the work isn't lost."""
    hub.writable = False
    done = pushed(config, "--push-to-hub", "me/traces", HF_TOKEN=TOKEN, HF_ENDPOINT=hub.url)
    assert done.returncode == 2
    assert f"failed at {hub.url}: 403 Forbidden" in done.stderr
    assert (config.exports_path / "parquet/manifest.json").exists()

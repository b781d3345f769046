"""A hub on this machine: it answers as the hub does where a model's file is asked for, whole or in part."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "c0ffee" + "0" * 34
RESOLVE = re.compile(r"/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<file>[^?]+)")
RANGE = re.compile(r"bytes=(\d+)-(\d+)")
PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Asked:
    """One request for a file: how, which, and the bytes it was for; None for all."""

    method: str
    file: str
    span: tuple[int, int] | None


class ModelHub(ThreadingHTTPServer):
    """One model, `org/model`, whose files are those of a directory; `org/gated` is there, but not for all."""

    def __init__(self, directory: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.directory = directory
        self.asked: list[Asked] = []
        self.to_break = 0
        """Range requests whose connection is broken after half of the bytes."""
        self.ranges = True

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is no error."""


class Handler(BaseHTTPRequestHandler):
    """Files of the model at `main` and at its commit."""

    protocol_version = "HTTP/1.1"
    server: ModelHub

    def do_HEAD(self) -> None:
        """Size, ETag and commit of a file."""
        self._answer(body=False)

    def do_GET(self) -> None:
        """A file, or a range of it."""
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        wanted = RESOLVE.fullmatch(self.path.partition("?")[0])
        if wanted is None or wanted["repo"] not in ("org/model", "org/gated"):
            return self._refuse(404, "RepoNotFound")
        if wanted["repo"] == "org/gated":
            return self._refuse(403, "GatedRepo")
        if wanted["revision"] not in ("main", COMMIT):
            return self._refuse(404, "RevisionNotFound")
        path = self.server.directory / wanted["file"]
        if not path.is_file():
            return self._refuse(404, "EntryNotFound")
        found = RANGE.fullmatch(self.headers.get("Range", "")) if self.server.ranges else None
        span = (int(found[1]), int(found[2]) + 1) if found else None
        self.server.asked.append(Asked("GET" if body else "HEAD", wanted["file"], span))
        return self._send(path, span, body=body)

    def _send(self, path: Path, span: tuple[int, int] | None, *, body: bool) -> None:
        size = path.stat().st_size
        low, high = span or (0, size)
        high = min(high, size)
        self.send_response(206 if span else 200)
        if span:
            self.send_header("Content-Range", f"bytes {low}-{high - 1}/{size}")
        self._headers(high - low, hashlib.sha1(str(path).encode()).hexdigest())
        if not body:
            return
        broken = span is not None and high - low > 1024 and self.server.to_break > 0
        if broken:
            self.server.to_break -= 1
            high = (low + high) // 2
        with path.open("rb") as file:
            file.seek(low)
            for at in range(low, high, PIECE_BYTES):
                self.wfile.write(file.read(min(PIECE_BYTES, high - at)))
        if broken:
            self.close_connection = True

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self._headers(0, "none")

    def _headers(self, length: int, etag: str) -> None:
        self.send_header("ETag", f'"{etag}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing on stderr."""


@contextmanager
def model_hub(directory: Path) -> Iterator[ModelHub]:
    """Such a hub while the block runs."""
    server = ModelHub(directory)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

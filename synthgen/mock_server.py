"""A server in the shape of vLLM's OpenAI API that queues, slows down and fails as it is told to.

For tests, and for rehearsing a run before it costs GPU hours: what becomes of a corpus when the
server is away for ten minutes, resets connections, or sends replies without ids. Nothing is computed:
a reply follows from the seed and the request, so that a finished corpus can be checked for lost and
doubled rows. Names, errors and metrics are those of vLLM 0.32.

    with MockServer(MockConfig(clock_speed=60, faults=Preset.outage.rules)) as server:
        ...  # server.base_url, server.counters

All seconds of the configuration are the server's own: with `clock_speed=60` an outage of ten minutes
takes ten real seconds, and `Retry-After` is shortened alike.

Faults, by the names under which they are counted (`synthgen.mock.faults` has one type for each):

| fault | on the wire | seen in the wild as |
| --- | --- | --- |
| `too-many-requests` | 429 with `Retry-After` | a gateway's rate limit |
| `internal-error-once` | 500 for the first try of a body, then its reply | an engine step that failed |
| `unavailable` | 503; certain for all requests of a window: /health too | a gateway without a backend |
| `restart` | window only: open connections are reset, new ones refused | ten minutes of loading weights |
| `reset` | the connection is reset instead of an answer | a killed worker, a NAT that forgot |
| `half-open` | nothing, ever; certain for all of a window: every path | a hung engine behind a live socket |
| `slow-headers` | the reply, `seconds` late | a long prefill before the request |
| `cut-short` | the first part of the body, then the connection closes | a proxy's time limit |
| `invalid-json` | a complete body that isn't JSON; in a stream each event | a proxy that rewrites bodies |
| `invalid-utf8` | JSON with bytes in its text that aren't UTF-8 | a tokenizer that splits characters |
| `missing-token-ids` | no token ids though they were asked for | vLLM with some parsers (vllm#28246) |
| `wrong-usage` | `usage` counts `off_by_tokens` more or fewer than the ids | end-of-turn drift (vllm#28185) |
| `null-content` | no `</think>`, all text in `reasoning`, `content` null, `stop` | vllm-ascend#9361 |
| `exclamations` | every token is `!` | NaN logits (vllm#42426) |
| `unknown-finish` | a `finish_reason` outside OpenAI's | vLLM's `abort` |
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from types import TracebackType
from typing import Self

from aiohttp import web

from synthgen.corpus.console import console
from synthgen.errors import ConfigError
from synthgen.mock.config import MockConfig, MockCounters, body_hash
from synthgen.mock.distributions import Fixed, Lognormal, Uniform, parse_distribution
from synthgen.mock.endpoints import Endpoints, reset
from synthgen.mock.faults import Restart, Rule
from synthgen.mock.presets import Preset

__all__ = [
    "Fixed",
    "Lognormal",
    "MockConfig",
    "MockCounters",
    "MockServer",
    "Preset",
    "Rule",
    "Uniform",
    "body_hash",
    "parse_distribution",
    "serve",
]

# As uvicorn, under which vLLM runs: a client that reuses a socket at that moment loses its request.
KEEPALIVE_S = 5.0


class MockServer:
    """A mock server on a thread of its own, from `start` to `stop` or for a `with` block."""

    def __init__(self, config: MockConfig | None = None) -> None:
        self.config = config or MockConfig()
        self.counters = MockCounters()
        self.port = self.config.port
        """Where it listens; known once it has started."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="mock-server", daemon=True)
        self._restarts: asyncio.Task[None] | None = None

    @property
    def root_url(self) -> str:
        """Where /health and /metrics are."""
        return f"http://{self.config.host}:{self.port}"

    @property
    def base_url(self) -> str:
        """What `server.base_url` of a run takes."""
        return f"{self.root_url}/v1"

    @property
    def now_s(self) -> float:
        """Seconds since its start, by its clock."""
        return self._endpoints.clock.now_s

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Listen. Raises ConfigError when it can't at that address."""
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()
        except OSError as error:
            self.stop()
            raise ConfigError(
                f"the mock server can't listen at {self.config.host}:{self.config.port}: {error.strerror}; "
                f"choose another port, or 0 for a free one"
            ) from error

    def stop(self) -> None:
        """Reset what is open and end the thread."""
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> None:
        self._endpoints = Endpoints(self.config, self.counters)
        self._runner = web.AppRunner(
            self._endpoints.application(),
            access_log=None,
            handler_cancellation=True,  # a client that goes away frees its place, as in vLLM
            keepalive_timeout=KEEPALIVE_S,
            shutdown_timeout=0.0,
        )
        await self._runner.setup()
        await self._listen()
        self.port = int(self._runner.addresses[0][1])
        self._restarts = asyncio.create_task(self._restart_by_rule())

    async def _stop(self) -> None:
        if self._restarts is not None:
            self._restarts.cancel()
            await asyncio.wait([self._restarts])
        self._reset_connections()
        await self._runner.cleanup()

    async def _listen(self) -> None:
        self._site = web.TCPSite(self._runner, self.config.host, self.port, backlog=4096)
        await self._site.start()

    async def _restart_by_rule(self) -> None:
        windows = [rule for rule in self.config.faults if isinstance(rule.fault, Restart)]
        for rule in sorted(windows, key=lambda rule: rule.from_s):
            await self._endpoints.clock.sleep_until(rule.from_s)
            self.counters.faults[rule.fault.kind] += 1
            await self._be_away_until(rule.to_s)

    async def _be_away_until(self, moment_s: float) -> None:
        await self._site.stop()
        self._reset_connections()
        self._endpoints.restart()
        # Bound but not listening: the port refuses connections and nobody else can take it.
        with socket.socket() as placeholder:
            placeholder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            placeholder.bind((self.config.host, self.port))
            await self._endpoints.clock.sleep_until(moment_s)
        await self._listen()

    def _reset_connections(self) -> None:
        server = self._runner.server
        for connection in server.connections if server is not None else ():
            reset(connection.transport)


def serve(config: MockConfig) -> None:
    """Run a mock server until Ctrl-C. Raises ConfigError when it can't listen."""
    with MockServer(config) as server, contextlib.suppress(KeyboardInterrupt):
        console.print(f"{config.model} is at {server.base_url}, Ctrl-C stops it", soft_wrap=True)
        threading.Event().wait()
    counters = server.counters
    faults = ", ".join(f"{count} {kind}" for kind, count in sorted(counters.faults.items()))
    console.print(
        f"{counters.requests.total()} requests, {counters.served.total()} served whole, at most "
        f"{counters.most_in_flight} in flight; faults: {faults or 'none'}",
        soft_wrap=True,
    )

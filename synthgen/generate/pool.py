"""Several servers as one: each request goes where most room is, a dead server is set aside.

A server is dead when it refuses connections or answers 502/503 while its health check fails. Then no
retry is spent: its requests are given to the others, or, when there are none, everything waits and
goes on by itself once it is back. A server that comes back as another one is refused.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from synthgen.client.api import ApiClient
from synthgen.client.control import Control, Fingerprint
from synthgen.client.metrics import ServerLoad
from synthgen.client.outage import PROBE_S, is_back, stayed_away
from synthgen.generate.limiter import Limit, Look, next_limit

LOOK_S = 0.5


@dataclass(slots=True, kw_only=True, eq=False)
class Endpoint:
    """One server, and what is known of it."""

    client: ApiClient
    control: Control
    limit: Limit
    in_flight: int = 0
    up: bool = True
    load: ServerLoad | None = None
    tokens: int = 0
    """Output tokens received from it."""
    replies: int = 0
    _looked_at: float = field(default_factory=time.monotonic)
    _tokens_then: int = 0
    _replies_then: int = 0
    _refused_then: int = 0

    @property
    def room(self) -> float:
        """Part of its limit that is free; less what waits in its own queue."""
        waiting = self.load.waiting if self.load else 0.0
        return 1.0 - (self.in_flight + waiting) / self.limit.value

    def look(self, load: ServerLoad | None) -> Look:
        """What happened since the last look, which this one replaces."""
        now = time.monotonic()
        before, self.load = self.load, load
        look = Look(
            in_flight=self.in_flight,
            refused=self.client.refused - self._refused_then,
            seconds=now - self._looked_at,
            replies=self.replies - self._replies_then,
            tokens=self.tokens - self._tokens_then,
            load=load,
            preempted=load.preemptions - before.preemptions if load and before else 0.0,
        )
        self._looked_at, self._tokens_then, self._replies_then = now, self.tokens, self.replies
        self._refused_then = self.client.refused
        return look


class Pool:
    """The servers of a run. `watch` must run beside the requests."""

    def __init__(
        self,
        endpoints: list[Endpoint],
        *,
        automatic: bool,
        fingerprint: Fingerprint,
        down_wait_s: float,
        require_alive: Callable[[], None],
    ) -> None:
        self.endpoints = endpoints
        self._automatic = automatic
        self._fingerprint = fingerprint
        self._down_wait_s = down_wait_s
        self._require_alive = require_alive
        self._room = asyncio.Condition()
        self._closed = False
        self.down_since: float | None = None
        self.seconds_down = 0.0
        """Time in which no server was there."""

    @property
    def in_flight(self) -> int:
        """Requests in flight on all servers."""
        return sum(endpoint.in_flight for endpoint in self.endpoints)

    @property
    def limit(self) -> int:
        """Requests that may be in flight now."""
        return sum(endpoint.limit.value for endpoint in self.endpoints if endpoint.up)

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[Endpoint | None]:
        """Wait for room on a server and hold it for the block; None once the pool is closed.

        Raises ServerUnreachable when no server has been there for longer than generate.down_wait_s.
        """
        endpoint = await self._acquire()
        try:
            yield endpoint
        finally:
            if endpoint is not None:
                endpoint.in_flight -= 1
                async with self._room:
                    self._room.notify()

    async def _acquire(self) -> Endpoint | None:
        async with self._room:
            while not self._closed:
                endpoint = self._freest()
                if endpoint is not None:
                    endpoint.in_flight += 1
                    return endpoint
                if self._given_up():
                    urls = [endpoint.control.base_url for endpoint in self.endpoints]
                    raise stayed_away(self._down_wait_s, urls, "replies")
                await self._room.wait()
        return None

    def keeps(self, endpoint: Endpoint) -> bool:
        """Whether who holds a slot there may send once more without waiting for another."""
        return not self._closed and endpoint.up and endpoint.in_flight <= endpoint.limit.value

    def close(self) -> None:
        """Hand out no more room; who waits for some goes on without."""
        self._closed = True
        self._waking = asyncio.ensure_future(self._wake())

    async def _wake(self) -> None:
        async with self._room:
            self._room.notify_all()

    def set_aside(self, endpoint: Endpoint) -> None:
        """Send nothing to a server until it answers its health check again."""
        endpoint.up = False
        if self.down_since is None and not any(e.up for e in self.endpoints):
            self.down_since = time.monotonic()

    async def watch(self, seen: Callable[[], None]) -> None:
        """Adjust limits and probe servers that are set aside, until cancelled; `seen` follows each look.

        Raises ServerMismatch when a server comes back as another one, ServerStartError when it was ours
        and has died.
        """
        probed = 0.0
        while True:
            await asyncio.sleep(LOOK_S)
            due = time.monotonic() - probed >= PROBE_S
            if due:
                probed = time.monotonic()
            await asyncio.gather(*(self._look_at(endpoint, probe=due) for endpoint in self.endpoints))
            await self._wake()
            seen()

    async def _look_at(self, endpoint: Endpoint, *, probe: bool) -> None:
        if endpoint.up:
            look = endpoint.look(await endpoint.client.load())
            if self._automatic:
                endpoint.limit = next_limit(endpoint.limit, look)
        elif probe:
            self._require_alive()
            await self._probe(endpoint)

    async def _probe(self, endpoint: Endpoint) -> None:
        if not await is_back(endpoint.client, endpoint.control, self._fingerprint):
            return
        endpoint.up = True
        if self.down_since is not None:
            self.seconds_down += time.monotonic() - self.down_since
            self.down_since = None

    def _freest(self) -> Endpoint | None:
        free = [e for e in self.endpoints if e.up and e.in_flight < e.limit.value]
        return max(free, key=lambda endpoint: endpoint.room, default=None)

    def _given_up(self) -> bool:
        return self.down_since is not None and time.monotonic() - self.down_since > self._down_wait_s

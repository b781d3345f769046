"""Prefills that outlast their server: one that is gone is waited for, as `synthgen generate` waits."""

from __future__ import annotations

import asyncio
import time

from eagle.prefill import Prefill
from eagle.states import SampleStates
from synthgen.client.control import Control, Fingerprint, api_key
from synthgen.client.launch import Served
from synthgen.client.outage import MOST_SERVERS_LOST, PROBE_S, PROBE_TIMEOUT_S, is_back, stayed_away
from synthgen.corpus.console import console
from synthgen.corpus.records import FailureKind
from synthgen.corpus.samples import Sample
from synthgen.errors import RequestFailed, ServerError, ServerUnreachable


class Patience:
    """A source of states whose server may go away and come back. All samples wait for it together."""

    def __init__(self, source: Prefill, servers: Served, expected: Fingerprint) -> None:
        self._source = source
        self._servers = servers
        self._expected = expected
        key = api_key(source.config.server.api_key_env)
        self._control = Control(source.base_url, key, PROBE_TIMEOUT_S)
        self._waiting = asyncio.Lock()
        self._outages = 0
        self._ended_by: ServerError | None = None
        self.seconds_down = 0.0
        """Time in which the server was not there."""

    async def states_of(self, sample: Sample) -> SampleStates:
        """The states of a sample. Raises as Prefill, less what waiting mends.

        ServerUnreachable when the server has been gone for longer than generate.down_wait_s, ServerMismatch
        when it comes back as another one, ServerStartError when it was ours and has died.
        """
        for _ in range(MOST_SERVERS_LOST):
            outages = self._outages
            try:
                return await self._source.states_of(sample)
            except ServerUnreachable as error:
                lost = error
            async with self._waiting:
                if self._outages == outages:  # nobody else has waited since
                    await self._outlast(lost)
        message = f"{lost}; {MOST_SERVERS_LOST} servers went away while they had this sample"
        raise RequestFailed(message, kind=FailureKind.TRANSPORT, attempts=MOST_SERVERS_LOST)

    async def _outlast(self, lost: ServerUnreachable) -> None:
        if self._ended_by is not None:
            raise self._ended_by
        began = time.monotonic()
        try:
            await self._until_back(lost, began)
        except ServerError as error:
            self._ended_by = error
            raise
        self._outages += 1
        self.seconds_down += time.monotonic() - began

    async def _until_back(self, lost: ServerUnreachable, began: float) -> None:
        self._servers.require_alive()
        url, most = self._source.base_url, self._source.config.generate.down_wait_s
        console.print(f"{lost}; waiting for it, {most:.0f} s at most (generate.down_wait_s)", soft_wrap=True)
        while not await is_back(self._source.client, self._control, self._expected):
            if time.monotonic() - began > most:
                raise stayed_away(most, [url], "states")
            await asyncio.sleep(PROBE_S)
            self._servers.require_alive()
        console.print(f"{url} is back after {time.monotonic() - began:.0f} s", soft_wrap=True)

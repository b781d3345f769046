"""The servers that are measured: what each is, and what it has counted.

Either they are started here, or they run already: then nothing is started and nothing is known of them but
what they answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from synthgen.client.control import Control
from synthgen.client.metrics import ServerCounts, SpecCounters
from synthgen.errors import ServerError, ServerMismatch

BASE, DRAFTED, UNTRAINED = "base", "drafted", "untrained"
SETTLE_S = 2.0
"""The counters of a reply's last step may appear a moment after the reply."""
LOOK_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server under measurement."""

    name: str
    control: Control
    require_alive: Callable[[], None]
    """Raises what a server of ours said when it died; others may come back."""

    @property
    def url(self) -> str:
        """Its base URL."""
        return self.control.base_url

    async def counts(self) -> ServerCounts:
        """What it has counted so far. Raises ServerMismatch when it shows no counters."""
        return await asyncio.to_thread(self.control.counts)

    async def settled_since(self, before: ServerCounts, output_tokens: int) -> ServerCounts:
        """What it counted since, once it has `output_tokens`. Raises ServerError after a restart."""
        give_up = time.monotonic() + SETTLE_S
        while (found := (await self.counts()).since(before)).output_tokens < output_tokens:
            if time.monotonic() > give_up:
                break
            await asyncio.sleep(LOOK_S)
        return found


def require_drafting(server: Server, counts: ServerCounts) -> SpecCounters:
    """Its spec-decode counters. Raises ServerMismatch when it runs without a draft."""
    if counts.spec is None:
        raise ServerMismatch(
            f"{server.url} ({server.name}) is no server with a draft: its /metrics has no vllm:spec_decode "
            f"counters. Start it with --speculative-config, or give the URL of one that was"
        )
    return counts.spec


def require_drafts(server: Server, counted: SpecCounters, prompts: int) -> None:
    """Raise ServerError when a server drafted nothing for the replies that it gave."""
    if not counted.drafts:
        raise ServerError(
            f"{server.url} ({server.name}) counted no drafts for {prompts} replies: they were too short to "
            f"draft for, or its draft is switched off (num_speculative_tokens_per_batch_size)"
        )

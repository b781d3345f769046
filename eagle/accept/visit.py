"""What is done with a group of servers that are up: traps, speed side by side, then acceptance."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from eagle.accept.asker import Answer, Asker
from eagle.accept.live import Counted, count
from eagle.accept.servers import BASE, DRAFTED, Server, require_drafting
from eagle.accept.speed import Rounds, take_round
from eagle.accept.traps import (
    another_corpus,
    different_prompts,
    other_prefix,
    other_requests,
    prefix_caching,
)
from synthgen.client.control import Markers
from synthgen.corpus.config import RunConfig
from synthgen.corpus.console import Bar
from synthgen.corpus.records import SeedPrompt


@dataclass(slots=True, kw_only=True)
class Measured:
    """What was seen of the servers so far, by their names."""

    prompts: Sequence[SeedPrompt]
    singles: Sequence[SeedPrompt]
    rounds: dict[int, Rounds] = field(default_factory=dict)
    """By concurrency."""
    counted: dict[str, Counted] = field(default_factory=dict)
    """Of the drafted ones."""
    first: dict[str, Answer] = field(default_factory=dict)
    """The reply that warmed each server up."""
    markers: Markers | None = None
    """The tokens that bound thinking and tool calls."""
    warnings: list[str] = field(default_factory=list)


async def visit(config: RunConfig, servers: Mapping[str, Server], measured: Measured, progress: Bar) -> None:
    """Measure a group of servers that are up.

    Raises ServerMismatch when one isn't what it should be, ServerError when one was restarted meanwhile,
    ServerUnreachable when one is gone.
    """
    asker = Asker(config=config, progress=progress)
    for server in servers.values():
        await _begin(config, asker, server, measured)
    if BASE in measured.first and DRAFTED in measured.first and {BASE, DRAFTED} & servers.keys():
        measured.warnings += different_prompts(measured.first[DRAFTED], measured.first[BASE])
    timed = [servers[name] for name in (BASE, DRAFTED) if name in servers]
    for concurrency in config.accept.concurrencies if timed else ():
        for number in range(config.accept.rounds):
            taken = await take_round(asker, timed, measured.singles, concurrency, number)
            for name, one in taken.items():
                measured.rounds.setdefault(concurrency, {}).setdefault(name, []).append(one)
    for name, server in servers.items():
        if name != BASE:
            counted = await count(asker, server, measured.prompts, config.accept.concurrency)
            measured.counted[name] = counted
            measured.warnings += other_requests(server, counted)


async def _begin(config: RunConfig, asker: Asker, server: Server, measured: Measured) -> None:
    """Look at a server, and let it answer once, before anything is measured."""
    counts = await server.counts()
    if server.name != BASE:
        require_drafting(server, counts)
    measured.warnings += prefix_caching(server, counts)
    measured.warnings += await asyncio.to_thread(another_corpus, config, server)
    if measured.markers is None:
        measured.markers = await asyncio.to_thread(server.control.markers, config.verifier)
    prompt = measured.singles[0]
    answer = await asker.warm_up(server.url, prompt)
    measured.first[server.name] = answer
    measured.warnings += await asyncio.to_thread(other_prefix, config, server, prompt, answer)

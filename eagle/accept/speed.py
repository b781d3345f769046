"""The same prompts with and without the draft, at several concurrencies: speed, and whether replies change.

Servers take turns, prompt by prompt one at a time and round by round above that, so that a slow spell of the
machine falls on all of them.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from eagle.accept.asker import Answer, Asker
from eagle.accept.bootstrap import percentile
from eagle.accept.report import AtConcurrency, Speed
from eagle.accept.servers import BASE, DRAFTED, Server
from synthgen.client.metrics import ServerCounts
from synthgen.corpus.records import SeedPrompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One pass over the prompts on one server."""

    replies: tuple[tuple[int, ...], ...]
    request_seconds: tuple[float, ...]
    seconds: float
    """In which the server was at work on it."""
    first_token_s: float | None

    @property
    def tokens_per_s(self) -> float:
        """Output tokens a second."""
        return sum(map(len, self.replies)) / self.seconds


Rounds = dict[str, list[Round]]
"""Of each server by its name."""


async def take_round(
    asker: Asker, servers: Sequence[Server], prompts: Sequence[SeedPrompt], concurrency: int, number: int
) -> dict[str, Round]:
    """One round of every server, each first in turn. Raises ServerError when one was restarted meanwhile."""
    turns = servers if number % 2 else servers[::-1]
    if concurrency == 1:
        return await _one_at_a_time(asker, turns, prompts)
    return {server.name: await _at_once(asker, server, prompts, concurrency) for server in turns}


async def _one_at_a_time(
    asker: Asker, servers: Sequence[Server], prompts: Sequence[SeedPrompt]
) -> dict[str, Round]:
    before = {server.name: await server.counts() for server in servers}
    answers: dict[str, list[Answer]] = {server.name: [] for server in servers}
    async with contextlib.AsyncExitStack() as stack:
        clients = {s.name: await stack.enter_async_context(asker.client(s.url, 1)) for s in servers}
        for number, prompt in enumerate(prompts):
            for name in list(clients)[:: 1 if number % 2 else -1]:
                answers[name].append(await asker.ask(clients[name], prompt))
    rounds = {}
    for server in servers:
        taken = answers[server.name]
        seconds = sum(answer.seconds for answer in taken)
        rounds[server.name] = await _round(server, taken, seconds, before[server.name])
    return rounds


async def _at_once(asker: Asker, server: Server, prompts: Sequence[SeedPrompt], concurrency: int) -> Round:
    before = await server.counts()
    began = time.perf_counter()
    answers = await asker.ask_all(server.url, prompts, concurrency=concurrency)
    return await _round(server, answers, time.perf_counter() - began, before)


async def _round(server: Server, answers: Sequence[Answer], seconds: float, before: ServerCounts) -> Round:
    counted = await server.settled_since(before, sum(len(answer.ids) for answer in answers))
    return Round(
        replies=tuple(answer.ids for answer in answers),
        request_seconds=tuple(answer.seconds for answer in answers),
        seconds=seconds,
        first_token_s=counted.first_token_mean_s,
    )


def compare(rounds: Mapping[int, Rounds]) -> tuple[AtConcurrency, ...]:
    """Figures of each concurrency from 1 up; those against the undrafted server only where there was one."""
    reference = rounds[1][BASE][0].replies if BASE in rounds[1] else None
    return tuple(_compared(concurrency, found, reference) for concurrency, found in rounds.items())


def _compared(
    concurrency: int, rounds: Rounds, reference: tuple[tuple[int, ...], ...] | None
) -> AtConcurrency:
    drafted, base = rounds[DRAFTED], rounds.get(BASE, [])
    ratios = tuple(d.tokens_per_s / b.tokens_per_s for d, b in zip(drafted, base, strict=False))
    others = base[1:] if concurrency == 1 else base  # the reference isn't compared with itself
    same, compared = _same(drafted, reference)
    same_base, compared_base = _same(others, reference)
    return AtConcurrency(
        concurrency=concurrency,
        drafted=speed_of(drafted),
        undrafted=speed_of(base) if base else None,
        speedup=statistics.median(ratios) if ratios else None,
        speedup_by_round=ratios,
        same_replies=same,
        compared_replies=compared,
        same_undrafted=same_base,
        compared_undrafted=compared_base,
    )


def _same(rounds: Sequence[Round], reference: tuple[tuple[int, ...], ...] | None) -> tuple[int, int]:
    """How many replies are the reference's, of how many."""
    if reference is None:
        return 0, 0
    pairs = [pair for one in rounds for pair in zip(one.replies, reference, strict=True)]
    return sum(found == expected for found, expected in pairs), len(pairs)


def speed_of(rounds: Sequence[Round]) -> Speed:
    """Figures of a server's rounds."""
    seconds = sorted(itertools.chain.from_iterable(one.request_seconds for one in rounds))
    first = [one.first_token_s for one in rounds if one.first_token_s is not None]
    return Speed(
        tokens_per_s=statistics.median(one.tokens_per_s for one in rounds),
        seconds_mean=statistics.fmean(seconds),
        seconds_p95=percentile(seconds, 0.95),
        first_token_s=statistics.fmean(first) if first else None,
    )

"""Keep the servers busy and every reply safe: prompts in, traces and failures out.

Workers take keys from the schedule, wait for room on a server, and free their slot only when the record
is durable. What a run still owes is what its journal lacks, so resuming is running again. A server that
is gone costs nobody a try: its requests go back to the schedule and wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from synthgen.client.api import chat_body, client_for
from synthgen.client.control import Control
from synthgen.client.launch import Served
from synthgen.corpus.config import RunConfig
from synthgen.corpus.journal import Journal
from synthgen.corpus.records import Failure, FailureKind, Finish, SeedPrompt, Timing
from synthgen.errors import RequestFailed, ServerUnreachable, first_of
from synthgen.interrupts import draining
from synthgen.limiter import Limit, first_limit
from synthgen.panel import Panel
from synthgen.pool import Endpoint, Pool
from synthgen.resume import Held
from synthgen.schedule import Key, LengthModel, Schedule
from synthgen.tally import Tally
from synthgen.traces import ServerFacts, sampling_of, thinking_length, trace_of

MOST_SERVERS_LOST = 5
"""A row that a server went away with this often is a failure: it may be what kills it."""
TAIL_ROUNDS = 4
"""The last rows, this many times what is in flight, go out longest first."""
FIRST_LENGTH_GUESS = 0.5
"""Expected length of a reply before any is known, as a part of max_tokens."""


def wanted_keys(prompts: Iterable[SeedPrompt], samples_per_prompt: int) -> Iterator[Key]:
    """Every (prompt, sample index) of a run."""
    for prompt in prompts:
        for index in range(samples_per_prompt):
            yield prompt, index


@dataclass(frozen=True, slots=True, kw_only=True)
class Journals:
    """Where a run's records go; both are open."""

    traces: Journal
    failures: Journal


async def send_all(
    config: RunConfig,
    servers: Served,
    key: str | None,
    todo: list[Key],
    server: ServerFacts,
    journals: Journals,
    ended: Held,
) -> Tally:
    """Send `todo` and journal what comes back; return the tally of this call. `ended` grows with each row.

    Raises ServerUnreachable when no server is there for too long, and KeyboardInterrupt after Ctrl-C or
    SIGTERM: the first waits for what is in flight, the second doesn't. What was received is in the journal.
    """
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(journals.traces.writing())
        await stack.enter_async_context(journals.failures.writing())
        endpoints = [
            await _endpoint(stack, config, url, key, todo) for url in dict.fromkeys(servers.base_urls)
        ]
        pool = Pool(
            endpoints,
            automatic=config.generate.concurrency == "auto",
            model=config.verifier.served_name,
            fingerprint=server.fingerprint,
            down_wait_s=config.generate.down_wait_s,
            require_alive=servers.require_alive,
        )
        lengths = LengthModel(config.generate.max_tokens * FIRST_LENGTH_GUESS)
        sender = _Sender(
            config=config,
            pool=pool,
            server=server,
            journals=journals,
            ended=ended,
            lengths=lengths,
            schedule=Schedule(todo, lengths),
            tally=Tally(wanted=len(todo)),
        )
        with Panel(sender.tally, pool, config.generate.metrics_port) as panel, draining(sender.stop):
            await _run(sender, panel)
        sender.tally.seconds_down = pool.seconds_down
        sender.tally.retried = sum(endpoint.client.retried for endpoint in endpoints)
    return sender.tally


async def _endpoint(
    stack: contextlib.AsyncExitStack, config: RunConfig, url: str, key: str | None, todo: list[Key]
) -> Endpoint:
    settings = config.generate
    fixed = settings.concurrency
    limit = (
        first_limit(settings.max_concurrency)
        if fixed == "auto"
        else Limit(value=int(fixed), ceiling=int(fixed))
    )
    longest = max((sampling_of(config, prompt).max_tokens for prompt, _ in todo), default=settings.max_tokens)
    client = client_for(config, url, concurrency=min(limit.ceiling, len(todo)), max_tokens=longest)
    return Endpoint(client=await stack.enter_async_context(client), control=Control(url, key), limit=limit)


async def _run(sender: _Sender, panel: Panel) -> None:
    """Workers until the schedule is empty, and the watch beside them."""
    workers = min(sum(e.limit.ceiling for e in sender.pool.endpoints), len(sender.schedule))
    try:
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(sender.pool.watch(lambda: sender.look(panel)))
            async with asyncio.TaskGroup() as senders:
                for _ in range(workers):
                    senders.create_task(sender.drain())
            watch.cancel()
    except BaseExceptionGroup as errors:
        raise first_of(errors) from errors


@dataclass(frozen=True, slots=True, kw_only=True)
class _Received:
    """What is kept of a trace while it is written: a thousand whole ones would fill the memory."""

    on_disk: asyncio.Future[None]
    thinking_tokens: int
    response_tokens: int
    finish: Finish

    @property
    def tokens(self) -> int:
        return self.thinking_tokens + self.response_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sender:
    """What all workers share."""

    config: RunConfig
    pool: Pool
    server: ServerFacts
    journals: Journals
    ended: Held
    lengths: LengthModel
    schedule: Schedule
    tally: Tally
    in_flight: Counter[str] = field(default_factory=Counter)
    """Requests in flight by domain."""
    given_back: Counter[tuple[str, int]] = field(default_factory=Counter)
    """How often a server went away with a row."""

    async def drain(self) -> None:
        """Send until nothing is left."""
        while len(self.schedule):
            async with self.pool.slot() as endpoint:
                key = self.schedule.take(tail=TAIL_ROUNDS * self.pool.limit)
                if endpoint is None or key is None:
                    return
                self.in_flight[key[0].domain] += 1
                try:
                    await self._send(endpoint, *key)
                finally:
                    self.in_flight[key[0].domain] -= 1

    def stop(self) -> None:
        """Send nothing more; what is in flight comes back."""
        self.schedule.drop()
        self.pool.close()
        self.tally.stopping = True

    async def _send(self, endpoint: Endpoint, prompt: SeedPrompt, index: int) -> None:
        try:
            received = await self._receive(endpoint, prompt, index)
        except ServerUnreachable as error:
            self.pool.set_aside(endpoint)
            self.given_back[prompt.id, index] += 1
            if self.given_back[prompt.id, index] < MOST_SERVERS_LOST:
                self.schedule.give_back((prompt, index))
            else:
                lost = f"{error}; {MOST_SERVERS_LOST} servers went away while they had this prompt"
                gone = RequestFailed(lost, kind=FailureKind.TRANSPORT, attempts=MOST_SERVERS_LOST)
                await self._record_failure(prompt, index, gone)
        except RequestFailed as error:
            await self._record_failure(prompt, index, error)
        else:
            await received.on_disk
            counts = received.thinking_tokens, received.response_tokens, received.finish
            self.tally.add(*counts)
            self.ended.add_trace((prompt.id, index), *counts)
            self.lengths.observe(prompt.domain, received.tokens)
            endpoint.tokens += received.tokens

    async def _receive(self, endpoint: Endpoint, prompt: SeedPrompt, index: int) -> _Received:
        """Ask for a row's reply and queue its trace for the disk, where it goes without being held here."""
        sampling = sampling_of(self.config, prompt)
        body = chat_body(
            prompt, self.config.verifier.served_name, sampling, stream=self.config.generate.stream
        )
        started_at = time.time()
        reply, attempts = await endpoint.client.chat(body)
        timing = Timing(started_at=started_at, seconds=time.time() - started_at)
        trace = trace_of(prompt, index, reply, sampling, self.server, attempts, timing)
        length = reply.usage.completion_tokens  # as many as there are ids, or it were no trace
        thinking = thinking_length(sampling.thinking, trace.think_end, trace.tool_start, length)
        return _Received(
            on_disk=self.journals.traces.put(trace),
            thinking_tokens=thinking,
            response_tokens=length - thinking,
            finish=trace.finish,
        )

    async def _record_failure(self, prompt: SeedPrompt, index: int, error: RequestFailed) -> None:
        failure = Failure(
            seed_id=prompt.id,
            sample_index=index,
            kind=FailureKind(error.kind),
            message=str(error),
            attempts=error.attempts,
        )
        await self.journals.failures.append(failure)
        self.tally.add_failure(failure)
        self.ended.add_failure(failure.key)

    def look(self, panel: Panel) -> None:
        """Note how busy the servers are, and show it."""
        self.tally.look(
            in_flight=self.pool.in_flight,
            limit=self.pool.limit,
            retried=sum(endpoint.client.retried for endpoint in self.pool.endpoints),
            tokens_left=self.schedule.tokens_left(self.in_flight),
        )
        panel.show()

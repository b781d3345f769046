"""Keep the servers busy and every reply safe: prompts in, traces and failures out.

Workers take keys from the schedule, wait for room on a server, and free their slot only when the record
is durable. What a run still owes is what its journal lacks, so resuming is running again. A server that
is gone costs nobody a try: its requests go back to the schedule and wait.

A row is a conversation of one turn or more. Its next turn goes out when the reply before is durable, in
the same slot as long as that server may have it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

from synthgen.client.api import client_for
from synthgen.client.bodies import chat_body
from synthgen.client.control import Control
from synthgen.client.descriptors import require_descriptors
from synthgen.client.launch import Served
from synthgen.client.outage import MOST_SERVERS_LOST, PROBE_TIMEOUT_S
from synthgen.corpus.config import RunConfig
from synthgen.corpus.journal import Journal
from synthgen.corpus.records import Failure, FailureKind, Finish, SeedPrompt, Timing
from synthgen.corpus.samples import thinking_length
from synthgen.errors import RequestFailed, ServerError, ServerUnreachable, first_of
from synthgen.generate.conversation import Open, next_prompt, open_of
from synthgen.generate.interrupts import draining
from synthgen.generate.limiter import Limit, first_limit
from synthgen.generate.panel import Panel
from synthgen.generate.pool import LOOK_S, Endpoint, Pool
from synthgen.generate.resume import Held, RowKey
from synthgen.generate.schedule import Key, LengthModel, Schedule
from synthgen.generate.tally import Tally
from synthgen.generate.traces import ServerFacts, sampling_of, trace_of

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
    rows: Held,
    tally: Tally,
) -> None:
    """Send `todo` and journal what comes back; `rows` and `tally` grow with each reply.

    Raises ServerUnreachable when no server is there for too long, and KeyboardInterrupt after Ctrl-C or
    SIGTERM: the first waits for what is in flight, the second doesn't. What was received is in the journal.
    """
    async with contextlib.AsyncExitStack() as stack:
        require_descriptors(len(set(servers.base_urls)) * min(_ceiling(config), len(todo)))
        endpoints = [
            await _endpoint(stack, config, url, key, todo) for url in dict.fromkeys(servers.base_urls)
        ]
        pool = Pool(
            endpoints,
            automatic=config.generate.concurrency == "auto",
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
            rows=rows,
            lengths=lengths,
            schedule=Schedule(todo, lengths, rows.replies_left),
            tally=tally,
        )
        with draining(sender.stop):
            async with journals.traces.writing(), journals.failures.writing():
                with Panel(tally, pool, config.generate.metrics_port) as panel:
                    await _run(sender, panel)


async def _endpoint(
    stack: contextlib.AsyncExitStack, config: RunConfig, url: str, key: str | None, todo: list[Key]
) -> Endpoint:
    settings, ceiling = config.generate, _ceiling(config)
    limit = first_limit(ceiling) if settings.concurrency == "auto" else Limit(value=ceiling, ceiling=ceiling)
    longest = max((sampling_of(config, prompt).max_tokens for prompt, _ in todo), default=settings.max_tokens)
    client = client_for(config, url, concurrency=min(limit.ceiling, len(todo)), max_tokens=longest)
    return Endpoint(
        client=await stack.enter_async_context(client),
        control=Control(url, key, PROBE_TIMEOUT_S),
        limit=limit,
    )


def _ceiling(config: RunConfig) -> int:
    """Most requests in flight on one server."""
    settings = config.generate
    return settings.max_concurrency if settings.concurrency == "auto" else settings.concurrency


async def _run(sender: _Sender, panel: Panel) -> None:
    """Workers until the schedule is empty, and the watch beside them."""
    workers = min(sum(e.limit.ceiling for e in sender.pool.endpoints), len(sender.schedule))
    ended_by: list[ServerError] = []
    try:
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(_watch(sender, panel, ended_by))
            async with asyncio.TaskGroup() as senders:
                for _ in range(workers):
                    senders.create_task(sender.drain())
            watch.cancel()
    except BaseExceptionGroup as errors:
        raise first_of(errors) from errors
    sender.look(panel)
    if ended_by:
        raise ended_by[0]


async def _watch(sender: _Sender, panel: Panel, ended_by: list[ServerError]) -> None:
    """Look after the servers; when one is another than it was, what the others still write is waited for."""
    try:
        await sender.pool.watch(lambda: sender.look(panel))
    except ServerError as error:
        ended_by.append(error)
        sender.stop()
        while True:
            sender.look(panel)
            await asyncio.sleep(LOOK_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Received:
    """What is kept of a trace while it is written: a thousand whole ones would fill the memory."""

    on_disk: asyncio.Future[None]
    thinking_tokens: int
    response_tokens: int
    finish: Finish
    goes_on: Open | None
    """The conversation after it."""

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
    rows: Held
    lengths: LengthModel
    schedule: Schedule
    tally: Tally
    in_flight: dict[RowKey, Key] = field(default_factory=dict)
    given_back: Counter[RowKey] = field(default_factory=Counter)
    """How often a server went away with a row's next reply."""

    async def drain(self) -> None:
        """Send until nothing is left."""
        while len(self.schedule):
            async with self.pool.slot() as endpoint:
                key = self.schedule.take(tail=TAIL_ROUNDS * self.pool.limit)
                if endpoint is None or key is None:
                    return
                await self._go_on(endpoint, *key)

    def stop(self) -> None:
        """Send nothing more; what is in flight comes back."""
        self.schedule.drop()
        self.pool.close()
        self.tally.stopping = True

    async def _go_on(self, endpoint: Endpoint, prompt: SeedPrompt, index: int) -> None:
        """Send a row's turns, one after the other; those that can't go there now go back to the schedule."""
        self.in_flight[prompt.id, index] = prompt, index
        try:
            while await self._send(endpoint, prompt, index):
                if not self.pool.keeps(endpoint):
                    self.schedule.put_first((prompt, index))
                    break
        finally:
            del self.in_flight[prompt.id, index]

    async def _send(self, endpoint: Endpoint, prompt: SeedPrompt, index: int) -> bool:
        """Ask for a row's next reply and journal what comes; whether the conversation goes on after it."""
        try:
            received = await self._receive(endpoint, prompt, index)
        except ServerUnreachable as error:
            self.pool.set_aside(endpoint)
            await self._give_back(prompt, index, error)
        except RequestFailed as error:
            await self._record_failure(prompt, index, error)
        else:
            await received.on_disk
            self._count(endpoint, prompt, index, received)
            return received.goes_on is not None
        return False

    def _count(self, endpoint: Endpoint, prompt: SeedPrompt, index: int, received: _Received) -> None:
        """Take note of a reply that is on disk."""
        counts = received.thinking_tokens, received.response_tokens, received.finish
        self.tally.add(*counts, ends_row=received.goes_on is None)
        self.rows.add_trace((prompt.id, index), *counts, received.goes_on)
        self.given_back.pop((prompt.id, index), None)
        self.lengths.observe(prompt.domain, received.tokens)
        endpoint.tokens += received.tokens
        endpoint.replies += 1

    async def _give_back(self, prompt: SeedPrompt, index: int, error: ServerUnreachable) -> None:
        """Put a row back whose server went away; a failure when that happened too often."""
        self.given_back[prompt.id, index] += 1
        if self.given_back[prompt.id, index] < MOST_SERVERS_LOST:
            self.schedule.give_back((prompt, index))
            return
        lost = f"{error}; {MOST_SERVERS_LOST} servers went away while they had this prompt"
        gone = RequestFailed(lost, kind=FailureKind.TRANSPORT, attempts=MOST_SERVERS_LOST)
        await self._record_failure(prompt, index, gone)

    async def _receive(self, endpoint: Endpoint, prompt: SeedPrompt, index: int) -> _Received:
        """Ask for a row's next reply and queue its trace for the disk: it is not held until it is there."""
        asked = next_prompt(prompt, self.rows.open.get((prompt.id, index)))
        turn = len(prompt.turns) - len(asked.turns)
        sampling = sampling_of(self.config, prompt)
        settings, name = self.config.generate, self.config.verifier.served_name
        most = self.config.extract.max_seq_tokens if settings.capture else None
        body = chat_body(asked, name, sampling, stream=settings.stream, capture_tokens=most)
        started_at = time.time()
        reply, attempts = await endpoint.client.chat(body)
        timing = Timing(started_at=started_at, seconds=time.time() - started_at)
        try:
            trace = trace_of(asked, index, reply, sampling, self.server, attempts, timing, turn)
        except RequestFailed as error:
            error.reply = msgspec.json.encode(reply).decode()
            raise
        self.tally.uncaptured += settings.capture and trace.states_file is None
        length = reply.usage.completion_tokens  # as many as there are ids, or it were no trace
        thinking = thinking_length(sampling.thinking, trace.think_end, trace.tool_start, length)
        return _Received(
            on_disk=self.journals.traces.put(trace),
            thinking_tokens=thinking,
            response_tokens=length - thinking,
            finish=trace.finish,
            goes_on=open_of(trace),
        )

    async def _record_failure(self, prompt: SeedPrompt, index: int, error: RequestFailed) -> None:
        failure = Failure(
            seed_id=prompt.id,
            sample_index=index,
            turn=self.rows.next_turn((prompt.id, index)),
            kind=FailureKind(error.kind),
            message=str(error),
            attempts=error.attempts,
            reply=error.reply,
        )
        await self.journals.failures.append(failure)
        self.tally.add_failure(failure)
        self.rows.add_failure(failure.key)

    def look(self, panel: Panel) -> None:
        """Note how busy the servers are, and show it."""
        clients = [endpoint.client for endpoint in self.pool.endpoints]
        self.tally.look(
            in_flight=self.pool.in_flight,
            limit=self.pool.limit,
            retried=sum(client.retried for client in clients),
            replies_lost=sum(client.replies_lost for client in clients),
            seconds_down=self.pool.seconds_down,
            tokens_left=self.schedule.tokens_left(self.in_flight.values()),
        )
        panel.show()

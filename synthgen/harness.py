"""Keep a server busy and every reply safe: prompts in, traces and failures out.

A fixed number of workers take (prompt, sample) keys that have no trace yet, and free their slot
only when the record is durable. What a run still owes is what its journal lacks, so resuming is
running again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from synthgen.client.api import ApiClient, chat_body
from synthgen.client.control import Control
from synthgen.corpus.config import RunConfig
from synthgen.corpus.console import Bar, bar
from synthgen.corpus.journal import Journal, read_journal
from synthgen.corpus.records import Failure, FailureKind, Finish, SeedPrompt, Timing, Trace
from synthgen.errors import RequestFailed, ServerUnreachable
from synthgen.traces import ServerFacts, sampling_of, thinking_length, trace_of

Key = tuple[SeedPrompt, int]


@dataclass(slots=True, kw_only=True)
class Tally:
    """Counts of a corpus, or of one call's part of it."""

    traces: int = 0
    failures: int = 0
    thinking_tokens: int = 0
    response_tokens: int = 0
    """Output tokens after the thinking, tool calls and the closing token included."""
    truncated: int = 0

    def add(self, trace: Trace) -> None:
        """Count one trace."""
        thinking = thinking_length(trace)
        self.traces += 1
        self.thinking_tokens += thinking
        self.response_tokens += len(trace.output_token_ids) - thinking
        self.truncated += trace.finish is Finish.LENGTH


def wanted_keys(prompts: Iterable[SeedPrompt], samples_per_prompt: int) -> Iterator[Key]:
    """Every (prompt, sample index) of a run."""
    for prompt in prompts:
        for index in range(samples_per_prompt):
            yield prompt, index


def finished_keys(journal: Path) -> set[tuple[str, int]]:
    """The keys that have a trace, in one pass over the journal."""
    return {trace.key for trace in read_journal(journal, Trace)}


async def send_all(
    config: RunConfig, base_url: str, key: str | None, todo: list[Key], server: ServerFacts
) -> Tally:
    """Send `todo` and journal what comes back; return the tally of this call.

    Raises ServerUnreachable when the server is gone; everything received before is in the journal.
    """
    settings = config.generate
    client = ApiClient(
        base_url,
        api_key=key,
        concurrency=settings.concurrency,
        timeout_s=60 + settings.seconds_per_token * settings.max_tokens,
        retry_attempts=settings.retry_attempts,
        retry_seconds=settings.retry_seconds,
    )
    async with client, Journal(config.traces_path) as traces, Journal(config.failures_path) as failures:
        with bar("generate", len(todo)) as progress:
            sender = _Sender(
                config=config,
                client=client,
                control=Control(base_url, key),
                server=server,
                traces=traces,
                failures=failures,
                progress=progress,
            )
            await _run_workers(sender, iter(todo), min(settings.concurrency, len(todo)))
    return sender.tally


async def _run_workers(sender: _Sender, queue: Iterator[Key], count: int) -> None:
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(sender.drain(queue))
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sender:
    """What all workers share."""

    config: RunConfig
    client: ApiClient
    control: Control
    server: ServerFacts
    traces: Journal
    failures: Journal
    progress: Bar
    tally: Tally = field(default_factory=Tally)
    started: float = field(default_factory=time.monotonic)

    async def drain(self, queue: Iterator[Key]) -> None:
        for prompt, index in queue:
            await self._send(prompt, index)
            self._show()

    async def _send(self, prompt: SeedPrompt, index: int) -> None:
        sampling = sampling_of(self.config)
        started_at = time.time()
        try:
            reply, attempts = await self.client.chat(
                chat_body(prompt, self.config.verifier.served_name, sampling)
            )
            timing = Timing(started_at=started_at, seconds=time.time() - started_at)
            trace = trace_of(prompt, index, reply, sampling, self.server, attempts, timing)
        except RequestFailed as error:
            await self._record_failure(prompt, index, error)
        else:
            await self.traces.append(trace)
            self.tally.add(trace)

    async def _record_failure(self, prompt: SeedPrompt, index: int, error: RequestFailed) -> None:
        if error.kind == FailureKind.TRANSPORT and not await asyncio.to_thread(self.control.is_healthy):
            raise ServerUnreachable(
                f"{self.control.base_url} stopped answering ({error}). All replies so far are in "
                f"{self.traces.path}; run the same command again to go on"
            ) from error
        failure = Failure(
            seed_id=prompt.id,
            sample_index=index,
            kind=FailureKind(error.kind),
            message=str(error),
            attempts=error.attempts,
        )
        await self.failures.append(failure)
        self.tally.failures += 1

    def _show(self) -> None:
        tokens = self.tally.thinking_tokens + self.tally.response_tokens
        rate = tokens / max(time.monotonic() - self.started, 1e-9)
        note = f"{rate:,.0f} tok/s, {self.tally.truncated} cut"
        if self.tally.failures:
            note += f", {self.tally.failures} failed"
        self.progress.advance(note=note)

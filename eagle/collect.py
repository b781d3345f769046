"""The states of many samples, from whatever gives them, into shards: failures are records."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Protocol

from eagle.packing import Packer
from eagle.states import SampleStates
from synthgen.corpus.config import RunConfig
from synthgen.corpus.console import bar
from synthgen.corpus.records import Record
from synthgen.corpus.samples import Sample
from synthgen.errors import ArtifactError, RequestFailed

FAILURES_IN_A_ROW = 8
"""When as many samples fail one after the other, it isn't the samples."""


class StatesFailure(Record, frozen=True, kw_only=True):
    """A sample whose states could not be had; running again asks for them again."""

    sample_id: str
    message: str


class Source(Protocol):
    """What gives a sample's states, or raises RequestFailed or ArtifactError where it has none."""

    @property
    def seconds_down(self) -> float:
        """Time in which it could give none."""

    async def states_of(self, sample: Sample) -> SampleStates:
        """The states of a sample."""


async def extract_all(
    config: RunConfig, source: Source, todo: list[Sample], failed: dict[str, StatesFailure]
) -> float:
    """Write the states of `todo` into shards, bring `failed` up to date; return the tokens a second.

    Raises ArtifactError after FAILURES_IN_A_ROW, and whatever else the source raises; shards are kept.

    Time in which the source gave none does not count. The last failures in a row are put down only when it
    ends well: it might not be the samples.
    """
    packer = Packer(config)
    in_a_row: list[StatesFailure] = []
    started = time.monotonic()

    def tokens_per_s() -> float:
        return packer.tokens / (time.monotonic() - started - source.seconds_down)

    try:
        with bar("extract", len(todo)) as progress:
            async for states in _in_flight(source, todo, config.extract.concurrency):
                if isinstance(states, StatesFailure):
                    in_a_row.append(states)
                    _require_some(in_a_row)
                else:
                    _put_down(failed, in_a_row)
                    failed.pop(states.sample_id, None)
                    if packer.add(states):
                        await asyncio.to_thread(packer.write)
                progress.advance(note=f"{tokens_per_s():,.0f} tok/s")
    finally:  # an interrupted run keeps what it has
        packer.write()
    _put_down(failed, in_a_row)
    return tokens_per_s()


def _put_down(failed: dict[str, StatesFailure], in_a_row: list[StatesFailure]) -> None:
    failed |= {failure.sample_id: failure for failure in in_a_row}
    in_a_row.clear()


def _require_some(in_a_row: list[StatesFailure]) -> None:
    """Raise ArtifactError when so many samples in a row have failed that it isn't the samples."""
    if len(in_a_row) >= FAILURES_IN_A_ROW:
        raise ArtifactError(f"{len(in_a_row)} samples in a row failed; the last: {in_a_row[-1].message}")


async def _in_flight(
    source: Source, todo: list[Sample], concurrency: int
) -> AsyncIterator[SampleStates | StatesFailure]:
    """Yield states, or why there are none, in the order of `todo`.

    The client has `concurrency` requests in flight; as many again wait for their files or their turn.
    """
    waiting: list[asyncio.Task[SampleStates | StatesFailure]] = []
    queue = iter(todo)
    try:
        while True:
            while len(waiting) < 2 * concurrency and (sample := next(queue, None)) is not None:
                waiting.append(asyncio.create_task(_one(source, sample)))
            if not waiting:
                return
            yield await waiting.pop(0)
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def _one(source: Source, sample: Sample) -> SampleStates | StatesFailure:
    try:
        return await source.states_of(sample)
    except (RequestFailed, ArtifactError) as error:
        return StatesFailure(sample_id=sample.id, message=str(error))

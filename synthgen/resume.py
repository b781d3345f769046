"""What a corpus already holds: its keys and its counts, in one pass over the journals."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from synthgen.corpus.config import RunConfig
from synthgen.corpus.journal import read_journal, read_keys, segments
from synthgen.corpus.records import Finish
from synthgen.corpus.token_ids import count_ids
from synthgen.tally import Tally
from synthgen.traces import thinking_length

RowKey = tuple[str, int]
"""Seed id and sample index."""


@dataclass(frozen=True, slots=True)
class Held:
    """The rows that have ended; grows with those that end."""

    done: set[RowKey] = field(default_factory=set)
    """Those with a trace."""
    failed: set[RowKey] = field(default_factory=set)
    """Those with a failure and no trace."""
    counts: Tally = field(default_factory=Tally)
    """Of the traces."""

    def add_trace(self, key: RowKey, thinking_tokens: int, response_tokens: int, finish: Finish) -> None:
        """Take note of a row whose trace is on disk."""
        self.done.add(key)
        self.failed.discard(key)
        self.counts.add(thinking_tokens, response_tokens, finish)

    def add_failure(self, key: RowKey) -> None:
        """Take note of a row whose failure is on disk."""
        self.failed.add(key)


def held(config: RunConfig) -> Held:
    """Read the journals of a run once. Raises ArtifactError naming file and line of a broken record."""
    rows = Held()
    for row in read_journal(config.traces_path, _Row, "Trace"):
        length = count_ids(row.output_token_ids)
        thinking = thinking_length(row.sampling.thinking, row.think_end, row.tool_start, length)
        rows.add_trace((row.seed_id, row.sample_index), thinking, length - thinking, row.finish)
    rows.failed.update(read_keys(config.failures_path) - rows.done)
    return rows


def held_bytes(config: RunConfig) -> int:
    """Size of the journals."""
    return sum(
        segment.stat().st_size
        for path in (config.traces_path, config.failures_path)
        for segment in segments(path)
    )


class _Sampled(msgspec.Struct, frozen=True):
    thinking: bool


class _Row(msgspec.Struct, frozen=True):
    """What resuming needs of a trace; the ids are counted and not decoded."""

    seed_id: str
    sample_index: int
    output_token_ids: msgspec.Raw
    think_end: int | None
    tool_start: int | None
    finish: Finish
    sampling: _Sampled

"""What a corpus already holds: its keys and its counts, in one pass over the journals."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from synthgen.corpus.config import RunConfig
from synthgen.corpus.journal import read_journal, read_keys, segments
from synthgen.corpus.records import Finish
from synthgen.tally import Tally
from synthgen.traces import thinking_length

RowKey = tuple[str, int]
"""Seed id and sample index."""


@dataclass(frozen=True, slots=True)
class Held:
    """The rows that ended before."""

    done: set[RowKey]
    """Those with a trace."""
    failed: set[RowKey]
    """Those with a failure and no trace."""
    counts: Tally
    """Of the traces."""


def held(config: RunConfig) -> Held:
    """Read the journals of a run once. Raises ArtifactError naming file and line of a broken record."""
    done: set[RowKey] = set()
    counts = Tally()
    for row in read_journal(config.traces_path, _Row, "Trace"):
        done.add((row.seed_id, row.sample_index))
        length = bytes(row.output_token_ids).count(b",") + 1
        thinking = thinking_length(row.sampling.thinking, row.think_end, row.tool_start, length)
        counts.add(thinking, length - thinking, row.finish)
    return Held(done, read_keys(config.failures_path) - done, counts)


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

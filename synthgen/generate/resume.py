"""What a corpus already holds: its rows and its counts, in one pass over the journals."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from synthgen.corpus.config import RunConfig
from synthgen.corpus.journal import read_journal, segments
from synthgen.corpus.records import Finish, Message, SeedPrompt
from synthgen.corpus.samples import thinking_length
from synthgen.corpus.token_ids import count_ids
from synthgen.generate.conversation import Open, open_after
from synthgen.generate.tally import Tally

RowKey = tuple[str, int]
"""Seed id and sample index."""


@dataclass(frozen=True, slots=True)
class Held:
    """The rows that have ended or begun; grows with each record. A row's traces may come in any order."""

    done: set[RowKey] = field(default_factory=set)
    """Those with all their traces."""
    failed: set[RowKey] = field(default_factory=set)
    """Those whose next reply is a failure."""
    open: dict[RowKey, Open] = field(default_factory=dict)
    """Those with some of their traces."""
    counts: Tally = field(default_factory=Tally)
    """Of the traces."""

    def add_trace(
        self,
        key: RowKey,
        thinking_tokens: int,
        response_tokens: int,
        finish: Finish,
        goes_on: Open | None = None,
    ) -> None:
        """Take note of a trace that is on disk, and of the conversation that `goes_on` after it."""
        self.failed.discard(key)
        self.counts.add(thinking_tokens, response_tokens, finish, ends_row=goes_on is None)
        if goes_on is None:
            self.done.add(key)
            self.open.pop(key, None)
        elif key not in self.done and goes_on.turn > self.next_turn(key):
            self.open[key] = goes_on

    def add_failure(self, key: RowKey) -> None:
        """Take note of a row whose failure is on disk."""
        self.failed.add(key)

    def next_turn(self, key: RowKey) -> int:
        """The number of the reply that comes next in a row that has not ended."""
        return self.open[key].turn if key in self.open else 0

    def replies_left(self, prompt: SeedPrompt, index: int) -> int:
        """How many replies a row that has not ended lacks."""
        return 1 + len(prompt.turns) - self.next_turn((prompt.id, index))


def held(config: RunConfig) -> Held:
    """Read the journals of a run once. Raises ArtifactError naming file and line of a broken record."""
    rows = Held()
    for row in read_journal(config.traces_path, _Row, "Trace"):
        length = count_ids(row.output_token_ids)
        thinking = thinking_length(row.sampling.thinking, row.think_end, row.tool_start, length)
        goes_on = _goes_on(row) if row.turns_left else None
        rows.add_trace((row.seed_id, row.sample_index), thinking, length - thinking, row.finish, goes_on)
    for failed in read_journal(config.failures_path, _Failed, "Failure"):
        key = failed.seed_id, failed.sample_index
        if key not in rows.done and failed.turn >= rows.next_turn(key):
            rows.add_failure(key)
    return rows


def held_bytes(config: RunConfig) -> int:
    """Size of the journals."""
    return sum(
        segment.stat().st_size
        for path in (config.traces_path, config.failures_path)
        for segment in segments(path)
    )


def _goes_on(row: _Row) -> Open | None:
    return open_after(
        turn=row.turn,
        turns_left=row.turns_left,
        messages=_MESSAGES.decode(row.messages),
        response=_RESPONSE.decode(row.response),
        finish=row.finish,
        tool_start=row.tool_start,
    )


_MESSAGES = msgspec.json.Decoder(tuple[Message, ...])
_RESPONSE = msgspec.json.Decoder(str | None)


class _Sampled(msgspec.Struct, frozen=True):
    thinking: bool


class _Row(msgspec.Struct, frozen=True):
    """What resuming needs of a trace; the ids are counted, and what was said is decoded where it goes on."""

    seed_id: str
    sample_index: int
    output_token_ids: msgspec.Raw
    think_end: int | None
    tool_start: int | None
    finish: Finish
    sampling: _Sampled
    messages: msgspec.Raw
    response: msgspec.Raw
    turn: int = 0
    turns_left: int = 0


class _Failed(msgspec.Struct, frozen=True):
    """What resuming needs of a failure."""

    seed_id: str
    sample_index: int
    turn: int = 0

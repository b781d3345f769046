"""What a corpus holds, counted in one pass: lengths, domains, why replies ended, ids, times.

Memory holds a few small numbers for each trace and no text.
"""

from __future__ import annotations

import random
from array import array
from collections import Counter
from dataclasses import dataclass, field

import msgspec

from synthgen.corpus.config import RunConfig
from synthgen.corpus.console import bar
from synthgen.corpus.journal import count_records, read_journal
from synthgen.corpus.records import Timing, TruncatedIn
from synthgen.corpus.samples import thinking_length
from synthgen.corpus.token_ids import count_ids, decode_ids
from synthgen.report.coverage import Coverage, coverage
from synthgen.report.histograms import Histogram, histogram, quantile, shares
from synthgen.report.throughput import Throughput, throughput

COUNTED_TRACES = 20_000
"""About as many traces, drawn by chance, have their ids counted."""
ROWS_A_STEP = 1_000
"""Traces between two looks at the progress bar."""


class Quantiles(msgspec.Struct, frozen=True, kw_only=True):
    """The middle of some lengths, and what nine in ten don't exceed, in tokens."""

    median: int
    p90: int


class DomainFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The traces of one domain."""

    name: str
    traces: int
    tokens: int
    """Output tokens."""
    output: Quantiles
    thinking: Quantiles
    response: Quantiles
    thinking_shares: tuple[int, ...]
    """Traces by the part of the output that is thinking, in tenths; empty when none was to think."""


class SourceFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The traces of one source."""

    name: str
    traces: int
    tokens: int


class CorpusFigures(msgspec.Struct, frozen=True, kw_only=True):
    """A corpus. Domains and sources stand in the order of their traces, most first."""

    traces: int
    thinking_tokens: int
    response_tokens: int
    tool_tokens: int
    truncated: dict[str, int]
    """Replies that were cut, by the part they were cut in."""
    output_lengths: Histogram
    thinking_lengths: Histogram | None
    """Of the traces with thinking."""
    response_lengths: Histogram | None
    """Of the traces with a response."""
    thinking_shares: tuple[int, ...]
    domains: tuple[DomainFigures, ...]
    sources: tuple[SourceFigures, ...]
    coverage: Coverage | None
    throughput: Throughput | None
    ended_at: float
    """When the last reply was there, in seconds since the epoch."""

    @property
    def tokens(self) -> int:
        """Output tokens."""
        return self.thinking_tokens + self.response_tokens + self.tool_tokens


def _counts() -> array[int]:
    return array("I")


@dataclass(slots=True)
class _Lengths:
    """Token counts of some traces, one entry a trace."""

    output: array[int] = field(default_factory=_counts)
    thinking: array[int] = field(default_factory=_counts)
    response: array[int] = field(default_factory=_counts)
    thought: bool = False
    """Whether any was to think."""

    def add(self, output: int, thinking: int, response: int, thought: bool) -> None:
        self.output.append(output)
        self.thinking.append(thinking)
        self.response.append(response)
        self.thought |= thought

    @property
    def thinking_shares(self) -> tuple[int, ...]:
        return shares(self.thinking, self.output) if self.thought else ()


@dataclass(slots=True)
class _Census:
    """The counts while the traces are read."""

    lengths: _Lengths = field(default_factory=_Lengths)
    domains: dict[str, _Lengths] = field(default_factory=dict)
    sources: dict[str, list[int]] = field(default_factory=dict)
    """Traces and output tokens."""
    truncated: Counter[str] = field(default_factory=Counter)
    ids: Counter[int] = field(default_factory=Counter)
    counted: int = 0
    """Traces whose ids are among them."""
    started_at: array[float] = field(default_factory=lambda: array("d"))
    seconds: array[float] = field(default_factory=lambda: array("d"))

    def add(self, row: _Row) -> None:
        """Count one trace."""
        output = count_ids(row.output_token_ids)
        thinking = thinking_length(row.sampling.thinking, row.think_end, row.tool_start, output)
        response = (output if row.tool_start is None else row.tool_start) - thinking
        for lengths in (self.lengths, self.domains.setdefault(row.domain, _Lengths())):
            lengths.add(output, thinking, response, row.sampling.thinking)
        source = self.sources.setdefault(row.source, [0, 0])
        source[0] += 1
        source[1] += output
        if row.truncated_in is not None:
            self.truncated[row.truncated_in.value] += 1
        self.started_at.append(row.timing.started_at)
        self.seconds.append(row.timing.seconds)

    def count_ids(self, row: _Row) -> None:
        """Count the ids of one trace's output."""
        self.ids.update(decode_ids(row.output_token_ids))
        self.counted += 1


class _Sampled(msgspec.Struct, frozen=True):
    thinking: bool


class _Row(msgspec.Struct, frozen=True):
    seed_id: str
    sample_index: int
    source: str
    domain: str
    output_token_ids: msgspec.Raw
    think_end: int | None
    tool_start: int | None
    truncated_in: TruncatedIn | None
    sampling: _Sampled
    timing: Timing
    turn: int = 0


class _Failed(msgspec.Struct, frozen=True):
    seed_id: str
    sample_index: int
    kind: str
    message: str
    turn: int = 0


class FailureFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The rows that failed in one way."""

    kind: str
    rows: int
    example: str
    """The message of one."""


def census(config: RunConfig) -> tuple[CorpusFigures | None, tuple[FailureFigures, ...]]:
    """Count the traces, None without any, and the failures that no trace made up for."""
    failed = {
        (row.seed_id, row.sample_index): row for row in read_journal(config.failures_path, _Failed, "Failure")
    }
    total = count_records(config.traces_path)
    taken, rows = _Census(), random.Random(config.seed)
    with bar("reading traces", total) as progress:
        for number, row in enumerate(read_journal(config.traces_path, _Row, "Trace"), 1):
            taken.add(row)
            if rows.random() * total < COUNTED_TRACES:
                taken.count_ids(row)
            failure = failed.get((row.seed_id, row.sample_index))
            if failure is not None and row.turn >= failure.turn:
                del failed[row.seed_id, row.sample_index]
            if number % ROWS_A_STEP == 0:
                progress.advance(ROWS_A_STEP)
        progress.advance(len(taken.started_at) % ROWS_A_STEP)
    return _figures(taken, config.vocab.size), _failures(list(failed.values()))


def _figures(taken: _Census, vocab_size: int) -> CorpusFigures | None:
    lengths = taken.lengths
    output_lengths = histogram(lengths.output)
    if output_lengths is None:
        return None
    thinking, response = sum(lengths.thinking), sum(lengths.response)
    return CorpusFigures(
        traces=len(lengths.output),
        thinking_tokens=thinking,
        response_tokens=response,
        tool_tokens=sum(lengths.output) - thinking - response,
        truncated=dict(taken.truncated),
        output_lengths=output_lengths,
        thinking_lengths=histogram([n for n in lengths.thinking if n]),
        response_lengths=histogram([n for n in lengths.response if n]),
        thinking_shares=lengths.thinking_shares,
        domains=_domains(taken),
        sources=_sources(taken),
        coverage=coverage(taken.ids, taken.counted, vocab_size),
        throughput=throughput(taken.started_at, taken.seconds, lengths.output),
        ended_at=max(start + lasted for start, lasted in zip(taken.started_at, taken.seconds, strict=True)),
    )


def _domains(taken: _Census) -> tuple[DomainFigures, ...]:
    return tuple(
        DomainFigures(
            name=name,
            traces=len(lengths.output),
            tokens=sum(lengths.output),
            output=_quantiles(lengths.output),
            thinking=_quantiles(lengths.thinking),
            response=_quantiles(lengths.response),
            thinking_shares=lengths.thinking_shares,
        )
        for name, lengths in sorted(taken.domains.items(), key=lambda item: (-len(item[1].output), item[0]))
    )


def _sources(taken: _Census) -> tuple[SourceFigures, ...]:
    ordered = sorted(taken.sources.items(), key=lambda item: (-item[1][0], item[0]))
    return tuple(SourceFigures(name=name, traces=n, tokens=tokens) for name, (n, tokens) in ordered)


def _quantiles(lengths: array[int]) -> Quantiles:
    return Quantiles(median=quantile(lengths, 0.5), p90=quantile(lengths, 0.9))


def _failures(failed: list[_Failed]) -> tuple[FailureFigures, ...]:
    counts = Counter(row.kind for row in failed)
    messages = {row.kind: row.message for row in failed}
    return tuple(
        FailureFigures(kind=kind, rows=rows, example=messages[kind]) for kind, rows in counts.most_common()
    )

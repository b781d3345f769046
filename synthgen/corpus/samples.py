"""Traces as training samples: the server's ids, and the spans that are supervised."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from synthgen.corpus.journal import read_journal
from synthgen.corpus.records import Finish, Message, Record, Sampling, ToolCall, Trace, TruncatedIn


class SpanKind(enum.StrEnum):
    """What a supervised stretch of tokens is."""

    THINKING = "thinking"
    RESPONSE = "response"
    TOOL = "tool"


class Span(Record, frozen=True, kw_only=True):
    """Tokens [start, end) of a sample, supervised as `kind`."""

    start: int
    end: int
    kind: SpanKind


class Sample(Record, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """Token ids with the spans that are supervised. The spans are the loss mask; nothing else is.

    This much of a dataset's row is what training reads.
    """

    id: str
    domain: str
    token_ids: tuple[int, ...]
    spans: tuple[Span, ...]
    states_file: str | None = None
    """The file in the run's spool with its hidden states, if they were captured with the reply."""

    def __post_init__(self) -> None:
        end = 0
        for span in self.spans:
            if not end <= span.start < span.end <= len(self.token_ids):
                raise ValueError(f"span {span.start}:{span.end} overlaps, is empty or leaves the tokens")
            end = span.end

    def cut(self, num_tokens: int) -> Sample:
        """The sample's first `num_tokens` tokens: an exact prefix with the spans that are left of it."""
        if len(self.token_ids) <= num_tokens:
            return self
        spans = (
            Span(start=span.start, end=min(span.end, num_tokens), kind=span.kind)
            for span in self.spans
            if span.start < num_tokens
        )
        return Sample(
            id=self.id,
            domain=self.domain,
            token_ids=self.token_ids[:num_tokens],
            spans=tuple(spans),
            states_file=self.states_file,
        )


class Origin(enum.StrEnum):
    """Who wrote the supervised tokens of a row."""

    NATIVE = "native"
    """The verifier, as its server sampled them."""
    VERBATIM = "verbatim"
    """Somebody else; the verifier's server gave them their ids."""


class DatasetRow(Sample, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A sample with where it comes from and what it says, as it stands in a dataset."""

    part: str
    """The part of the mix."""
    source: str
    origin: Origin
    prompt: str
    """`prompt_key` of its conversation; all rows of one prompt are on the same side of the split."""
    messages: tuple[Message, ...]
    """What was answered."""
    tools: tuple[dict[str, Any], ...] = ()
    thinking: str | None = None
    response: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    finish: Finish = Finish.STOP
    truncated_in: TruncatedIn | None = None
    sampling: Sampling | None = None
    """None for a verbatim reply."""
    server: str
    """Digest of the fingerprint of the server whose ids these are."""


def sample_of(trace: Trace) -> Sample:
    """Lay a trace's prompt and output end to end and mark what the model itself wrote."""
    offset, length = len(trace.prompt_token_ids), trace.output_length
    return Sample(
        id=trace.id,
        domain=trace.domain,
        token_ids=trace.prompt_token_ids + trace.output_token_ids,
        spans=spans_of(offset, length, trace.sampling.thinking, trace.think_end, trace.tool_start),
        states_file=trace.states_file,
    )


def spans_of(
    offset: int, length: int, thinking: bool, think_end: int | None, tool_start: int | None
) -> tuple[Span, ...]:
    """The spans of a reply of `length` tokens that stands at `offset` in its sample.

    The thinking span ends after `</think>`; a tool section ends thinking too when the model opens it
    without `</think>`. Every output token is in exactly one span, the closing token included.
    """
    tool = length if tool_start is None else tool_start
    thought = thinking_length(thinking, think_end, tool_start, length)
    bounds = (
        (0, thought, SpanKind.THINKING),
        (thought, tool, SpanKind.RESPONSE),
        (tool, length, SpanKind.TOOL),
    )
    return tuple(
        Span(start=offset + start, end=offset + end, kind=kind) for start, end, kind in bounds if start < end
    )


def thinking_length(thinking: bool, think_end: int | None, tool_start: int | None, length: int) -> int:
    """Output tokens of a reply of `length` that belong to its thinking, `</think>` included."""
    if not thinking:
        return 0
    if think_end is not None:
        return think_end + 1
    return length if tool_start is None else tool_start


def read_samples(dataset: Path, max_tokens: int) -> list[Sample]:
    """A dataset's samples, each cut to `max_tokens`; those that are cut before their reply are left out."""
    return list(each_sample(dataset, max_tokens))


def each_sample(dataset: Path, max_tokens: int) -> Iterator[Sample]:
    """The same one by one: a corpus of ids takes more memory than one wants to hold."""
    samples = read_journal(dataset, Sample)
    return (s.cut(max_tokens) for s in samples if s.spans and s.spans[0].start < max_tokens - 1)

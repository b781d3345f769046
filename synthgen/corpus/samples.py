"""Traces as training samples: the server's ids, and the spans that are supervised."""

from __future__ import annotations

from pathlib import Path

from synthgen.corpus.journal import read_journal
from synthgen.corpus.records import Sample, Span, SpanKind, Trace


def sample_of(trace: Trace) -> Sample:
    """Lay a trace's prompt and output end to end and mark what the model itself wrote.

    The thinking span ends after `</think>`; a tool section ends thinking too when the model opens
    it without `</think>`. Every output token is in exactly one span, the closing token included.
    """
    offset = len(trace.prompt_token_ids)
    return Sample(
        id=f"{trace.seed_id}-{trace.sample_index}",
        domain=trace.domain,
        token_ids=trace.prompt_token_ids + trace.output_token_ids,
        spans=tuple(
            Span(start=offset + start, end=offset + end, kind=kind)
            for start, end, kind in _output_spans(trace)
            if start < end
        ),
    )


def read_samples(traces: Path, max_tokens: int) -> list[Sample]:
    """A corpus as samples, each cut to `max_tokens`; those that are cut before their reply are left out."""
    samples = (sample_of(trace) for trace in read_journal(traces, Trace))
    return [s.cut(max_tokens) for s in samples if s.spans and s.spans[0].start < max_tokens - 1]


def _output_spans(trace: Trace) -> list[tuple[int, int, SpanKind]]:
    end = len(trace.output_token_ids)
    tool = end if trace.tool_start is None else trace.tool_start
    if not trace.sampling.thinking:
        thinking = 0
    elif trace.think_end is None:
        thinking = tool
    else:
        thinking = trace.think_end + 1
    return [
        (0, thinking, SpanKind.THINKING),
        (thinking, tool, SpanKind.RESPONSE),
        (tool, end, SpanKind.TOOL),
    ]

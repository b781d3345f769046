"""A trace as a row of a dataset, decoded whole: what mixing must write."""

from __future__ import annotations

from synthgen.corpus.records import Trace, prompt_key
from synthgen.corpus.samples import DatasetRow, Origin, sample_of


def row_of(trace: Trace, part: str = "native") -> DatasetRow:
    """The row that `trace` gives."""
    sample = sample_of(trace)
    return DatasetRow(
        id=sample.id,
        domain=sample.domain,
        token_ids=sample.token_ids,
        spans=sample.spans,
        states_file=sample.states_file,
        part=part,
        source=trace.source,
        origin=Origin.NATIVE,
        prompt=prompt_key(trace.messages),
        messages=trace.messages,
        tools=trace.tools,
        thinking=trace.thinking,
        response=trace.response,
        tool_calls=trace.tool_calls,
        finish=trace.finish,
        truncated_in=trace.truncated_in,
        sampling=trace.sampling,
        server=trace.server,
    )

"""A trace as a row of a dataset, copied rather than decoded.

Ids and texts pass as JSON text from the corpus to the dataset: only a row's head is read. What is written
reads back as a `DatasetRow`.
"""

from __future__ import annotations

import msgspec

from synthgen.corpus.records import reply_id
from synthgen.corpus.samples import Origin, Span, spans_of
from synthgen.corpus.token_ids import count_ids, join_ids


class _Sampled(msgspec.Struct, frozen=True):
    thinking: bool


_sampled = msgspec.json.Decoder(_Sampled)


class ReplyRow(msgspec.Struct, frozen=True, gc=False):
    """A trace as mixing reads it."""

    seed_id: str
    sample_index: int
    source: str
    domain: str
    messages: msgspec.Raw
    prompt_token_ids: msgspec.Raw
    output_token_ids: msgspec.Raw
    think_end: int | None
    tool_start: int | None
    thinking: msgspec.Raw
    response: msgspec.Raw
    finish: str
    truncated_in: str | None
    sampling: msgspec.Raw
    server: str
    turn: int = 0
    states_file: str | msgspec.UnsetType = msgspec.UNSET
    tools: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    tool_calls: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET

    @property
    def id(self) -> str:
        """The trace's id."""
        return reply_id(self.seed_id, self.sample_index, self.turn)


class RowLine(msgspec.Struct, frozen=True, gc=False):
    """A `DatasetRow` as it is copied."""

    id: str
    domain: str
    token_ids: msgspec.Raw
    spans: tuple[Span, ...]
    part: str
    source: str
    origin: Origin
    prompt: str
    messages: msgspec.Raw
    server: str
    states_file: str | msgspec.UnsetType = msgspec.UNSET
    tools: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    thinking: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    response: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    tool_calls: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    finish: str | msgspec.UnsetType = msgspec.UNSET
    truncated_in: str | msgspec.UnsetType | None = msgspec.UNSET
    sampling: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


def line_of(reply: ReplyRow, part: str, prompt: str) -> RowLine:
    """A trace as a row of `part`; `prompt` is its prompt key."""
    thinks = _sampled.decode(reply.sampling).thinking
    offset, length = count_ids(reply.prompt_token_ids), count_ids(reply.output_token_ids)
    return RowLine(
        id=reply.id,
        domain=reply.domain,
        token_ids=join_ids(reply.prompt_token_ids, reply.output_token_ids),
        spans=spans_of(offset, length, thinks, reply.think_end, reply.tool_start),
        part=part,
        source=reply.source,
        origin=Origin.NATIVE,
        prompt=prompt,
        messages=reply.messages,
        server=reply.server,
        states_file=reply.states_file,
        tools=reply.tools,
        thinking=reply.thinking,
        response=reply.response,
        tool_calls=reply.tool_calls,
        finish=reply.finish,
        truncated_in=reply.truncated_in,
        sampling=reply.sampling,
    )

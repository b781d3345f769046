"""A row of the dataset as others read it: its conversation, its loss mask, and whether text can carry it."""

from __future__ import annotations

import enum
from typing import Any

from synthgen.corpus.records import Message, ToolCall
from synthgen.corpus.samples import DatasetRow, SpanKind

Json = dict[str, Any]


class LeftOut(enum.StrEnum):
    """Why a row can't be written as text. Its exact ids can always be written."""

    TRUNCATED = "truncated"
    """Cut by its budget: as text it would look like a turn that ended there."""
    UNANSWERED = "unanswered"
    """Neither text nor tool call after the thinking, or thinking that was never closed, which a server may
    give as the response."""
    UNSPLIT = "unsplit"
    """Its thinking stands in the response: the server had no reasoning parser (server.reasoning_parser)."""
    UNPARSED = "unparsed"
    """It has tool-call tokens that the server made no tool call of."""


def left_out(row: DatasetRow) -> LeftOut | None:
    """Why text can't carry `row`; None when it can."""
    kinds = {span.kind for span in row.spans}
    if row.truncated_in is not None:
        return LeftOut.TRUNCATED
    if kinds == {SpanKind.THINKING} and not row.tool_calls:
        return LeftOut.UNANSWERED
    if _is_unsplit(row):
        return LeftOut.UNSPLIT
    if row.tool_calls:
        return None
    if SpanKind.TOOL in kinds:
        return LeftOut.UNPARSED
    return None if (row.response or "").strip() else LeftOut.UNANSWERED


def _is_unsplit(row: DatasetRow) -> bool:
    """Whether thinking tokens became no `thinking`. A single one closes thinking that says nothing."""
    tokens = sum(span.end - span.start for span in row.spans if span.kind is SpanKind.THINKING)
    return row.thinking is None and tokens > 1


def loss_mask(row: DatasetRow) -> list[int]:
    """1 for each token of a span, 0 for all others; as long as `token_ids`."""
    mask = [0] * len(row.token_ids)
    for span in row.spans:
        mask[span.start : span.end] = [1] * (span.end - span.start)
    return mask


def messages(row: DatasetRow) -> list[Json]:
    """The conversation in the OpenAI shape, the reply last with its thinking as `reasoning_content`.

    What a message hasn't got has no key; only `content` is always there.
    """
    return [*(_message(message) for message in row.messages), _reply(row)]


def _message(message: Message) -> Json:
    plain: Json = {"role": message.role, "content": message.content}
    if message.name is not None:
        plain["name"] = message.name
    if message.tool_calls:
        plain["tool_calls"] = tool_calls(message.tool_calls)
    if message.tool_call_id is not None:
        plain["tool_call_id"] = message.tool_call_id
    return plain


def _reply(row: DatasetRow) -> Json:
    plain: Json = {"role": "assistant", "content": row.response}
    if row.thinking is not None:
        plain["reasoning_content"] = row.thinking
    if row.tool_calls:
        plain["tool_calls"] = tool_calls(row.tool_calls)
    return plain


def tool_calls(calls: tuple[ToolCall, ...]) -> list[Json]:
    """Tool calls as plain values, `type` written out; the arguments stay the text the model wrote."""
    return [
        {
            "id": call.id,
            "type": call.type,
            "function": {"name": call.function.name, "arguments": call.function.arguments},
        }
        for call in calls
    ]

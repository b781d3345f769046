"""A streamed reply is the same record as one that is not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from synthgen.client.replies import ChatReply
from synthgen.client.stream import read_stream

START = {"choices": [{"delta": {"role": "assistant"}, "token_ids": None}], "prompt_token_ids": [1, 2]}
THINKING = {"choices": [{"delta": {"reasoning": "wh"}, "token_ids": [7]}]}
MORE = {"choices": [{"delta": {"reasoning": "y"}, "token_ids": [8, 9]}]}
ANSWER = {"choices": [{"delta": {"content": "so"}, "token_ids": [5]}]}
LAST = {"choices": [{"delta": {}, "finish_reason": "stop", "token_ids": [6]}]}
USAGE = {"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 5}}


def read(*chunks: object, end: bool = True, other: tuple[str, ...] = ()) -> ChatReply | None:
    """Put chunks together."""

    async def pieces() -> AsyncIterator[bytes]:
        events = [f"{line}\n".encode() for line in other]
        events += [b"data: " + msgspec.json.encode(chunk) + b"\n\n" for chunk in chunks]
        events += [b"data: [DONE]\n\n"] if end else []
        whole = b"".join(events)
        for start in range(0, len(whole), 7):  # pieces as a network cuts them
            yield whole[start : start + 7]

    return asyncio.run(read_stream(pieces()))


def test_the_parts_make_the_whole() -> None:
    """Texts, ids, finish reason and usage; comments of a proxy are passed over."""
    reply = read(START, THINKING, MORE, ANSWER, LAST, USAGE, other=(": keep-alive", ""))
    assert reply is not None
    (choice,) = reply.choices
    assert (choice.message.reasoning, choice.message.content) == ("why", "so")
    assert choice.token_ids == (7, 8, 9, 5, 6)
    assert (choice.finish_reason, reply.usage.completion_tokens) == ("stop", 5)
    assert reply.prompt_token_ids == (1, 2)
    assert reply.event_tokens == (1, 2, 1, 1)


def test_a_stream_that_ends_early_is_no_reply() -> None:
    """Part of a text is never a record."""
    assert read(START, THINKING, MORE, end=False) is None


def test_a_stream_that_ends_in_an_error_is_no_reply() -> None:
    """A dying engine writes the error as an event, and `[DONE]` after it."""
    assert read(START, THINKING, {"error": {"message": "EngineCore died", "code": 500}}) is None


def test_line_separators_of_unicode_do_not_split_an_event() -> None:
    """U+2028 and U+0085 stand unescaped in a text."""
    reply = read(START, {"choices": [{"delta": {"content": "a\u2028b\x85c"}, "token_ids": [1]}]}, LAST)
    assert reply is not None
    assert reply.choices[0].message.content == "a\u2028b\x85c"


def test_tool_calls_come_in_parts_by_their_index() -> None:
    """Name first, arguments bit by bit, two calls side by side."""

    def part(index: int, **function: str) -> dict[str, object]:
        call = {"index": index, "id": f"call-{index}", "function": function}
        return {"choices": [{"delta": {"tool_calls": [call]}}]}

    reply = read(
        part(0, name="add"), part(1, name="mul"), part(0, arguments='{"a"'), part(0, arguments=": 1}")
    )
    assert reply is not None
    calls = reply.choices[0].message.tool_calls or ()
    assert [(c.id, c.function.name, c.function.arguments) for c in calls] == [
        ("call-0", "add", '{"a": 1}'),
        ("call-1", "mul", ""),
    ]


def test_an_event_that_is_no_chunk_is_an_error() -> None:
    """It isn't passed over."""
    with pytest.raises(msgspec.ValidationError):
        read({"choices": 3})

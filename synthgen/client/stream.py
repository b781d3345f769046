"""A streamed chat completion put together: the same reply as the one that is not streamed.

Each event is a chunk with what is new in text and token ids. A stream that ends without `[DONE]` was
cut: there is no reply then, since part of one is never a record.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from synthgen.client.replies import ChatReply, ReplyChoice, ReplyMessage, ReplyUsage
from synthgen.corpus.records import FunctionCall, ToolCall
from synthgen.corpus.token_ids import encode_ids

PREFIX, END = b"data:", b"[DONE]"


class _FunctionDelta(msgspec.Struct, frozen=True):
    name: str | None = None
    arguments: str | None = None


class _ToolDelta(msgspec.Struct, frozen=True):
    index: int
    id: str | None = None
    function: _FunctionDelta = msgspec.field(default_factory=_FunctionDelta)


class _Delta(msgspec.Struct, frozen=True):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: tuple[_ToolDelta, ...] | None = None


class _ChunkChoice(msgspec.Struct, frozen=True):
    delta: _Delta = msgspec.field(default_factory=_Delta)
    finish_reason: str | None = None
    token_ids: tuple[int, ...] | None = None


class _Chunk(msgspec.Struct, frozen=True):
    choices: tuple[_ChunkChoice, ...] = ()
    usage: ReplyUsage | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    kv_transfer_params: dict[str, Any] | None = None
    error: Any = None
    """What a server writes into a stream that it can't go on with, before `[DONE]`."""


@dataclass(slots=True)
class _Call:
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(slots=True)
class _Gathered:
    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: dict[int, _Call] = field(default_factory=dict)
    token_ids: list[int] = field(default_factory=list)
    event_tokens: list[int] = field(default_factory=list)
    prompt_token_ids: tuple[int, ...] | None = None
    finish_reason: str | None = None
    usage: ReplyUsage | None = None
    kv_transfer_params: dict[str, Any] | None = None

    def add(self, chunk: _Chunk) -> None:
        """Take up one chunk."""
        self.prompt_token_ids = chunk.prompt_token_ids or self.prompt_token_ids
        self.usage = chunk.usage or self.usage
        self.kv_transfer_params = chunk.kv_transfer_params or self.kv_transfer_params
        for choice in chunk.choices:
            delta = choice.delta
            self.content.append(delta.content or "")
            self.reasoning.append(delta.reasoning or delta.reasoning_content or "")
            if choice.token_ids:
                self.token_ids += choice.token_ids
                self.event_tokens.append(len(choice.token_ids))
            self.finish_reason = choice.finish_reason or self.finish_reason
            for part in delta.tool_calls or ():
                call = self.calls.setdefault(part.index, _Call())
                call.id = part.id or call.id
                call.name += part.function.name or ""
                call.arguments += part.function.arguments or ""

    def reply(self) -> ChatReply:
        """The whole reply."""
        message = ReplyMessage(
            content="".join(self.content) or None,
            reasoning="".join(self.reasoning) or None,
            tool_calls=tuple(
                ToolCall(id=call.id, function=FunctionCall(name=call.name, arguments=call.arguments))
                for _, call in sorted(self.calls.items())
            ),
        )
        ids = encode_ids(self.token_ids)
        choice = ReplyChoice(message=message, finish_reason=self.finish_reason, ids=ids)
        return ChatReply(
            choices=(choice,),
            usage=self.usage or ReplyUsage(prompt_tokens=0),
            prompt_token_ids=self.prompt_token_ids,
            kv_transfer_params=self.kv_transfer_params,
            event_tokens=tuple(self.event_tokens),
        )


async def read_stream(parts: AsyncIterator[bytes]) -> ChatReply | None:
    """The reply that server-sent events make up; None when they end before it does.

    Raises msgspec.DecodeError or ValidationError for an event that is no chunk.
    """
    gathered = _Gathered()
    decoder = msgspec.json.Decoder(_Chunk)
    async for line in _lines(parts):
        if not line.startswith(PREFIX):
            continue
        data = line[len(PREFIX) :].strip()
        if data == END:
            return gathered.reply()
        chunk = decoder.decode(data)
        if chunk.error is not None:
            return None
        gathered.add(chunk)
    return None


async def _lines(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Lines end at `\\n` alone: a server may leave U+2028 unescaped inside an event's JSON."""
    rest = b""
    async for part in parts:
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            yield line
    if rest:
        yield rest

"""The replies of an OpenAI-compatible server, reduced to what is used, as types that msgspec decodes into."""

from __future__ import annotations

from typing import Any

import msgspec

from synthgen.corpus.records import ToolCall
from synthgen.corpus.token_ids import NO_IDS, are_ids, decode_ids


class ReplyMessage(msgspec.Struct, frozen=True):
    """The message of a reply; older servers write `reasoning_content`."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: tuple[ToolCall, ...] | None = None


class ReplyChoice(msgspec.Struct, frozen=True, rename={"ids": "token_ids"}):
    """One choice of a chat completion."""

    message: ReplyMessage
    finish_reason: str | None = None
    ids: msgspec.Raw = NO_IDS
    """The JSON text of its token ids."""

    @property
    def token_ids(self) -> tuple[int, ...] | None:
        """The ids decoded; None when there are none."""
        return decode_ids(self.ids) if are_ids(self.ids) else None


class ReplyUsage(msgspec.Struct, frozen=True):
    """Token counts by the server."""

    prompt_tokens: int
    completion_tokens: int = 0


class ChatReply(msgspec.Struct, frozen=True):
    """A chat completion, reduced to what is used."""

    choices: tuple[ReplyChoice, ...]
    usage: ReplyUsage
    prompt_token_ids: tuple[int, ...] | None = None
    kv_transfer_params: dict[str, Any] | None = None
    event_tokens: tuple[int, ...] = ()
    """Of a streamed one: how many token ids came with each event that had some."""


class CompletionChoice(msgspec.Struct, frozen=True):
    """One choice of a completion from token ids."""

    token_ids: tuple[int, ...] | None = None
    finish_reason: str | None = None


class CompletionReply(msgspec.Struct, frozen=True):
    """A completion from token ids, reduced to what is used."""

    choices: tuple[CompletionChoice, ...]
    usage: ReplyUsage
    kv_transfer_params: dict[str, Any] | None = None


class TokenizeReply(msgspec.Struct, frozen=True):
    """The ids of a text or a conversation."""

    tokens: tuple[int, ...]

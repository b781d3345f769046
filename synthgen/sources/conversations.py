"""Conversations with the replies that others wrote, from files of the same formats and shapes as prompts."""

from __future__ import annotations

from typing import Any

import msgspec

from synthgen.corpus.records import Message, seed_id
from synthgen.sources.prompt_file import RowFile, domain_of
from synthgen.sources.shapes import REPLY_COLUMNS, Shape, messages_with_replies


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked and answered; the last message is a reply."""

    source: str
    domain: str
    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()

    def __post_init__(self) -> None:
        first = next((message.role for message in self.messages if message.role != "system"), None)
        if first != "user":
            raise ValueError(f"the conversation starts with a message of {first!r}, not of the user")
        for message in self.messages:
            if message.role == "assistant" and not (message.content or "").strip() and not message.tool_calls:
                raise ValueError("a reply is empty")

    @property
    def id(self) -> str:
        """A hash of its content, replies included."""
        return seed_id(self.messages, self.tools)

    @property
    def replies(self) -> tuple[int, ...]:
        """Where the replies are among the messages."""
        return tuple(i for i, message in enumerate(self.messages) if message.role == "assistant")


class ConversationFile(RowFile[Conversation]):
    """The conversations of a file; a row without a reply is a bad row."""

    other_columns = RowFile.other_columns | set(REPLY_COLUMNS)

    def _make(self, row: dict[str, Any], shape: Shape) -> Conversation:
        return Conversation(
            source=self.place.name,
            domain=domain_of(row, self.place),
            messages=msgspec.convert(messages_with_replies(row, shape), tuple[Message, ...]),
            tools=msgspec.convert(row.get("tools") or (), tuple[dict[str, Any], ...]),
        )

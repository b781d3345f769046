"""The user turns of a row: the replies between them are the model's own, not those that the row holds.

A conversation is taken apart when what stands between its user messages is a reply of plain text each
time. Tool calls, messages that are more than text, a system message in the middle and user messages in
a row can't be said again that way: such a prompt stays one, with its history as it is.
"""

from __future__ import annotations

from typing import Any

import msgspec

from synthgen.corpus.records import Message
from synthgen.sources.shapes import Kind, Shape, messages_of


def conversation_of(row: dict[str, Any], shape: Shape) -> tuple[tuple[Message, ...], tuple[str, ...]]:
    """The messages of a row's prompt, and the user turns that follow.

    Raises ValueError or msgspec.ValidationError for a row that has none, or an empty turn.
    """
    messages = msgspec.convert(messages_of(row, shape), tuple[Message, ...])
    if shape.kind is Kind.TURNS:
        turns = msgspec.convert(row[shape.column], tuple[str, ...])[1:]
    else:
        messages, turns = taken_apart(messages)
    for number, turn in enumerate(turns, start=2):
        if not turn.strip():
            raise ValueError(f"turn {number} is empty")
    return messages, turns


def taken_apart(messages: tuple[Message, ...]) -> tuple[tuple[Message, ...], tuple[str, ...]]:
    """A conversation up to its first user message, and the later ones; whole, when it can't be said again."""
    first = next((i for i, message in enumerate(messages) if message.role == "user"), len(messages))
    opening, replies, later = messages[:first], messages[first + 1 :: 2], messages[first + 2 :: 2]
    can_be_said_again = (
        len(replies) == len(later)
        and all(_is_text(message) and message.role != "tool" for message in opening)
        and all(_is_text(message) and message.role == "user" for message in messages[first::2])
        and all(not message.tool_calls and message.role == "assistant" for message in replies)
    )
    if not can_be_said_again:
        return messages, ()
    return messages[: first + 1], tuple(message.content or "" for message in later)


def _is_text(message: Message) -> bool:
    return message == Message(role=message.role, content=message.content)

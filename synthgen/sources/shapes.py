"""The shape of a row: in which column its prompt is, and in which form.

    OpenAI messages      messages: [{role, content}, …]
    text                 prompt, question or instruction, with its input if any; HumanEval's prompt too
    user turns           turns: [text, …], each asked after the model's own answer to the one before
    ShareGPT             conversations: [{from, value}, …] or [{role, content}, …]
    OpenAI batch         {custom_id, method, url, body: {messages, …}}

A row that has several is what stands first in this list. The last message of a conversation is the reference
answer when it is the assistant's, and no part of the prompt; `turns.py` says what becomes of those before.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

TEXT_COLUMNS = ("prompt", "question", "instruction")
REPLY_COLUMNS = ("answer", "response", "output", "completion", "canonical_solution")
"""Where the reply to a text is: the first that holds text. Self-instruct keeps it under `instances`."""


class Kind(enum.StrEnum):
    """The form of a prompt, in words."""

    MESSAGES = "OpenAI messages"
    TEXT = "text"
    TURNS = "user turns"
    SHAREGPT = "ShareGPT from/value"
    SHAREGPT_ROLES = "ShareGPT role/content"
    BATCH = "OpenAI batch request"


COLUMNS = {
    "messages": (Kind.MESSAGES, Kind.SHAREGPT),
    **dict.fromkeys(TEXT_COLUMNS, (Kind.TEXT,)),
    "turns": (Kind.TURNS,),
    "conversations": (Kind.SHAREGPT, Kind.SHAREGPT_ROLES),
    "body": (Kind.BATCH,),
}
"""What is looked for, in this order."""
OTHER_COLUMNS = (
    "domain", "category", "source", "tools", "sampling", "input", "instances", "task_id", "url", "method",
)  # fmt: skip
"""What else of a row counts."""
ROLES = {
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "gpt", "chatgpt", "bot"), "assistant"),
    "system": "system",
    **dict.fromkeys(("tool", "function"), "tool"),
}


@dataclass(frozen=True, slots=True)
class Shape:
    """Where the prompts of a file are."""

    kind: Kind
    column: str
    note: str = field(default="", compare=False)
    """What else the first row shows; makes no difference in reading."""

    def __str__(self) -> str:
        return f"{self.kind} in `{self.column}`{self.note}"


def detect(row: dict[str, Any], column: str | None = None) -> Shape:
    """The shape of a row, whose prompt is in `column` if that is given. Raises ValueError."""
    if column is not None:
        return _shape_of(row, column)
    for name, kinds in COLUMNS.items():
        kind = _kind_of(row.get(name), name)
        if kind in kinds:
            return Shape(kind, name, _note(row, name))
    raise ValueError(
        f"no prompt: has none of {', '.join(COLUMNS)}, or not as it should be; keys: {', '.join(row)}; "
        f"prompts.field names another column"
    )


def _shape_of(row: dict[str, Any], column: str) -> Shape:
    if column not in row:
        raise ValueError(f"no `{column}`, which prompts.field names; keys: {', '.join(row)}")
    value = row[column]
    kind = _kind_of(value, column)
    if kind is None:
        held = "is empty" if not value else f"holds {type(value).__name__}, not text or a list of messages"
        raise ValueError(f"`{column}`, which prompts.field names, {held}")
    return Shape(kind, column, _note(row, column))


def _kind_of(value: Any, column: str) -> Kind | None:
    first = value[0] if isinstance(value, list) and value else None
    if isinstance(first, dict):
        if "from" in first:
            return Kind.SHAREGPT
        return Kind.SHAREGPT_ROLES if column == "conversations" else Kind.MESSAGES
    if isinstance(first, str):
        return Kind.TURNS
    if isinstance(value, dict) and (column == "body" or "messages" in value):
        return Kind.BATCH
    return Kind.TEXT if isinstance(value, str) else None


def _note(row: dict[str, Any], column: str) -> str:
    if column == "prompt" and "task_id" in row:
        return " (HumanEval)"
    return " with its input" if column == "instruction" and ("input" in row or "instances" in row) else ""


def messages_of(row: dict[str, Any], shape: Shape) -> list[Any]:
    """The messages of a row's prompt, unchecked, in the OpenAI form; of user turns the first.

    Raises ValueError.
    """
    value = row[shape.column]
    match shape.kind:
        case Kind.TEXT:
            text = _with_input(value, row) if shape.column in TEXT_COLUMNS else value
            return [{"role": "user", "content": text}]
        case Kind.TURNS:
            return [{"role": "user", "content": value[0]}]
        case Kind.BATCH:
            return _asked(value)
        case Kind.MESSAGES | Kind.SHAREGPT | Kind.SHAREGPT_ROLES:
            return _without_reply(_turns(row, shape))


def messages_with_replies(row: dict[str, Any], shape: Shape) -> list[Any]:
    """The messages of a row up to its last reply, unchecked, in the OpenAI form. Raises ValueError."""
    match shape.kind:
        case Kind.TEXT:
            return [*messages_of(row, shape), {"role": "assistant", "content": _reply(row)}]
        case Kind.TURNS | Kind.BATCH:
            raise ValueError(f"no reply: {shape} is what is asked, without an answer")
        case Kind.MESSAGES | Kind.SHAREGPT | Kind.SHAREGPT_ROLES:
            return _until_reply(_turns(row, shape))


def _turns(row: dict[str, Any], shape: Shape) -> list[Any]:
    turns: list[Any] = row[shape.column]
    if shape.kind is Kind.SHAREGPT:
        return [_from_value(turn) for turn in turns]
    if shape.kind is Kind.SHAREGPT_ROLES:
        return [_role_content(turn) for turn in turns]
    return [_without_nulls(turn) for turn in turns]


def _reply(row: dict[str, Any]) -> str:
    instances = row.get("instances")
    first = instances[0] if isinstance(instances, list) and instances else None
    given = [row.get(name) for name in REPLY_COLUMNS]
    given.append(first.get("output") if isinstance(first, dict) else None)
    for reply in given:
        if isinstance(reply, str) and reply.strip():
            return reply
    known = ", ".join(REPLY_COLUMNS)
    raise ValueError(f"no reply: has no text in any of {known}; keys: {', '.join(row)}")


def _until_reply(turns: list[Any]) -> list[Any]:
    """A conversation without what was asked last and never answered."""
    replies = [
        i for i, turn in enumerate(turns) if isinstance(turn, dict) and turn.get("role") == "assistant"
    ]
    if not replies:
        raise ValueError("no reply: no message of the conversation is the assistant's")
    return turns[: replies[-1] + 1]


def _asked(body: dict[str, Any]) -> list[Any]:
    """A request is sent as it is: an assistant message at its end would be no reference answer."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        raise ValueError(f"the body has no list of messages; keys: {', '.join(body)}")
    return [_without_nulls(message) for message in messages]


def _with_input(text: str, row: dict[str, Any]) -> str:
    """An instruction with the input it is about, which self-instruct keeps under `instances`."""
    instances = row.get("instances")
    first = instances[0] if isinstance(instances, list) and instances else row
    given = first.get("input") if isinstance(first, dict) else None
    return f"{text}\n\n{given}" if isinstance(given, str) and given.strip() else text


def _from_value(turn: Any) -> dict[str, Any]:
    if not isinstance(turn, dict) or "from" not in turn:
        raise ValueError("a turn has no `from`")
    return {"role": _role(turn["from"]), "content": turn.get("value")}


def _role_content(turn: Any) -> dict[str, Any]:
    if not isinstance(turn, dict) or "role" not in turn:
        raise ValueError("a turn has no `role`")
    return {**_without_nulls(turn), "role": _role(turn["role"])}


def _role(name: Any) -> str:
    role = ROLES.get(name.lower()) if isinstance(name, str) else None
    if role is None:
        raise ValueError(f"a turn is from {name!r}; known are {', '.join(ROLES)}")
    return role


def _without_nulls(message: Any) -> Any:
    if not isinstance(message, dict):
        return message
    return {key: value for key, value in message.items() if value is not None}


def _without_reply(messages: list[Any]) -> list[Any]:
    last = messages[-1]
    return messages[:-1] if isinstance(last, dict) and last.get("role") == "assistant" else messages

"""Rows as lines of JSON, in the shapes that trainers of drafts and of chat models read.

What a loader guesses from the first lines must hold for all: wherever a trainer reads the file without our
card, every line has the same keys, and what varies (tool calls, tools) is JSON text.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from synthgen.corpus.samples import DatasetRow
from synthgen.export.rows import Json, loss_mask, messages

SHAREGPT_ROLES = {"user": "human", "assistant": "gpt", "developer": "system"}
"""Roles that ShareGPT calls otherwise."""


def write_lines(path: Path, rows: Iterable[Json]) -> None:
    """Write one line a row."""
    encode = msgspec.json.Encoder().encode
    with path.open("wb") as file:
        for row in rows:
            file.write(encode(row) + b"\n")


def speculators(row: DatasetRow) -> Json:
    """Exact ids with their mask, which `speculators prepare-data` and SpecForge take as they are."""
    return {"id": row.id, "input_ids": row.token_ids, "loss_mask": loss_mask(row)}


def openai(row: DatasetRow) -> Json:
    """`messages`, and `tools` where there are some."""
    plain: Json = {"id": row.id, "messages": messages(row)}
    return plain | {"tools": row.tools} if row.tools else plain


def specforge(row: DatasetRow) -> Json:
    """`conversations` with the thinking as `reasoning_content`, and `tools` as JSON text.

    SpecForge reads the file by its first lines and parses the JSON text itself.
    """
    return {
        "id": row.id,
        "conversations": [
            {
                "role": message["role"],
                "content": message["content"] or "",
                "reasoning_content": message.get("reasoning_content", ""),
                "tool_calls": _text(message.get("tool_calls", [])),
                "tool_call_id": message.get("tool_call_id", ""),
                "name": message.get("name", ""),
            }
            for message in messages(row)
        ],
        "tools": _text(row.tools),
    }


def torchspec(row: DatasetRow) -> Json:
    """`conversations` with the thinking in the content, the only place where TorchSpec's parsers look."""
    return {"id": row.id, "conversations": [_inline(message) for message in messages(row)]}


def sharegpt(row: DatasetRow) -> Json:
    """`conversations` of `from` and `value`; thinking and tool calls stand in the value, in tags."""
    return {
        "id": row.id,
        "conversations": [
            {"from": SHAREGPT_ROLES.get(message["role"], message["role"]), "value": _value(message)}
            for message in messages(row)
        ],
        "tools": _text(row.tools) if row.tools else "",
    }


def _inline(message: Json) -> Json:
    plain = {key: value for key, value in message.items() if key != "reasoning_content"}
    return plain | {"content": _with_thinking(message)}


def _with_thinking(message: Json) -> str:
    content: str = message["content"] or ""
    thinking = message.get("reasoning_content")
    return content if thinking is None else f"<think>{thinking}</think>{content}"


def _value(message: Json) -> str:
    calls = (f"<tool_call>\n{_call(call)}\n</tool_call>" for call in message.get("tool_calls", []))
    return "\n".join(part for part in (_with_thinking(message), *calls) if part)


def _call(call: Json) -> str:
    """A call as JSON text; arguments that are no JSON stay text in it."""
    function = call["function"]
    try:
        arguments: Any = msgspec.json.decode(function["arguments"])
    except msgspec.DecodeError:
        arguments = function["arguments"]
    return _text({"name": function["name"], "arguments": arguments})


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()

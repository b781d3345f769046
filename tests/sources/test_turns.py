"""Conversations of a prompts file: which are said again turn by turn, and which stay as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from synthgen.corpus.records import Message, seed_id
from synthgen.errors import InputError
from synthgen.sources.prompt_file import PromptFile
from synthgen.sources.shapes import detect
from synthgen.sources.turns import conversation_of


def said(role: str, content: str | None, **more: Any) -> dict[str, Any]:
    """A message in the OpenAI form."""
    return {"role": role, "content": content, **more}


def from_value(*turns: tuple[str, str]) -> dict[str, Any]:
    """A ShareGPT row."""
    return {"conversations": [{"from": name, "value": text} for name, text in turns]}


S, U1, A1, U2, A2, U3 = (
    said("system", "s"),
    said("user", "one"),
    said("assistant", "first"),
    said("user", "two"),
    said("assistant", "second"),
    said("user", "three"),
)
CALL = {"id": "f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def read(row: dict[str, Any]) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """A row's messages as plain values, and its turns."""
    messages, turns = conversation_of(row, detect(row))
    return [msgspec.to_builtins(message) for message in messages], turns


@pytest.mark.parametrize(
    ("row", "messages", "turns"),
    [
        ({"turns": ["one", "two", "three"]}, [U1], ("two", "three")),
        ({"turns": ["one"]}, [U1], ()),
        ({"messages": [U1, A1, U2]}, [U1], ("two",)),
        ({"messages": [S, U1, A1, U2, A2, U3]}, [S, U1], ("two", "three")),
        ({"messages": [S, U1, A1, U2, A2]}, [S, U1], ("two",)),
        ({"messages": [A1, U1, A2, U2]}, [A1, U1], ("two",)),
        ({"messages": [S, U1, A1]}, [S, U1], ()),
        (
            from_value(("system", "s"), ("human", "one"), ("gpt", "first"), ("human", "two"), ("gpt", "x")),
            [S, U1],
            ("two",),
        ),
        ({"conversations": [U1, A1, U2]}, [U1], ("two",)),
        ({"body": {"messages": [U1, A1, U2]}}, [U1], ("two",)),
    ],
)
def test_replies_are_left_out_and_the_user_goes_on(
    row: dict[str, Any], messages: list[dict[str, Any]], turns: tuple[str, ...]
) -> None:
    """A greeting before the first user message stays, since nobody asked for it."""
    assert read(row) == (messages, turns)


@pytest.mark.parametrize(
    "messages",
    [
        [U1, said("assistant", "x", tool_calls=[CALL]), said("tool", "4", tool_call_id="f:0"), A1, U2],
        [U1, said("assistant", "x", tool_calls=[CALL]), U2],
        [U1, said("tool", "4", tool_call_id="f:0")],
        [said("assistant", "x", tool_calls=[CALL]), said("tool", "4", tool_call_id="f:0"), U1, A1, U2],
        [said("tool", "4"), U1, A1, U2],
        [U1, A1, said("user", "two", name="Ann")],
        [said("user", "one", name="Ann"), A1, U2],
        [U1, A1, S, U2],
        [U1, S, U2],
        [U1, U2],
        [U1, U2, A1, U3],
        [U1, A1, A2, U2],
        [U1, A1, A2, U2, A1, U3],
    ],
)
def test_what_cant_be_said_again_stays_as_it_is(messages: list[dict[str, Any]]) -> None:
    """Tool calls, names, a system message in the middle, two messages in a row."""
    for row in ({"messages": messages}, {"body": {"messages": messages}}):
        found, turns = conversation_of(row, detect(row))
        assert (found, turns) == (msgspec.convert(messages, tuple[Message, ...]), ())


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"turns": ["one", " \n", "three"]}, "turn 2 is empty"),
        ({"messages": [U1, A1, U2, A2, said("user", "")]}, "turn 3 is empty"),
        ({"messages": [U1, A1, said("user", None)]}, "turn 2 is empty"),
        ({"turns": ["", "two"]}, "the prompt is empty"),
        ({"turns": ["one", 2]}, r"Expected `str`, got `int` - at `\$\[1\]`"),
        ({"turns": ["one", None]}, r"Expected `str`, got `null` - at `\$\[1\]`"),
    ],
)
def test_an_empty_turn_is_a_bad_row(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    """Counted from one, as the rows are."""
    path = tmp_path / "p.jsonl"
    path.write_bytes(msgspec.json.encode(row) + b"\n")
    with pytest.raises(InputError, match=rf"p\.jsonl:1:1: {message}"):
        list(PromptFile(path))


def test_a_prompt_of_several_turns_has_an_id_of_its_own(tmp_path: Path) -> None:
    """The same in each shape, and that of the single turn is what it was."""
    path = tmp_path / "p.jsonl"
    ids = []
    for row in ({"turns": ["hi", "two"]}, {"messages": [said("user", "hi"), A1, U2]}, {"turns": ["hi"]}):
        path.write_bytes(msgspec.json.encode(row) + b"\n")
        ids += [prompt.id for prompt in PromptFile(path)]
    assert ids[0] == ids[1] == seed_id((Message(role="user", content="hi"),), turns=("two",))
    assert ids[2] == "9c8fd1e15516c411" != ids[0]

"""Shapes: where the prompt of a row is, and what of it is sent."""

from __future__ import annotations

from typing import Any

import pytest

from synthgen.sources.shapes import detect, messages_of

USER, ASSISTANT = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
SYSTEM = {"role": "system", "content": "s"}
HUMAN, GPT = {"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}


@pytest.mark.parametrize(
    ("row", "shape", "messages"),
    [
        ({"messages": [USER]}, "OpenAI messages in `messages`", [USER]),
        ({"messages": [SYSTEM, USER, ASSISTANT]}, "OpenAI messages in `messages`", [SYSTEM, USER]),
        (
            {"messages": [USER, ASSISTANT, USER, ASSISTANT]},
            "OpenAI messages in `messages`",
            [USER, ASSISTANT, USER],
        ),
        ({"messages": [{**USER, "name": None}]}, "OpenAI messages in `messages`", [USER]),
        ({"messages": [HUMAN, GPT]}, "ShareGPT from/value in `messages`", [USER]),
        ({"prompt": "q", "conversations": [GPT]}, "text in `prompt`", [USER]),
        ({"task_id": "HumanEval/0", "prompt": "q"}, "text in `prompt` (HumanEval)", [USER]),
        ({"prompt": None, "question": "q"}, "text in `question`", [USER]),
        ({"instruction": "q", "input": ""}, "text in `instruction` with its input", [USER]),
        (
            {"instruction": "q", "input": "i"},
            "text in `instruction` with its input",
            [{"role": "user", "content": "q\n\ni"}],
        ),
        ({"turns": ["q", "r"]}, "user turns in `turns`", [USER]),
        ({"conversations": [HUMAN, GPT]}, "ShareGPT from/value in `conversations`", [USER]),
        ({"conversations": [USER, ASSISTANT]}, "ShareGPT role/content in `conversations`", [USER]),
        (
            {"url": "/v1/chat/completions", "body": {"messages": [USER]}},
            "OpenAI batch request in `body`",
            [USER],
        ),
        ({"body": {"messages": [USER, ASSISTANT]}}, "OpenAI batch request in `body`", [USER, ASSISTANT]),
    ],
)
def test_a_shape_is_found_and_read(row: dict[str, Any], shape: str, messages: list[Any]) -> None:
    """Nulls are as if they weren't there, and a reply at the end is no part of the prompt."""
    found = detect(row)
    assert str(found) == shape
    assert messages_of(row, found) == messages


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("human", "user"),
        ("user", "user"),
        ("Human", "user"),
        ("gpt", "assistant"),
        ("assistant", "assistant"),
        ("chatgpt", "assistant"),
        ("bot", "assistant"),
        ("system", "system"),
        ("tool", "tool"),
        ("function", "tool"),
    ],
)
def test_a_sharegpt_speaker_has_its_role(name: str, role: str) -> None:
    """Whatever the collection calls it, in either form."""
    for row in (
        {"conversations": [{"from": name, "value": "x"}, HUMAN]},
        {"conversations": [{"role": name, "content": "x"}, USER]},
    ):
        assert messages_of(row, detect(row)) == [{"role": role, "content": "x"}, USER]


@pytest.mark.parametrize(
    ("row", "shape", "messages"),
    [
        ({"prompt": "p", "text": "q"}, "text in `text`", [USER]),
        ({"chat": [USER, ASSISTANT]}, "OpenAI messages in `chat`", [USER]),
        ({"chat": [HUMAN, GPT]}, "ShareGPT from/value in `chat`", [USER]),
        ({"chat": ["q", "r"]}, "user turns in `chat`", [USER]),
        ({"instruction": "i", "input": "q"}, "text in `input`", [USER]),
    ],
)
def test_a_named_column_is_read_by_what_it_holds(
    row: dict[str, Any], shape: str, messages: list[Any]
) -> None:
    """Whatever else the row has."""
    column = next(name for name in ("text", "chat", "input") if name in row)
    found = detect(row, column)
    assert str(found) == shape
    assert messages_of(row, found) == messages


@pytest.mark.parametrize(
    ("row", "column", "message"),
    [
        ({"a": 1, "b": 2}, "x", r"no `x`, which prompts\.field names; keys: a, b"),
        ({"x": None}, "x", r"`x`, which prompts\.field names, is empty"),
        ({"x": 5}, "x", r"`x`, which prompts\.field names, holds int, not text or a list of messages"),
        (
            {"messages": []},
            None,
            r"no prompt: has none of messages, .*; keys: messages; prompts\.field names",
        ),
        (
            {"conversations": [{"from": "narrator", "value": "x"}]},
            None,
            r"a turn is from 'narrator'; known are user,",
        ),
        ({"conversations": [HUMAN, USER]}, None, r"a turn has no `from`"),
        ({"conversations": [USER, HUMAN]}, None, r"a turn has no `role`"),
        ({"conversations": [HUMAN, None]}, None, r"a turn has no `from`"),
        ({"body": {"input": "x"}}, None, r"the body has no list of messages; keys: input"),
    ],
)
def test_a_row_without_a_prompt_says_why(row: dict[str, Any], column: str | None, message: str) -> None:
    """What was looked for, and what there is."""
    with pytest.raises(ValueError, match=message):
        messages_of(row, detect(row, column))

"""Conversations with replies: every shape that has them, and rows that have none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from synthgen.errors import InputError
from synthgen.sources.conversations import Conversation, ConversationFile


def read(path: Path, *rows: Any) -> list[Conversation]:
    """The conversations of a JSONL file with these rows."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return list(ConversationFile(path))


def spoken(conversation: Conversation) -> list[tuple[str, str | None]]:
    """Role and text of each message."""
    return [(message.role, message.content) for message in conversation.messages]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (
            {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
            [("user", "a"), ("assistant", "b")],
        ),
        (
            {"conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "a"},
                               {"from": "gpt", "value": "b"}, {"from": "human", "value": "never answered"}]},
            [("system", "s"), ("user", "a"), ("assistant", "b")],
        ),
        (
            {"conversations": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
                               {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]},
            [("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")],
        ),
        ({"question": "1 + 1?", "answer": "#### 2"}, [("user", "1 + 1?"), ("assistant", "#### 2")]),
        (
            {"instruction": "Add.", "input": "1 1", "output": "2"},
            [("user", "Add.\n\n1 1"), ("assistant", "2")],
        ),
        (
            {"task_id": "HumanEval/0", "prompt": "def f():\n", "canonical_solution": "    return 1\n"},
            [("user", "def f():\n"), ("assistant", "    return 1\n")],
        ),
        (
            {"instruction": "Add.", "instances": [{"input": "1 1", "output": "2"}, {"output": "3"}]},
            [("user", "Add.\n\n1 1"), ("assistant", "2")],
        ),
        ({"prompt": "a", "response": "", "completion": "b"}, [("user", "a"), ("assistant", "b")]),
    ],
    ids=["OpenAI", "ShareGPT", "ShareGPT roles", "GSM8K", "Alpaca", "HumanEval", "instances", "completion"],
)  # fmt: skip
def test_each_shape_gives_the_conversation_up_to_its_last_reply(
    tmp_path: Path, row: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    """Roles in OpenAI's names; what nobody answered is left away."""
    (found,) = read(tmp_path / "rows.jsonl", row)
    assert spoken(found) == expected
    assert (found.source, found.domain) == ("rows.jsonl", "rows")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"messages": [{"role": "user", "content": "a"}]}, "no reply: no message of the conversation is"),
        ({"question": "a"}, r"no reply: has no text in any of answer, response.*; keys: question"),
        ({"turns": ["a", "b"]}, "no reply: .* in `turns` is what is asked, without an answer"),
        ({"body": {"messages": [{"role": "user", "content": "a"}]}}, "no reply: OpenAI batch request"),
        (
            {"conversations": [{"from": "gpt", "value": "Hello!"}]},
            "the conversation starts with a message of 'assistant', not of the user",
        ),
        (
            {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": " "}]},
            "a reply is empty",
        ),
    ],
)
def test_a_row_without_a_reply_is_a_bad_row(tmp_path: Path, row: dict[str, Any], reason: str) -> None:
    """With file, row and what is missing; or it is counted, when bad rows are skipped."""
    path = tmp_path / "rows.jsonl"
    with pytest.raises(InputError, match=rf"rows\.jsonl:1:1: {reason}"):
        read(path, row)
    with path.open("a") as file:
        file.write(json.dumps({"question": "a", "answer": "b"}) + "\n")
    skipping = ConversationFile(path, None, "skip")
    list(skipping)
    assert (skipping.rows, skipping.first_left_out is not None) == (2, True)


def test_a_reply_may_be_a_tool_call_alone(tmp_path: Path) -> None:
    """Without text, but not empty."""
    call = {"id": "f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]
    (found,) = read(tmp_path / "rows.jsonl", {"messages": messages})
    assert found.messages[1].tool_calls[0].function.name == "f"
    assert found.replies == (1,)


def test_the_reply_columns_of_a_parquet_file_are_read(tmp_path: Path) -> None:
    """Also those that a prompts file needn't have; others are not."""
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pytest.importorskip("pyarrow").table
    columns = {"question": ["a"], "answer": ["b"], "source": ["s"], "embedding": [[0.5]]}
    parquet.write_table(table(columns), tmp_path / "rows.parquet")
    (found,) = ConversationFile(tmp_path / "rows.parquet")
    assert spoken(found) == [("user", "a"), ("assistant", "b")]
    assert found.domain == "s"


def test_a_conversation_is_named_by_all_it_says(tmp_path: Path) -> None:
    """Another reply to the same prompt is another conversation."""
    first, second, again = read(
        tmp_path / "rows.jsonl",
        {"question": "a", "answer": "b"},
        {"question": "a", "answer": "c"},
        {"question": "a", "answer": "b"},
    )
    assert first.id == again.id != second.id


def test_a_hub_dataset_gives_conversations_as_a_file_does(tmp_path: Path) -> None:
    """Here a directory in the hub's form, with open-perfectblend's columns and GSM8K's."""
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pytest.importorskip("pyarrow").Table
    turns = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]
    for name, row in (
        ("blend", {"source": "math", "conversations": turns}),
        ("grade", {"question": "a", "answer": "b"}),
    ):
        (tmp_path / name).mkdir()
        parquet.write_table(table.from_pylist([row]), tmp_path / name / "train-00000-of-00001.parquet")
    (blend,) = ConversationFile(f"hub:{tmp_path / 'blend'}:train")
    (grade,) = ConversationFile(f"hub:{tmp_path / 'grade'}:train")
    assert spoken(blend) == spoken(grade) == [("user", "a"), ("assistant", "b")]
    assert (blend.source, blend.domain) == ("blend", "math")
    assert (grade.source, grade.domain) == ("grade", "grade")

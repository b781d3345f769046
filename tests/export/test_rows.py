"""Rows for others: which of them text can carry, the mask, and each shape written out."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from synthgen.corpus.records import Finish, Message, TruncatedIn
from synthgen.corpus.samples import DatasetRow
from synthgen.export.jsonl import openai, sharegpt, specforge, speculators, torchspec
from synthgen.export.rows import left_out, loss_mask
from tests.export.dataset import HELDOUT, TOOL, TRAIN, C, R, T, row, spans

PLAIN_ROW, _, _, CALL_ROW, CONVERSATION, VERBATIM = TRAIN
CALL_TEXT = (
    '[{"id":"functions.weather:0","type":"function",'
    '"function":{"name":"weather","arguments":"{\\"city\\": \\"Ulm\\"}"}}]'
)
TOOLS_TEXT = (
    '[{"type":"function","function":{"name":"weather",'
    '"parameters":{"type":"object","properties":{"city":{"type":"string"}}}}}]'
)
CALL_VALUE: dict[str, Any] = {
    "id": "functions.weather:0",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city": "Ulm"}'},
}


def as_written(line: dict[str, Any]) -> Any:
    """A line as it reads back."""
    return msgspec.json.decode(msgspec.json.encode(line))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"thinking": None}, "unsplit"),
        ({"thinking": None, "response": "Hm</think>6", "tool_calls": CALL_ROW.tool_calls}, "unsplit"),
        ({"thinking": None, "spans": spans((3, 4, T), (4, 8, R))}, None),
        ({"thinking": None, "spans": spans((3, 8, R))}, None),
        ({"thinking": None, "response": "Never closed", "spans": spans((3, 8, T))}, "unanswered"),
        ({"response": "Called", "spans": spans((3, 8, T)), "tool_calls": CALL_ROW.tool_calls}, None),
        ({"finish": Finish.LENGTH, "truncated_in": TruncatedIn.THINKING, "response": None}, "truncated"),
        ({"finish": Finish.LENGTH, "truncated_in": TruncatedIn.RESPONSE}, "truncated"),
        ({"response": None}, "unanswered"),
        ({"response": " \n"}, "unanswered"),
        ({"spans": spans((3, 6, T), (6, 8, C)), "response": "x"}, "unparsed"),
    ],
)
def test_text_carries_only_turns_that_ended_with_something_it_can_say(
    changes: dict[str, Any], reason: str | None
) -> None:
    """A cut reply would read as a finished one, and calls that nobody parsed have no text."""
    assert left_out(row(1, **changes)) == reason


def test_a_reply_of_tool_calls_alone_is_carried() -> None:
    """It has no text, and needs none."""
    assert left_out(CALL_ROW) is None


@pytest.mark.parametrize(
    ("bounds", "mask"),
    [
        (((3, 6, T), (6, 8, R)), [0, 0, 0, 1, 1, 1, 1, 1]),
        (((1, 2, R), (4, 5, C)), [0, 1, 0, 0, 1, 0, 0, 0]),
        ((), [0, 0, 0, 0, 0, 0, 0, 0]),
    ],
)
def test_the_mask_is_one_exactly_on_the_spans(bounds: Any, mask: list[int]) -> None:
    """Of whatever kind they are."""
    assert loss_mask(row(1, spans=spans(*bounds))) == mask


def test_speculators_gets_ids_and_mask() -> None:
    """Of rows that were cut in the thinking too."""
    assert as_written(speculators(TRAIN[2])) == {
        "id": "0000000000000003-0",
        "input_ids": [1, 2, 3, 43, 5, 90, 7, 8],
        "loss_mask": [0, 0, 0, 1, 1, 1, 1, 1],
    }


def test_openai_has_thinking_beside_the_content_and_earlier_replies_without() -> None:
    """`reasoning_content` is where chat templates look for it."""
    assert as_written(openai(CONVERSATION)) == {
        "id": "0000000000000005-0",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hi."},
            {"role": "assistant", "content": "Hello."},
            {"role": "user", "content": "What is 5 + 1?"},
            {"role": "assistant", "content": "It is 6.", "reasoning_content": "One more."},
        ],
    }


def test_openai_has_tools_as_they_are_sent() -> None:
    """Tools are objects, arguments the text the model wrote."""
    assert as_written(openai(CALL_ROW)) == {
        "id": "0000000000000004-0",
        "messages": [
            {"role": "user", "content": "Weather in Ulm?"},
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "One more.",
                "tool_calls": [CALL_VALUE],
            },
        ],
        "tools": [TOOL],
    }


def test_openai_keeps_whose_result_a_tool_message_is() -> None:
    """A call without its id can't be matched."""
    assert as_written(openai(HELDOUT[0]))["messages"][1:3] == [
        {"role": "assistant", "content": None, "tool_calls": [CALL_VALUE]},
        {"role": "tool", "content": "Rain.", "tool_call_id": "functions.weather:0"},
    ]


def test_specforge_rows_have_the_same_keys_of_text_whatever_they_hold() -> None:
    """Its loader guesses the types by the first lines."""
    user = {"reasoning_content": "", "tool_calls": "[]", "tool_call_id": "", "name": ""}
    assert as_written(specforge(CALL_ROW)) == {
        "id": "0000000000000004-0",
        "conversations": [
            {"role": "user", "content": "Weather in Ulm?"} | user,
            {"role": "assistant", "content": ""}
            | user
            | {"reasoning_content": "One more.", "tool_calls": CALL_TEXT},
        ],
        "tools": TOOLS_TEXT,
    }
    assert as_written(specforge(VERBATIM)) == {
        "id": "0000000000000006-0",
        "conversations": [
            {"role": "user", "content": "What is 6 + 1?"} | user,
            {"role": "assistant", "content": "Six,\u2028then | seven."} | user,
        ],
        "tools": "[]",
    }


def test_torchspec_has_the_thinking_in_the_content() -> None:
    """A reply without thinking has no tags, so that its parser adds the empty ones."""
    assert as_written(torchspec(PLAIN_ROW)) == {
        "id": "0000000000000001-0",
        "conversations": [
            {"role": "user", "content": "What is 1 + 1?"},
            {"role": "assistant", "content": "<think>One more.</think>It is 2."},
        ],
    }
    assert as_written(torchspec(TRAIN[1]))["conversations"][1] == {
        "role": "assistant",
        "content": "It is 3.",
    }
    assert as_written(torchspec(CALL_ROW))["conversations"][1] == {
        "role": "assistant",
        "content": "<think>One more.</think>",
        "tool_calls": [CALL_VALUE],
    }


def test_sharegpt_has_tags_in_the_value() -> None:
    """Thinking, then text, then each call as JSON."""
    assert as_written(sharegpt(CALL_ROW)) == {
        "id": "0000000000000004-0",
        "conversations": [
            {"from": "human", "value": "Weather in Ulm?"},
            {
                "from": "gpt",
                "value": "<think>One more.</think>\n<tool_call>\n"
                '{"name":"weather","arguments":{"city":"Ulm"}}\n</tool_call>',
            },
        ],
        "tools": TOOLS_TEXT,
    }
    assert [turn["from"] for turn in sharegpt(CONVERSATION)["conversations"]] == [
        "system",
        "human",
        "gpt",
        "human",
        "gpt",
    ]


def test_sharegpt_keeps_arguments_that_are_no_json_as_text() -> None:
    """What a model wrote isn't always JSON."""
    call = msgspec.structs.replace(
        CALL_ROW.tool_calls[0],
        function=msgspec.structs.replace(CALL_ROW.tool_calls[0].function, arguments="city=Ulm"),
    )
    broken: DatasetRow = msgspec.structs.replace(CALL_ROW, tool_calls=(call,))
    assert '{"name":"weather","arguments":"city=Ulm"}' in sharegpt(broken)["conversations"][1]["value"]


def test_a_name_stays_with_its_message() -> None:
    """Kimi's template writes it in place of the role."""
    named = row(1, messages=(Message(role="user", content="Hi.", name="Ada"),))
    assert openai(named)["messages"][0] == {"role": "user", "content": "Hi.", "name": "Ada"}
    assert specforge(named)["conversations"][0]["name"] == "Ada"

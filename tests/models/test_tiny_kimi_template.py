"""The chat template writes the turns of Kimi-K2.5, character by character."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

CALL = {
    "id": "functions.add:0",
    "type": "function",
    "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'},
}
SECTION = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>"
    '{"a": 1, "b": 2}<|tool_call_end|><|tool_calls_section_end|>'
)


@pytest.fixture(scope="module")
def render(tokenizer: PreTrainedTokenizerBase) -> Any:
    """Render messages to text."""

    def rendered(messages: list[dict[str, Any]], **options: Any) -> str:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, **options))

    return rendered


def test_generation_prompt_opens_the_thinking(render: Any) -> None:
    """A prompt for generation ends inside the thinking."""
    assert render([{"role": "user", "content": "Hi"}], add_generation_prompt=True) == (
        "<|im_user|>user<|im_middle|>Hi<|im_end|><|im_assistant|>assistant<|im_middle|><think>"
    )


def test_thinking_off_closes_it_at_once(render: Any) -> None:
    """With `thinking` false the prompt holds an empty thinking."""
    assert render([{"role": "user", "content": "Hi"}], add_generation_prompt=True, thinking=False) == (
        "<|im_user|>user<|im_middle|>Hi<|im_end|><|im_assistant|>assistant<|im_middle|><think></think>"
    )


def test_system_turn_is_kept_and_none_is_added(render: Any) -> None:
    """A system prompt gets its own turn, and there is no default one."""
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert render(messages) == (
        "<|im_system|>system<|im_middle|>Be brief.<|im_end|><|im_user|>user<|im_middle|>Hi<|im_end|>"
    )
    assert render(messages[1:]) == "<|im_user|>user<|im_middle|>Hi<|im_end|>"


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_earlier_thinking_is_dropped(render: Any, field: str) -> None:
    """The thinking of a finished turn is written as an empty one."""
    messages = [
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "First.", field: "because"},
        {"role": "user", "content": "Two?"},
    ]
    assert render(messages, add_generation_prompt=True) == (
        "<|im_user|>user<|im_middle|>One?<|im_end|>"
        "<|im_assistant|>assistant<|im_middle|><think></think>First.<|im_end|>"
        "<|im_user|>user<|im_middle|>Two?<|im_end|>"
        "<|im_assistant|>assistant<|im_middle|><think>"
    )


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_thinking_of_a_running_tool_loop_is_kept(render: Any, field: str) -> None:
    """Thinking after the last answer without a tool call stays, with the call and its result."""
    messages = [
        {"role": "user", "content": "1+2?"},
        {"role": "assistant", "content": None, field: "I call add.", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "functions.add:0", "content": "3"},
    ]
    assert render(messages, add_generation_prompt=True) == (
        "<|im_user|>user<|im_middle|>1+2?<|im_end|>"
        f"<|im_assistant|>assistant<|im_middle|><think>I call add.</think>{SECTION}<|im_end|>"
        "<|im_system|>tool<|im_middle|>## Return of functions.add:0\n3<|im_end|>"
        "<|im_assistant|>assistant<|im_middle|><think>"
    )


def test_thinking_of_a_finished_tool_loop_is_dropped(render: Any) -> None:
    """Once the loop has an answer, the thinking before its calls goes too."""
    messages = [
        {"role": "user", "content": "1+2?"},
        {"role": "assistant", "content": "", "reasoning_content": "I call add.", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "functions.add:0", "content": "3"},
        {"role": "assistant", "content": "It is 3.", "reasoning_content": "done"},
        {"role": "user", "content": "Thanks"},
    ]
    assert render(messages) == (
        "<|im_user|>user<|im_middle|>1+2?<|im_end|>"
        f"<|im_assistant|>assistant<|im_middle|><think></think>{SECTION}<|im_end|>"
        "<|im_system|>tool<|im_middle|>## Return of functions.add:0\n3<|im_end|>"
        "<|im_assistant|>assistant<|im_middle|><think></think>It is 3.<|im_end|>"
        "<|im_user|>user<|im_middle|>Thanks<|im_end|>"
    )


def test_tool_arguments_may_be_an_object(render: Any) -> None:
    """Arguments that come as an object, as servers parse them, are written as JSON."""
    call = {**CALL, "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}
    messages = [
        {"role": "user", "content": "1+2?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    assert render(messages).endswith(f"<think></think>{SECTION}<|im_end|>")


def test_tools_are_declared_first(render: Any) -> None:
    """Declared tools come before everything else, as compact JSON."""
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    assert render([{"role": "user", "content": "Hi"}], tools=tools) == (
        "<|im_system|>tool_declare<|im_middle|>"
        '[{"type":"function","function":{"name":"add","parameters":{"type":"object"}}}]<|im_end|>'
        "<|im_user|>user<|im_middle|>Hi<|im_end|>"
    )


def test_content_may_be_a_list_of_parts(render: Any) -> None:
    """Text parts are joined, and an image is written as Kimi's media tokens."""
    parts = [{"type": "text", "text": "What is "}, {"type": "image_url"}, {"type": "text", "text": "?"}]
    assert render([{"role": "user", "content": parts}]) == (
        "<|im_user|>user<|im_middle|>What is "
        "<|media_begin|>image<|media_content|><|media_pad|><|media_end|>?<|im_end|>"
    )

"""Names of the tokens that chat templates write around messages, thinking and tool calls."""

from __future__ import annotations

import re

CONTROL_NAMES = (
    "<|im_start|>",
    "<|im_end|>",
    "<|im_user|>",
    "<|im_assistant|>",
    "<|im_system|>",
    "<|im_middle|>",
    "<|endoftext|>",
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<think>",
    "</think>",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<tool_call>",
    "</tool_call>",
)
"""Those of Kimi, Qwen, SmolLM and Llama: known also where no server was asked."""
_NAME = re.compile(r"<[^<>\s]+>|\[/?[A-Z][A-Z_]+\]")
_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")


def is_control(text: str) -> bool:
    """Whether a token's text looks like a name, `<|im_end|>` or `[INST]`, and isn't a byte like `<0x0A>`."""
    return bool(_NAME.fullmatch(text)) and not _BYTE.fullmatch(text)

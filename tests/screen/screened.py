"""Traces for the tests of screening: a sound one, and how it can be otherwise."""

from __future__ import annotations

from typing import Any

import msgspec

from synthgen.corpus.records import Finish, Message, Sampling, Timing, Trace
from synthgen.corpus.token_ids import encode_ids
from synthgen.screen.leaks import SpecialTokens
from synthgen.screen.view import View

IM_END, THINK, THINK_END, TOOL_SECTION, TOOL_CALL = 163586, 163606, 163607, 163595, 163597
SPECIAL = SpecialTokens.of(
    {
        "<|im_end|>": IM_END,
        "<|im_user|>": 163587,
        "<think>": THINK,
        "</think>": THINK_END,
        "<|tool_calls_section_begin|>": TOOL_SECTION,
        "<|tool_call_begin|>": TOOL_CALL,
    },
    "</think>",
    "<|tool_calls_section_begin|>",
)


def a_trace(**changes: Any) -> Trace:
    """A sound trace that thinks and answers, with some fields otherwise; `ask` is its user message."""
    ask = changes.pop("ask", "What is 2 + 2?")
    values: dict[str, Any] = {
        "seed_id": "00000000000000aa",
        "sample_index": 0,
        "source": "math.jsonl",
        "domain": "math",
        "messages": (Message(role="user", content=ask),),
        "prompt_token_ids": (1, 2, 3),
        "output": (10, 11, 12, THINK_END, 13, 14, IM_END),
        "think_end": 3,
        "tool_start": None,
        "thinking": "Two and two make four.",
        "response": "The answer is 4.",
        "finish": Finish.STOP,
        "truncated_in": None,
        "sampling": Sampling(temperature=0.7, top_p=1.0, max_tokens=384, thinking=True),
        "server": "0123456789abcdef",
        "timing": Timing(started_at=1.0, seconds=2.0),
    }
    values |= changes
    return Trace(**(values | {"output": encode_ids(values["output"])}))


def a_view(**changes: Any) -> View:
    """The same as screening reads it."""
    return msgspec.json.decode(msgspec.json.encode(a_trace(**changes)), type=View)

"""Traces for tests that read a corpus."""

from __future__ import annotations

from typing import Any

from synthgen.corpus.records import Finish, Message, Sampling, Timing, Trace
from synthgen.corpus.token_ids import encode_ids

THINK_END, TOOL = 90, 91
THINKING = Sampling(temperature=0.7, top_p=0.95, max_tokens=8, thinking=True)
NO_THINKING = Sampling(temperature=0.7, top_p=0.95, max_tokens=8, thinking=False)


def trace(seed_id: str, output: list[int], **changes: Any) -> Trace:
    """A trace with prompt ids 1, 2, 3; 90 closes its thinking and 91 opens its tool calls."""
    fields: dict[str, Any] = {
        "seed_id": seed_id,
        "sample_index": 0,
        "source": "a.jsonl",
        "domain": "math",
        "messages": (Message(role="user", content="What is 2 + 2?"),),
        "prompt_token_ids": (1, 2, 3),
        "output": encode_ids(output),
        "think_end": output.index(THINK_END) if THINK_END in output else None,
        "tool_start": output.index(TOOL) if TOOL in output else None,
        "thinking": "Two and two.",
        "response": "It is 4.",
        "finish": Finish.STOP,
        "truncated_in": None,
        "sampling": THINKING,
        "server": "0",
        "timing": Timing(started_at=1000.0, seconds=2.0),
    }
    return Trace(**{**fields, **changes})

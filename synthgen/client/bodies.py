"""What is asked of a server, as the JSON of its API."""

from __future__ import annotations

from typing import Any

import msgspec

from synthgen.corpus.records import Sampling, SeedPrompt


def chat_body(
    prompt: SeedPrompt,
    model: str,
    sampling: Sampling,
    *,
    stream: bool = False,
    capture_tokens: int | None = None,
) -> dict[str, Any]:
    """The chat completion that asks for a prompt's reply with its token ids.

    With `capture_tokens` it asks for the hidden states of as many tokens of prompt and reply, too.
    """
    body: dict[str, Any] = {
        "model": model,
        "messages": msgspec.to_builtins(prompt.messages),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
        "return_token_ids": True,
        "chat_template_kwargs": {"thinking": sampling.thinking},
    }
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    if capture_tokens is not None:
        body["kv_transfer_params"] = {"states": "all", "most": capture_tokens}
    if prompt.tools:
        body["tools"] = list(prompt.tools)
    return body

"""Chat templates for the scripted server: what a conversation, as /tokenize gets it, becomes."""

from __future__ import annotations

from typing import Any

START, END = "<|im_start|>", "<|im_end|>"


def kimi(body: dict[str, Any]) -> str:
    """A prompt ends in an open or an empty thinking; finished replies have an empty one."""
    text = ""
    for message in body["messages"]:
        empty = "<think></think>" if message["role"] == "assistant" else ""
        text += f"{START}{message['role']}>{empty}{message.get('content') or ''}{_calls(message)}{END}"
    thinking = body.get("chat_template_kwargs", {}).get("thinking", True)
    asks = f"{START}assistant>" + ("<think>" if thinking else "<think></think>")
    return text + asks if body.get("add_generation_prompt", True) else text


def _calls(message: dict[str, Any]) -> str:
    calls = "".join(call["function"]["arguments"] for call in message.get("tool_calls") or ())
    return f"<|tool_calls_section_begin|>{calls}" if calls else ""


def smollm(body: dict[str, Any]) -> str:
    """SmolLM2's: a default system message, and a line break after each turn, which nothing samples."""
    messages = body["messages"]
    if messages[0]["role"] != "system":
        messages = [{"role": "system", "content": "S"}, *messages]
    text = "".join(f"{START}{message['role']}\n{message['content']}{END}\n" for message in messages)
    return text + f"{START}assistant\n" if body.get("add_generation_prompt", True) else text


def forgetful(body: dict[str, Any]) -> str:
    """Rewrites history: of earlier replies only a dash is left."""
    last = len(body["messages"]) - 1
    messages = [
        {**message, "content": "-" if message["role"] == "assistant" and index < last else message["content"]}
        for index, message in enumerate(body["messages"])
    ]
    return smollm({**body, "messages": messages})


def closing_later(body: dict[str, Any]) -> str:
    """Asks for a reply inside the thinking, and writes finished replies without any."""
    asks = body.get("add_generation_prompt", True)
    return smollm({**body, "add_generation_prompt": False}) + (f"{START}assistant\n<think>" if asks else "")


def alternating(body: dict[str, Any]) -> str:
    """Refuses a conversation with a system message, as some templates do."""
    if body["messages"][0]["role"] == "system":
        raise ValueError("System role not supported")
    return kimi(body)

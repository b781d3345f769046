"""A canned server: each chat completion gets the same reply of 2,500 token ids, at next to no cost.

On `asyncio.Protocol`, so that what is measured is the client. The other paths answer what a vLLM would.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import msgspec

MODEL = "stub"
OUTPUT_TOKENS = 2500
THINK_END = 163607
MARKERS = {"</think>": THINK_END, "<|tool_calls_section_begin|>": 163595}
REPLY: dict[str, Any] = {
    "id": "x",
    "object": "chat.completion",
    "created": 1,
    "model": MODEL,
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "word " * 1000, "reasoning": "word " * 1500},
            "finish_reason": "stop",
            "token_ids": [*range(100_000, 101_499), THINK_END, *range(102_000, 103_000)],
        }
    ],
    "usage": {
        "prompt_tokens": 3,
        "completion_tokens": OUTPUT_TOKENS,
        "total_tokens": OUTPUT_TOKENS + 3,
        "completion_tokens_details": {"reasoning_tokens": 1499},
    },
    "prompt_token_ids": [1, 2, 3],
}
CONTROL: dict[bytes, Any] = {
    b"/v1/models": {"data": [{"id": MODEL, "max_model_len": 32768}]},
    b"/version": {"version": "0.32.0+stub"},
    b"/health": {},
}


@contextlib.contextmanager
def stub_server(delay_s: float) -> Iterator[str]:
    """A stub in a process of its own, on the first core, answering after `delay_s`; yields its base URL."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, delay_s), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}/v1"
    finally:
        process.terminate()
        process.join()


def pin(core: int) -> None:
    """Keep this process on one core, where there are several: stub and client don't share one."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > core:
        os.sched_setaffinity(0, {cores[core]})


def _serve(ready: Connection, delay_s: float) -> None:
    pin(0)
    chat = _response(REPLY)

    async def work() -> None:
        server = await asyncio.get_running_loop().create_server(
            lambda: _Stub(chat, delay_s), "127.0.0.1", 0, backlog=4096
        )
        ready.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(work())


class _Stub(asyncio.Protocol):
    def __init__(self, chat: bytes, delay_s: float) -> None:
        self._chat = chat
        self._delay_s = delay_s
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            head = self._received[:end].lower()
            body_end = end + 4 + _content_length(head)
            if len(self._received) < body_end:
                return
            body, self._received = self._received[end + 4 : body_end], self._received[body_end:]
            path = head.split(b" ", 2)[1]
            if path == b"/v1/chat/completions":
                closes = b"connection: close" in head
                asyncio.get_running_loop().call_later(self._delay_s, self._answer, closes)
            else:
                self._transport.write(_control(path, body))

    def _answer(self, closes: bool) -> None:
        self._transport.write(self._chat)
        if closes:  # datatrove reads a reply to the end of its connection
            self._transport.close()


def _content_length(head: bytes) -> int:
    _, found, rest = head.partition(b"content-length:")
    return int(rest.split(b"\r\n", 1)[0]) if found else 0


def _control(path: bytes, body: bytes) -> bytes:
    if path != b"/tokenize":
        return _response(CONTROL.get(path, {}))
    text = msgspec.json.decode(body).get("prompt", "")
    return _response({"tokens": [MARKERS[text]] if text in MARKERS else list(text.encode())})


def _response(value: Any) -> bytes:
    body = msgspec.json.encode(value)
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body

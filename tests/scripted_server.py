"""A real HTTP server on a thread that behaves as a test tells it to, in the shape of vLLM's API.

It stands in for faults that a healthy vLLM doesn't show on demand; everything that can be tested
against a real one is.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

Handler = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]
MODEL = "scripted"
THINK_END, TOOL_SECTION = 900, 901
SPECIAL = {
    "</think>": THINK_END,
    "<|tool_calls_section_begin|>": TOOL_SECTION,
    "<|im_user|>": 902,
    "<|im_assistant|>": 903,
    "<|im_system|>": 904,
    "<|im_end|>": 905,
    "<think>": 906,
}
_PIECE = re.compile("|".join(map(re.escape, SPECIAL)) + "|.", re.DOTALL)


def chat_reply(
    output: list[int] | None = None, *, finish: str = "stop", reasoning: str | None = "why", **changes: Any
) -> dict[str, Any]:
    """A well-formed chat completion with token ids; `changes` overlay its top level."""
    ids = [11, THINK_END, 12, 13] if output is None else output
    body = {
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "because", "reasoning": reasoning},
                "finish_reason": finish,
                "token_ids": ids,
            }
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": len(ids)},
        "prompt_token_ids": [1, 2, 3],
    }
    return {**body, **changes}


class ScriptedServer:
    """Answers /v1/chat/completions by `handler`; counts requests and how many run at once."""

    def __init__(self) -> None:
        self.handler: Handler = self._answer
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.running = 0
        self.most_running = 0
        self.healthy = True
        self.counters = ""
        self.tokenizer_suffix: list[int] = []
        self.names_tokens = True
        """Whether /tokenize answers `token_strs`."""
        self.takes_system = True
        """Whether the chat template takes a system message."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @property
    def base_url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}/v1"

    def start(self) -> None:
        """Listen on a free port."""
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)

    def stop(self) -> None:
        """Stop listening and end the thread."""
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _start(self) -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/completions", self._chat)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_get("/version", self._version)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        self.headers.append(dict(request.headers))
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            return await self.handler(request, body)
        finally:
            self.running -= 1

    async def _answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(chat_reply())

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": MODEL, "max_model_len": 1024}]})

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        messages = body.get("messages", [])
        if not self.takes_system and any(message["role"] == "system" for message in messages):
            return web.json_response({"error": {"message": "no system role"}}, status=400)
        text = body.get("prompt") or _render(messages)
        strs = [
            name
            for piece in _PIECE.findall(text)
            for name in ([piece] if piece in SPECIAL else map(chr, piece.encode()))
        ]
        ids = [SPECIAL[name] if name in SPECIAL else ord(name) for name in strs]
        if text not in SPECIAL:
            ids += self.tokenizer_suffix
            strs += ["?" for _ in self.tokenizer_suffix]
        named = self.names_tokens and body.get("return_token_strs")
        return web.json_response({"tokens": ids, "token_strs": strs if named else None})

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "0.0.scripted"})

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.healthy else 503)

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(text=self.counters)


def _render(messages: list[dict[str, Any]]) -> str:
    """A conversation as Kimi's template writes it, more or less."""
    turns = "".join(f"<|im_{message['role']}|>{message['content']}<|im_end|>" for message in messages)
    return f"{turns}<|im_assistant|><think>"

"""A real HTTP server on a thread that behaves as a test tells it to, in the shape of vLLM's API.

It stands in for faults that a healthy vLLM doesn't show on demand; everything that can be tested
against a real one is.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from aiohttp import web

Handler = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]
MODEL = "scripted"
THINK_END, TOOL_SECTION, TURN_END = 900, 901, 902
SPECIAL = {
    "</think>": THINK_END,
    "<|tool_calls_section_begin|>": TOOL_SECTION,
    "<|im_end|>": TURN_END,
    "<|im_start|>": 903,
    "<think>": 904,
    "<|im_user|>": 905,
    "<|im_assistant|>": 906,
    "<|im_system|>": 907,
}
AB = 950
"""A token of the text `ab`, which is read back as its two letters."""
_NAMES = re.compile("(" + "|".join(map(re.escape, SPECIAL)) + ")")
_TEXTS = {token: text for text, token in SPECIAL.items()} | {AB: "ab"}


def tokens_of(text: str) -> list[tuple[int, str]]:
    """Ids of a text, each with its name: a special token is one, of anything else each byte."""
    return [
        token
        for part in _NAMES.split(text)
        for token in ([(SPECIAL[part], part)] if part in SPECIAL else [(b, chr(b)) for b in part.encode()])
    ]


def text_of(ids: Iterable[int]) -> str:
    """The text of ids."""
    return b"".join(_TEXTS[token].encode() if token in _TEXTS else bytes([token]) for token in ids).decode()


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
        self.template: Callable[[dict[str, Any]], str] = _render
        """What a conversation becomes before it is tokenized. Raises ValueError to refuse it."""
        self.tokenized = 0
        self.tokenize_status = 200
        self.says = "told to"
        """What it answers /tokenize with any other status."""
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
        app.router.add_post("/detokenize", self._detokenize)
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
        self.tokenized += 1
        if self.tokenize_status != 200:
            return web.json_response({"error": self.says}, status=self.tokenize_status)
        if not self.takes_system and any(m["role"] == "system" for m in body.get("messages", [])):
            return web.json_response({"error": {"message": "no system role"}}, status=400)
        try:
            text = body["prompt"] if "prompt" in body else self.template(body)
        except ValueError as error:
            return web.json_response({"error": str(error)}, status=400)
        tokens = tokens_of(text)
        if text not in SPECIAL:
            tokens += [(suffix, "?") for suffix in self.tokenizer_suffix]
        named = self.names_tokens and body.get("return_token_strs")
        strs = [name for _, name in tokens] if named else None
        return web.json_response({"tokens": [token for token, _ in tokens], "token_strs": strs})

    async def _detokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        return web.json_response({"prompt": text_of(body["tokens"])})

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "0.0.scripted"})

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.healthy else 503)

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(text=self.counters)


def _render(body: dict[str, Any]) -> str:
    """A conversation as Kimi's template writes it, more or less."""
    turns = "".join(f"<|im_{m['role']}|>{m['content']}<|im_end|>" for m in body["messages"])
    return f"{turns}<|im_assistant|><think>"

"""CPU cost of one reply: our client against `AsyncOpenAI`, both over the openai package's aiohttp transport.

A canned server in a process of its own answers each request with a completion of 2,500 token ids.

    python benchmarks/client.py
"""

from __future__ import annotations

import asyncio
import multiprocessing
import resource
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from typing import Any

import msgspec
from aiohttp import web
from openai import AsyncOpenAI, DefaultAioHttpClient

from synthgen.client.api import ApiClient

REQUESTS = 1000
CONCURRENCY = 64
DELAY_S = 0.02
BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
REPLY = {
    "id": "x",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "word " * 1000, "reasoning": "word " * 1000},
            "finish_reason": "stop",
            "token_ids": list(range(100_000, 102_500)),
        }
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2500, "total_tokens": 2503},
    "prompt_token_ids": [1, 2, 3],
}


def serve(ready: Connection) -> None:
    """Answer every chat completion with the same bytes after a short delay."""
    content = msgspec.json.encode(REPLY)

    async def chat(request: web.Request) -> web.Response:
        await request.read()
        await asyncio.sleep(DELAY_S)
        return web.Response(body=content, content_type="application/json")

    async def work() -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", chat)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        ready.send(site._server.sockets[0].getsockname()[1])  # type: ignore[union-attr]
        await asyncio.sleep(600)

    asyncio.run(work())


async def all_requests(send: Callable[[], Awaitable[object]]) -> tuple[float, float]:
    """Wall and CPU seconds for all requests by `send`, CONCURRENCY at a time."""
    queue = iter(range(REQUESTS))

    async def worker() -> None:
        for _ in queue:
            await send()

    cpu = _cpu_seconds()
    began = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(CONCURRENCY)))
    return time.perf_counter() - began, _cpu_seconds() - cpu


async def ours(url: str) -> tuple[float, float]:
    """By `ApiClient`."""
    client = ApiClient(
        url, api_key=None, concurrency=CONCURRENCY, timeout_s=60, retry_attempts=1, retry_seconds=1
    )
    async with client:
        return await all_requests(lambda: client.chat(BODY))


async def rival(url: str) -> tuple[float, float]:
    """By `AsyncOpenAI` with its aiohttp client."""
    async with AsyncOpenAI(base_url=url, api_key="x", http_client=DefaultAioHttpClient()) as client:
        return await all_requests(lambda: client.chat.completions.create(**BODY))


def main() -> None:
    """Alternate the two three times; print each round, then the medians and their ratio."""
    parent, child = multiprocessing.get_context("spawn").Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(child,), daemon=True)
    server.start()
    try:
        url = f"http://127.0.0.1:{parent.recv()}/v1"
        rounds = []
        for number in range(3):
            mine, theirs = asyncio.run(ours(url)), asyncio.run(rival(url))
            rounds.append((mine[1], theirs[1]))
            print(
                f"round {number + 1}: ours {mine[1]:.2f} CPU-s ({REQUESTS / mine[0]:.0f} req/s), "
                f"AsyncOpenAI {theirs[1]:.2f} CPU-s ({REQUESTS / theirs[0]:.0f} req/s)"
            )
    finally:
        server.terminate()
    mine_s, theirs_s = (sorted(column)[1] * 1000 / REQUESTS for column in zip(*rounds, strict=True))
    figures = {"ours_cpu_s": mine_s, "openai_cpu_s": theirs_s, "ratio": theirs_s / mine_s}
    print(msgspec.json.encode({name: round(value, 3) for name, value in figures.items()}).decode())


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()

"""CPU cost of one reply: our client against `AsyncOpenAI`, both over the openai package's aiohttp transport.

A canned server in a process of its own answers each request with a completion of 2,500 token ids.

    python -m benchmarks.client
"""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from openai import AsyncOpenAI, DefaultAioHttpClient

from benchmarks.stub import pin, stub_server
from synthgen.client.api import ApiClient

REQUESTS = 1000
CONCURRENCY = 64
DELAY_S = 0.02
BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


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
    pin(1)
    rounds = []
    with stub_server(DELAY_S) as url:
        for number in range(3):
            mine, theirs = asyncio.run(ours(url)), asyncio.run(rival(url))
            rounds.append((mine[1], theirs[1]))
            print(
                f"round {number + 1}: ours {mine[1]:.2f} CPU-s ({REQUESTS / mine[0]:.0f} req/s), "
                f"AsyncOpenAI {theirs[1]:.2f} CPU-s ({REQUESTS / theirs[0]:.0f} req/s)"
            )
    mine_s, theirs_s = (sorted(column)[1] * 1000 / REQUESTS for column in zip(*rounds, strict=True))
    figures = {"ours_cpu_s": mine_s, "openai_cpu_s": theirs_s, "ratio": theirs_s / mine_s}
    print(msgspec.json.encode({name: round(value, 3) for name, value in figures.items()}).decode())


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()

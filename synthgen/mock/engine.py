"""How the mock server spends time: a clock that may run fast, a queue, and speeds that many share.

Requests beyond `max_num_seqs` wait in order of arrival, as vLLM's do. Prefill is one stream of tokens
that requests take turns at. Decode is shared alike: each request gets its own top speed until the
sum of them reaches the engine's, and an equal part of that from there on, so that tokens per second
saturate with concurrency and not before.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class QueueFull(Exception):
    """A request came while as many wait as may."""


class Clock:
    """Seconds since the start of a server, `speed` of them in a real one."""

    def __init__(self, speed: float) -> None:
        self.speed = speed
        self._loop = asyncio.get_running_loop()
        self._started = self._loop.time()

    @property
    def now_s(self) -> float:
        """Seconds since the start."""
        return (self._loop.time() - self._started) * self.speed

    async def sleep(self, seconds: float) -> None:
        """Wait for that many of its seconds."""
        if seconds > 0:
            await asyncio.sleep(seconds / self.speed)

    async def sleep_until(self, moment_s: float) -> None:
        """Wait until it shows `moment_s`."""
        await self.sleep(moment_s - self.now_s)


class SharedDecode:
    """Decoding at `one_per_s` tokens a second for each request and `all_per_s` for all together.

    All requests advance alike, so one number, the tokens that anybody who was here from the start would
    have by now, tells when each is done: those it had when the request came, and the request's own.
    """

    def __init__(self, clock: Clock, one_per_s: float, all_per_s: float) -> None:
        self._clock = clock
        self._one_per_s = one_per_s
        self._all_per_s = all_per_s
        self._progress = 0.0
        self._updated_s = clock.now_s
        self._running: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None

    async def decode(self, tokens: int) -> None:
        """Return when `tokens` are decoded."""
        self._advance()
        done = asyncio.get_running_loop().create_future()
        entry = (self._progress + tokens, next(self._numbers), done)
        heapq.heappush(self._running, entry)
        self._set_timer()
        try:
            await done
        except asyncio.CancelledError:
            self._leave(entry)
            raise

    @property
    def _per_s(self) -> float:
        return min(self._one_per_s, self._all_per_s / len(self._running))

    def _advance(self) -> None:
        now_s = self._clock.now_s
        if self._running:
            self._progress += (now_s - self._updated_s) * self._per_s
        self._updated_s = now_s

    def _set_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if self._running:
            seconds = (self._running[0][0] - self._progress) / self._per_s / self._clock.speed
            self._timer = asyncio.get_running_loop().call_later(max(0.0, seconds), self._finish_due)

    def _finish_due(self) -> None:
        self._advance()
        # A timer may fire a rounding error early; a thousandth of a token is done.
        while self._running and self._running[0][0] <= self._progress + 1e-3:
            done = heapq.heappop(self._running)[2]
            if not done.done():
                done.set_result(None)
        self._set_timer()

    def _leave(self, entry: tuple[float, int, asyncio.Future[None]]) -> None:
        self._advance()
        if entry in self._running:
            self._running.remove(entry)
            heapq.heapify(self._running)
        self._set_timer()


class Engine:
    """Slots, queue, speeds, and the numbers that /metrics shows of them."""

    def __init__(
        self,
        clock: Clock,
        *,
        max_num_seqs: int,
        max_queued: int | None,
        kv_cache_tokens: int,
        prefill_tokens_per_s: float | None,
        decode_tokens_per_s: float | None,
        max_decode_tokens_per_s: float | None,
    ) -> None:
        self.running = 0
        self.waiting = 0
        self.preemptions = 0
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self._clock = clock
        self._slots = asyncio.Semaphore(max_num_seqs)
        self._max_queued = max_queued
        self._kv_cache_tokens = kv_cache_tokens
        self._kv_tokens = 0
        self._prefill_per_s = prefill_tokens_per_s
        self._prefilled_s = 0.0
        one_per_s, all_per_s = decode_tokens_per_s or math.inf, max_decode_tokens_per_s or math.inf
        is_instant = one_per_s == all_per_s == math.inf
        self._decode = None if is_instant else SharedDecode(clock, one_per_s, all_per_s)

    @property
    def kv_cache_usage(self) -> float:
        """Part of the KV cache that running requests will need by their end, 1 at most."""
        return min(1.0, self._kv_tokens / self._kv_cache_tokens)

    @asynccontextmanager
    async def slot(self, tokens: int) -> AsyncIterator[None]:
        """A place among the running, for a request of `tokens` with its reply. Raises QueueFull.

        A request that finds the KV cache too small counts as a preemption, without other effect.
        """
        if self._slots.locked() and self._max_queued is not None and self.waiting >= self._max_queued:
            raise QueueFull
        self.waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        self._kv_tokens += tokens
        self.preemptions += self._kv_tokens > self._kv_cache_tokens
        try:
            yield
        finally:
            self.running -= 1
            self._kv_tokens -= tokens
            self._slots.release()

    async def prefill(self, tokens: int) -> None:
        """Read a prompt, after the prompts that came before."""
        if self._prefill_per_s is not None:
            start_s = max(self._prefilled_s, self._clock.now_s)
            self._prefilled_s = start_s + tokens / self._prefill_per_s
            await self._clock.sleep_until(self._prefilled_s)
        self.prompt_tokens += tokens

    async def decode(self, tokens: int) -> None:
        """Write `tokens` of a reply."""
        if self._decode is None:
            await asyncio.sleep(0)  # so that streams take turns
        elif tokens:
            await self._decode.decode(tokens)
        self.generation_tokens += tokens


def metrics(engine: Engine, model: str) -> str:
    """The engine's numbers as vLLM's /metrics writes them."""
    name_label = model.replace("\\", "\\\\").replace('"', '\\"')
    labels = f'{{engine="0",model_name="{name_label}"}}'
    gauges = (
        ("num_requests_running", "Number of requests in model execution batches.", engine.running),
        ("num_requests_waiting", "Number of requests waiting to be processed.", engine.waiting),
        ("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", engine.kv_cache_usage),
    )
    counters = (
        ("num_preemptions", "Cumulative number of preemption from the engine.", engine.preemptions),
        ("prompt_tokens", "Number of prefill tokens processed.", engine.prompt_tokens),
        ("generation_tokens", "Number of generation tokens processed.", engine.generation_tokens),
    )
    lines = []
    for kind, suffix, rows in (("gauge", "", gauges), ("counter", "_total", counters)):
        for name, meaning, value in rows:
            full_name = f"vllm:{name}{suffix}"
            lines += [f"# HELP {full_name} {meaning}", f"# TYPE {full_name} {kind}"]
            lines.append(f"{full_name}{labels} {float(value)}")
    return "\n".join(lines) + "\n"

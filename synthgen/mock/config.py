"""What a mock server is told, and what it has counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from synthgen.corpus.manifest import digest
from synthgen.errors import ConfigError
from synthgen.mock.distributions import Distribution, Fixed, Lognormal
from synthgen.mock.faults import Rule


class MockConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mock server. Seconds are by its own clock, which `clock_speed` makes faster than real ones."""

    host: str = "127.0.0.1"
    port: int = 0
    """0 takes a free one."""
    model: str = "mock"
    version: str = "0.32.0+mock"
    """What /version says; part of a corpus's fingerprint."""
    max_model_len_tokens: int = 32768
    seed: int = 0
    """Of replies, latencies and faults."""
    clock_speed: float = 1.0
    """Its seconds in a real one."""
    latency_s: Distribution = Fixed(0.0)
    """Before the first token of a running request, prefill aside."""
    thinking_tokens: Distribution = Lognormal(300.0, 0.7)
    response_tokens: Distribution = Lognormal(100.0, 0.7)
    max_num_seqs: int = 256
    """Requests that run at once; more wait."""
    max_queued: int | None = None
    """Requests that may wait; one more gets 503. None for no limit, as vLLM by default."""
    kv_cache_tokens: int = 1_000_000
    """For `vllm:kv_cache_usage_perc` and `vllm:num_preemptions_total`."""
    prefill_tokens_per_s: float | None = None
    """Of the whole engine; None takes no time."""
    decode_tokens_per_s: float | None = None
    """Top speed of one request; None for no limit."""
    max_decode_tokens_per_s: float | None = None
    """Top speed of the whole engine, shared alike; None for no limit."""
    tokens_per_chunk: int = 1
    """Of a streamed reply."""
    faults: tuple[Rule, ...] = ()

    def __post_init__(self) -> None:
        for name in (
            "max_model_len_tokens",
            "clock_speed",
            "max_num_seqs",
            "kv_cache_tokens",
            "prefill_tokens_per_s",
            "decode_tokens_per_s",
            "max_decode_tokens_per_s",
            "tokens_per_chunk",
        ):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigError(f"mock server: {name} {value} must be above 0")
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"mock server: port {self.port} is not between 0 and 65535")
        if self.max_queued is not None and self.max_queued < 0:
            raise ConfigError(f"mock server: max_queued {self.max_queued} must not be below 0")


def body_hash(body: dict[str, Any]) -> str:
    """What stands for a request's body in the counters, whatever the order of its keys."""
    return digest(body)


@dataclass(slots=True)
class MockCounters:
    """What a mock server has seen and done; restarts don't reset it."""

    requests: Counter[str] = field(default_factory=Counter)
    """Completions asked for, by `body_hash`."""
    served: Counter[str] = field(default_factory=Counter)
    """Completions handed to the socket whole and without a fault in them, by `body_hash`."""
    faults: Counter[str] = field(default_factory=Counter)
    """Faults dealt, by kind; `queue-full` counts requests that found the queue full."""
    in_flight: int = 0
    most_in_flight: int = 0
    """Completions that were open at once, waiting ones included."""

    @contextmanager
    def request(self, key: str) -> Iterator[int]:
        """Count a request while it is open; yields how often its body has come."""
        self.requests[key] += 1
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            yield self.requests[key]
        finally:
            self.in_flight -= 1

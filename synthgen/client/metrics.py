"""What a vLLM counts, read from the text of its `/metrics`: how busy it is, and what its draft is worth."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from synthgen.errors import ServerError

_COUNTER = re.compile(
    r"^vllm:spec_decode_num_(drafts|draft_tokens|accepted_tokens|accepted_tokens_per_pos)_total"
    r"\{(.*?)\} (\S+)$",
    re.MULTILINE,
)

# gpu_cache_usage_perc is what older vLLMs call it.
_GAUGE = re.compile(
    r"^vllm:(num_requests_running|num_requests_waiting|kv_cache_usage_perc|gpu_cache_usage_perc"
    r"|num_preemptions_total)\{.*?\} (\S+)$",
    re.MULTILINE,
)

_SUM = re.compile(
    r"^(process_start_time_seconds|vllm:generation_tokens_total|vllm:time_to_first_token_seconds_(?:sum|count))"
    r"(?:\{.*?\})? (\S+)$",
    re.MULTILINE,
)
_CACHED = re.compile(r'^vllm:cache_config_info\{[^\n]*enable_prefix_caching="True"', re.MULTILINE)
RESTARTED = (
    "the server's counters began anew: it was restarted meanwhile, so what was counted before is lost: "
    "measure again when it stays up"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecCounters:
    """The server's spec-decode counters at one moment."""

    drafts: float
    draft_tokens: float
    accepted: float
    accepted_by_position: tuple[float, ...]

    def since(self, before: SpecCounters) -> SpecCounters:
        """What was counted after `before`. Raises ServerError when the server was restarted meanwhile."""
        if self.drafts < before.drafts:
            raise ServerError(RESTARTED)
        if len(self.accepted_by_position) != len(before.accepted_by_position):
            raise ServerError(RESTARTED)
        pairs = zip(self.accepted_by_position, before.accepted_by_position, strict=True)
        return SpecCounters(
            drafts=self.drafts - before.drafts,
            draft_tokens=self.draft_tokens - before.draft_tokens,
            accepted=self.accepted - before.accepted,
            accepted_by_position=tuple(now - then for now, then in pairs),
        )

    @classmethod
    def total(cls, parts: Iterable[SpecCounters]) -> SpecCounters:
        """The sum of several counts."""
        parts = list(parts)
        return cls(
            drafts=sum(part.drafts for part in parts),
            draft_tokens=sum(part.draft_tokens for part in parts),
            accepted=sum(part.accepted for part in parts),
            accepted_by_position=tuple(
                sum(position) for position in zip(*(p.accepted_by_position for p in parts), strict=True)
            ),
        )

    @property
    def acceptance_length(self) -> float:
        """Mean tokens a verifier step yields: 1 + accepted / drafts. Raises ServerError without drafts."""
        if not self.drafts:
            raise ServerError("the server counted no drafts: the replies were too short to draft for")
        return 1 + self.accepted / self.drafts

    @property
    def rate_by_position(self) -> list[float]:
        """Part of the drafts whose token at each position was accepted."""
        return [accepted / self.drafts for accepted in self.accepted_by_position]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCounts:
    """What a server has counted since it started."""

    spec: SpecCounters | None
    """None when it runs without a draft."""
    is_vllm: bool
    """Whether there is any counter of vLLM's."""
    started_at: float | None
    """In seconds since the epoch; None where the server doesn't say."""
    output_tokens: float
    first_tokens: float
    """Replies that have begun."""
    first_token_seconds: float
    """Summed over those, the time to the first token."""
    prefix_caching: bool
    """Whether prompts are cached."""

    @property
    def first_token_mean_s(self) -> float | None:
        """Mean time to the first token; None when no reply has begun."""
        return self.first_token_seconds / self.first_tokens if self.first_tokens else None

    def since(self, before: ServerCounts) -> ServerCounts:
        """What was counted after `before`. Raises ServerError when the server was restarted meanwhile."""
        if self.started_at != before.started_at or self.output_tokens < before.output_tokens:
            raise ServerError(RESTARTED)
        spec = self.spec.since(before.spec) if self.spec and before.spec else None
        return replace(
            self,
            spec=spec,
            output_tokens=self.output_tokens - before.output_tokens,
            first_tokens=self.first_tokens - before.first_tokens,
            first_token_seconds=self.first_token_seconds - before.first_token_seconds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLoad:
    """How busy a server is, by its own `/metrics`."""

    running: float
    waiting: float
    kv_usage: float
    """Part of the KV cache in use, 0 to 1."""
    preemptions: float
    """Since the server started."""


def parse_spec_counters(metrics: str) -> SpecCounters | None:
    """The spec-decode counters in the text of a server's `/metrics`; None when it runs without a draft."""
    totals: dict[str, float] = {}
    by_position: dict[int, float] = {}
    for name, labels, value in _COUNTER.findall(metrics):
        position = re.search(r'position="(\d+)"', labels)
        if position:
            by_position[int(position[1])] = by_position.get(int(position[1]), 0.0) + float(value)
        else:
            totals[name] = totals.get(name, 0.0) + float(value)
    if "drafts" not in totals:
        return None
    return SpecCounters(
        drafts=totals["drafts"],
        draft_tokens=totals["draft_tokens"],
        accepted=totals["accepted_tokens"],
        accepted_by_position=tuple(by_position[p] for p in sorted(by_position)),
    )


def parse_counts(metrics: str) -> ServerCounts:
    """What a server has counted, from the text of its `/metrics`; several engines' counts are summed."""
    found: dict[str, list[float]] = {}
    for name, value in _SUM.findall(metrics):
        found.setdefault(name, []).append(float(value))
    started_at = found.get("process_start_time_seconds")
    return ServerCounts(
        spec=parse_spec_counters(metrics),
        is_vllm="\nvllm:" in f"\n{metrics}",
        started_at=started_at[0] if started_at else None,
        output_tokens=sum(found.get("vllm:generation_tokens_total", [])),
        first_tokens=sum(found.get("vllm:time_to_first_token_seconds_count", [])),
        first_token_seconds=sum(found.get("vllm:time_to_first_token_seconds_sum", [])),
        prefix_caching=_CACHED.search(metrics) is not None,
    )


def parse_load(metrics: str) -> ServerLoad | None:
    """How busy a server is, from the text of its `/metrics`; None when vLLM's gauges are not in it."""
    found: dict[str, list[float]] = {}
    for name, value in _GAUGE.findall(metrics):
        found.setdefault(name, []).append(float(value))
    if "num_requests_running" not in found:
        return None
    usage = found.get("kv_cache_usage_perc") or found.get("gpu_cache_usage_perc") or [0.0]
    return ServerLoad(
        running=sum(found["num_requests_running"]),
        waiting=sum(found.get("num_requests_waiting", [])),
        kv_usage=max(usage),
        preemptions=sum(found.get("num_preemptions_total", [])),
    )

"""What a vLLM counts, read from the text of its `/metrics`: how busy it is, and what its draft is worth."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

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
            raise ServerError("the spec-decode counters went down: the server was restarted meanwhile")
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

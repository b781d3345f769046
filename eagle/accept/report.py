"""What acceptance is measured to be: the types of the report."""

from __future__ import annotations

from eagle.accept.steps import Breakdown, StepFigures
from synthgen.corpus.records import Record


class DraftTokens(Record, frozen=True, kw_only=True):
    """The acceptance length with so many draft tokens."""

    num_draft_tokens: int
    length: float
    served: bool
    """Whether a server drafted so many. Else it follows from one that drafts more: a draft's first tokens
    don't depend on how many come after. Where the next draft begins does, but moves the figure little."""


class Speed(Record, frozen=True, kw_only=True):
    """How fast a server answers."""

    tokens_per_s: float
    """Output tokens a second, over all requests in flight; median of the rounds."""
    seconds_mean: float
    """Of a request."""
    seconds_p95: float
    first_token_s: float | None
    """Mean time to the first token, by the server's own clock; None where it doesn't tell."""


class AtConcurrency(Record, frozen=True, kw_only=True):
    """The same prompts with and without the draft, so many at a time."""

    concurrency: int
    drafted: Speed
    undrafted: Speed | None
    speedup: float | None
    """Median over the rounds of the ratio of output tokens a second."""
    speedup_by_round: tuple[float, ...]
    same_replies: int
    """Of the drafted server, token for token as the undrafted one's first reply at concurrency 1."""
    compared_replies: int
    same_undrafted: int
    """Of the undrafted server itself, other than that first reply: what batching alone changes."""
    compared_undrafted: int


class Offline(Record, frozen=True, kw_only=True):
    """The draft on hidden states of the verifier."""

    walked: Breakdown
    """Steps as serving takes them: from the first token on, each begins behind what the last one gave."""
    every_slot: float
    """The length over all supervised slots alike, as training's validation counts it."""
    by_draft_tokens: tuple[StepFigures, ...]
    """Walked with 1, 2, … draft tokens."""


class AcceptanceReport(Record, frozen=True, kw_only=True):
    """What a draft is worth on held-out prompts, answered greedily. What wasn't measured is null."""

    acceptance_length: float
    """Mean tokens a verify step yields by the server's counters, 1 without any acceptance. They count what is
    accepted beyond the end of a reply, too."""
    rate_by_position: tuple[float, ...]
    """Part of the drafts accepted at each position, by the counters."""
    length_by_domain: dict[str, float]
    """By the counters."""
    length_by_draft_tokens: tuple[DraftTokens, ...]
    acceptance_length_untrained: float | None
    prompts: int
    num_draft_tokens: int
    live: Breakdown | None
    """By the steps in the replies themselves, up to the replies' ends; null when they don't show them."""
    offline: Offline | None
    """On the states of the same replies."""
    heldout: Offline | None
    """On the states of the run's validation samples, as they were sampled."""
    lossless: bool | None
    """Whether every greedy reply at concurrency 1 is the same, token for token, with the draft."""
    same_replies: int | None
    """At concurrency 1."""
    compared_replies: int | None
    tokens_per_s: float | None
    """Output tokens a second with the draft, one request at a time, median of the rounds."""
    tokens_per_s_undrafted: float | None
    speedup: float | None
    """At concurrency 1; median over the rounds of the ratio within a round."""
    speedup_by_round: tuple[float, ...]
    by_concurrency: tuple[AtConcurrency, ...]
    warnings: tuple[str, ...]
    """What may make the figures mean something else than they seem to."""
    not_measured: tuple[str, ...]
    """What is left out, and why."""

    @property
    def gap(self) -> float | None:
        """How much longer than live the offline length is on the same replies, as a part of it."""
        if self.live is None or self.offline is None:
            return None
        return self.offline.walked.whole.length / self.live.whole.length - 1

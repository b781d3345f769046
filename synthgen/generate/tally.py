"""The counts of a generation: what came, what failed, how busy the servers were."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

from synthgen.corpus.records import Failure, Finish


@dataclass(slots=True, kw_only=True)
class Tally:
    """Counts of one call, or of a whole corpus."""

    wanted: int = 0
    """Rows: conversations, of one reply or more."""
    answered: int = 0
    """Rows that ended with a trace."""
    traces: int = 0
    thinking_tokens: int = 0
    response_tokens: int = 0
    """Output tokens after the thinking, tool calls and the closing token included."""
    truncated: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    """By kind."""
    uncaptured: int = 0
    """Replies whose hidden states were asked for and didn't come with them."""
    retried: int = 0
    """Tries beyond the first."""
    replies_lost: int = 0
    """Of the tries before, those that the server had begun to answer, perhaps to the end."""
    tokens_left: float = 0.0
    stopping: bool = False
    """Nothing more is sent: only what is in flight is waited for."""
    seconds_full: float = 0.0
    """Time in which as many requests were in flight as allowed."""
    seconds_below: float = 0.0
    """Time in which fewer were: at the start, at the tail, and while a server was gone."""
    seconds_down: float = 0.0
    started: float = field(default_factory=time.monotonic)
    _looked_at: float = field(default_factory=time.monotonic)

    def add(self, thinking_tokens: int, response_tokens: int, finish: Finish, *, ends_row: bool) -> None:
        """Count one trace."""
        self.traces += 1
        self.answered += ends_row
        self.thinking_tokens += thinking_tokens
        self.response_tokens += response_tokens
        self.truncated += finish is Finish.LENGTH

    def add_failure(self, failure: Failure) -> None:
        """Count one failure."""
        self.failures[failure.kind.value] += 1

    def look(
        self,
        *,
        in_flight: int,
        limit: int,
        retried: int,
        replies_lost: int,
        seconds_down: float,
        tokens_left: float,
    ) -> None:
        """Take note of how busy the servers are now."""
        now = time.monotonic()
        if limit and in_flight >= limit:
            self.seconds_full += now - self._looked_at
        else:
            self.seconds_below += now - self._looked_at
        self._looked_at = now
        self.retried, self.replies_lost = retried, replies_lost
        self.seconds_down, self.tokens_left = seconds_down, tokens_left

    @property
    def tokens(self) -> int:
        """Output tokens so far."""
        return self.thinking_tokens + self.response_tokens

    @property
    def done(self) -> int:
        """Rows that ended, with a trace or a failure."""
        return self.answered + sum(self.failures.values())

    @property
    def seconds(self) -> float:
        """Time since the start."""
        return time.monotonic() - self.started

    @property
    def tokens_per_s(self) -> float:
        """Output tokens a second since the start."""
        return self.tokens / max(self.seconds, 1e-9)

    @property
    def seconds_left(self) -> float | None:
        """Expected time to the end, from tokens; None while nothing is known."""
        return self.tokens_left / self.tokens_per_s if self.tokens else None

    @property
    def tokens_wasted(self) -> int:
        """Output tokens that were thrown away, as expected: lost replies times the mean reply."""
        return round(self.replies_lost * self.tokens / self.traces) if self.traces else 0

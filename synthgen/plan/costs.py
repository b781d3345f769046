"""What a stage costs, and a run: the nouns of a plan."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Rate:
    """A speed, or a server's start, and whether it was measured."""

    value: float
    measured: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What times are computed with."""

    load_s: Rate
    generate: Rate
    prefill: Rate
    train: Rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Replies:
    """What a run asks for: conversations, and the replies in them."""

    rows: int
    count: int
    """One a turn: each is a trace, and a sample."""
    written: int
    """Replies in the journal: a trace repeats those before it."""

    @classmethod
    def of(cls, prompts_by_turns: Sequence[int], samples_per_prompt: int) -> Replies:
        """Those of so many prompts of one turn, of two and so on, when no conversation ends early."""
        counted = list(enumerate(prompts_by_turns, 1))
        return cls(
            rows=sum(prompts_by_turns) * samples_per_prompt,
            count=sum(n * prompts for n, prompts in counted) * samples_per_prompt,
            written=sum(n * (n + 1) // 2 * prompts for n, prompts in counted) * samples_per_prompt,
        )

    def __str__(self) -> str:
        single = self.count == self.rows
        return (
            f"{self.rows:,} rows" if single else f"{self.count:,} replies (one a turn of {self.rows:,} rows)"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """One stage."""

    name: str
    rows: int
    tokens: int
    disk_bytes: int
    starts: int
    """Servers that are loaded, one after the other."""
    load_s: float
    """Of all starts; the same however many rows there are."""
    work_s: float
    measured: bool
    """Whether its speed was measured here."""
    formulas: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A run's stages, in order."""

    run_dir: str
    stages: tuple[StagePlan, ...]
    free_bytes: int
    load_rate: Rate

    @property
    def disk_bytes(self) -> int:
        """Of all stages together."""
        return sum(stage.disk_bytes for stage in self.stages)

    @property
    def load_s(self) -> float:
        """Fixed: what the servers' starts take."""
        return sum(stage.load_s for stage in self.stages)

    @property
    def work_s(self) -> float:
        """Marginal: what grows with the rows."""
        return sum(stage.work_s for stage in self.stages)

    @property
    def rows_worth_the_load(self) -> int:
        """Rows from which on the work takes longer than the starts."""
        rows = max(stage.rows for stage in self.stages)
        return math.ceil(self.load_s * rows / self.work_s) if self.work_s else 0

    def stage(self, name: str) -> StagePlan:
        """The stage of that name."""
        return next(stage for stage in self.stages if stage.name == name)


def as_figures(made: Plan) -> dict[str, Any]:
    """A plan as JSON: what `synthgen plan --json` prints."""
    return {
        "stages": {
            stage.name: {
                "rows": stage.rows,
                "tokens": stage.tokens,
                "disk_bytes": stage.disk_bytes,
                "load_s": stage.load_s,
                "work_s": round(stage.work_s, 1),
                "measured": stage.measured,
            }
            for stage in made.stages
        },
        "disk_bytes": made.disk_bytes,
        "free_bytes": made.free_bytes,
        "load_s": made.load_s,
        "work_s": round(made.work_s, 1),
        "rows_worth_the_load": made.rows_worth_the_load,
    }

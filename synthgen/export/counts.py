"""What an export holds, counted while it is written."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from synthgen.corpus.records import Sampling
from synthgen.corpus.samples import DatasetRow, Origin
from synthgen.export.rows import LeftOut

SHORTEST_BIN_TOKENS = 256


@dataclass(slots=True)
class Count:
    """Rows, with their tokens: all of them, and of those the supervised ones by kind."""

    rows: int = 0
    tokens: int = 0
    thinking_tokens: int = 0
    response_tokens: int = 0
    tool_tokens: int = 0

    @property
    def supervised_tokens(self) -> int:
        """Tokens in spans."""
        return self.thinking_tokens + self.response_tokens + self.tool_tokens

    def add(self, row: DatasetRow) -> None:
        """Count one row more."""
        lengths = dict.fromkeys(("thinking", "response", "tool"), 0)
        for span in row.spans:
            lengths[span.kind] += span.end - span.start
        self.rows += 1
        self.tokens += len(row.token_ids)
        self.thinking_tokens += lengths["thinking"]
        self.response_tokens += lengths["response"]
        self.tool_tokens += lengths["tool"]


@dataclass(slots=True)
class Counts:
    """The figures of one export."""

    total: Count = field(default_factory=Count)
    splits: dict[str, Count] = field(default_factory=dict)
    parts: dict[tuple[str, str], Count] = field(default_factory=dict)
    """By part and split."""
    sources: dict[tuple[str, str], Count] = field(default_factory=dict)
    """By source and origin."""
    origins: Counter[Origin] = field(default_factory=Counter)
    """Rows by who wrote their replies."""
    with_thinking: int = 0
    """Rows that have thinking tokens."""
    truncated: Counter[str] = field(default_factory=Counter)
    """Rows cut by their budget, by the part of the reply."""
    lengths: Counter[int] = field(default_factory=Counter)
    """Rows by the power of two that their tokens are at most, from 256."""
    sampling: Counter[Sampling] = field(default_factory=Counter)
    servers: Counter[str] = field(default_factory=Counter)
    left_out: Counter[LeftOut] = field(default_factory=Counter)

    @property
    def read(self) -> int:
        """Rows of the dataset so far, with those that were left out."""
        return self.total.rows + self.left_out.total()

    def add(self, split: str, row: DatasetRow) -> None:
        """Count a row that is written to `split`."""
        self.total.add(row)
        self.splits.setdefault(split, Count()).add(row)
        self.parts.setdefault((row.part, split), Count()).add(row)
        self.sources.setdefault((row.source, row.origin), Count()).add(row)
        self.origins[row.origin] += 1
        self.with_thinking += any(span.kind == "thinking" for span in row.spans)
        self.lengths[_bin(len(row.token_ids))] += 1
        self.servers[row.server] += 1
        if row.truncated_in is not None:
            self.truncated[row.truncated_in] += 1
        if row.sampling is not None:
            self.sampling[row.sampling] += 1

    def figures(self) -> dict[str, Any]:
        """For the manifest."""
        parts: dict[str, dict[str, Any]] = {}
        for (part, split), count in self.parts.items():
            parts.setdefault(part, {})[split] = asdict(count)
        return {
            "rows": {split: count.rows for split, count in self.splits.items()},
            "tokens": self.total.tokens,
            "supervised_tokens": self.total.supervised_tokens,
            "parts": parts,
            "left_out": {str(reason): rows for reason, rows in sorted(self.left_out.items())},
        }


def _bin(tokens: int) -> int:
    return max(SHORTEST_BIN_TOKENS, 1 << (tokens - 1).bit_length())

"""The rows of a prompts file: numbered plain values, or why there are none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Row:
    """One row. Lines are counted from 1, blank ones too; rows of a table from 1, without its header."""

    number: int
    values: dict[str, Any]


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that gives no prompt, and why. `column` is a position in the line, or a column's name."""

    number: int
    reason: str
    column: int | str | None = None

    @property
    def where(self) -> str:
        """Row and column as they follow a file's name: `17:3`."""
        return f"{self.number}" if self.column is None else f"{self.number}:{self.column}"

"""What became of the rows that a run's prompts were chosen from."""

from __future__ import annotations

import msgspec

from synthgen.corpus.sections import PromptsConfig
from synthgen.errors import InputError
from synthgen.seeds.overlap import PromptDrop

LEFT_OUT, OVER_CAP, NOT_DRAWN, HELDOUT, CORPUS = "left_out", "over_cap", "not_drawn", "heldout", "corpus"
ENDS = (LEFT_OUT, *PromptDrop, OVER_CAP, NOT_DRAWN, HELDOUT, CORPUS)
"""What becomes of a row, in the order in which it is decided: one of these."""


class SourceFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What was understood of one source."""

    source: str
    format: str
    shape: str | None
    """None when no row gave a prompt."""
    rows: int
    left_out: int
    note: str
    """How many rows were left out, and why the first; empty when none was."""
    revision: str | None = None
    """Commit of a dataset of the hub."""
    corpus: int = 0
    """Prompts of it that are in the corpus."""


class DomainFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Prompts of one domain: those read are dropped, held out or in the corpus."""

    read: int
    heldout: int
    corpus: int

    @property
    def dropped(self) -> int:
        """Read, and in neither part."""
        return self.read - self.heldout - self.corpus


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the rows."""

    sources: tuple[SourceFigures, ...]
    ends: dict[str, int]
    """How many rows came to each of `ENDS`: together they are the rows read."""
    domains: dict[str, DomainFigures]
    """Largest first."""
    turns: tuple[int, ...]
    """How many prompts of the corpus have one user turn, how many two, and so on."""

    @property
    def rows(self) -> int:
        """Rows read."""
        return sum(source.rows for source in self.sources)

    @property
    def distinct(self) -> int:
        """Different prompts among them."""
        return self.rows - self.ends[LEFT_OUT] - self.ends[PromptDrop.EXACT]

    def require_corpus(self, config: PromptsConfig) -> Figures:
        """The figures themselves. Raises InputError when nothing is left for the corpus."""
        if not self.ends[CORPUS]:
            usable = self.ends[HELDOUT]
            fewer = "" if usable == self.distinct else f", of which {usable} may be used"
            raise InputError(
                f"{', '.join(config.sources)}: {self.distinct} different prompts{fewer}, but "
                f"prompts.heldout alone asks for {config.heldout}: add prompts or lower it"
            )
        return self

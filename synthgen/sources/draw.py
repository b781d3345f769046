"""Which conversations of a large source are used: by hash, so that the order of its rows doesn't matter.

Each conversation has a place in [0, 1) by the hash of its content; a draw is all that have a place up to an
edge. How far the edge has to go is found by taking the first few and looking at what they gave, so of a
source of any size only those few are held. It is read once for these, and again each time the edge moves:
once or twice where the first few gave what the others give; where they give nothing, the edge moves sixteen
times as far at once, so that a million conversations are read four times in all.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from synthgen.corpus.sections import OnBadRow
from synthgen.sources.conversations import Conversation, ConversationFile

HELD = 256
"""Conversations that are held; more are read again."""
SURPLUS = 1.1
"""An edge is set for this much of what is missing."""
SLOWEST = 1.1
FASTEST = 16.0
"""An edge moves at least and at most by these factors."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What a first reading of a source shows."""

    count: int
    """Conversations in it, with those that are there twice."""
    left_out: int
    note: str
    """How many rows were left out, and why the first; empty when none was."""
    first: tuple[Conversation, ...]
    """Those with the lowest places, in that order."""


@dataclass(frozen=True, slots=True)
class Source:
    """A source of conversations, and the seed of its order."""

    name: str
    """A file, or `hub:` and a dataset."""
    on_bad_row: OnBadRow
    seed: int

    def survey(self) -> Survey:
        """Read it whole. Raises InputError as ConversationFile."""
        file = ConversationFile(self.name, None, self.on_bad_row)
        first = heapq.nsmallest(HELD, file, key=self.place)
        return Survey(file.rows - file.left_out, file.left_out, file.note, tuple(first))

    def between(self, above: float, upto: float) -> Iterator[Conversation]:
        """Read it again; yield those with a place above the one and up to the other edge."""
        for conversation in ConversationFile(self.name, None, self.on_bad_row):
            if above < self.place(conversation) <= upto:
                yield conversation

    def place(self, conversation: Conversation) -> float:
        """Its place in [0, 1)."""
        drawn = hashlib.sha256(f"{self.seed}:{conversation.id}".encode()).digest()
        return int.from_bytes(drawn[:6], "big") / 2.0**48


def next_edge(edge: float, given: float, needed: float | None) -> float:
    """The edge up to which `needed` should come together, when those below `edge` gave `given`; 1 for all."""
    if needed is None:
        return 1.0
    factor = FASTEST if not given else 1 + SURPLUS * (needed - given) / given
    return min(1.0, edge * min(FASTEST, max(SLOWEST, factor)))

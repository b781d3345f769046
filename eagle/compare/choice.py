"""Which rows of the dataset each arm is trained on, so that all have exactly as many supervised tokens.

An *arm* is one part of the mix alone, or the mix itself. Every row has a rank, a hash of its id and the run's
seed; an arm takes the rows of lowest rank of each of its parts until it has its tokens, and of the last row
supervises only as much as is lacking. So the arms of parts have no row in common, and what the mix takes of a
part, that part's own arm takes too.

A token is supervised when some draft slot predicts it: in a span, not the document's first two, and within
what training reads of a sample.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from eagle.vocab import FIRST_TARGET
from synthgen.corpus.config import RunConfig
from synthgen.corpus.samples import Span
from synthgen.errors import ArtifactError, ConfigError

MIX = "mix"
"""The arm of all parts, in the shares that the dataset has them in."""


class PartRow(msgspec.Struct, frozen=True, gc=False):
    """A dataset's row as it is copied: what training reads, the part, and nothing else."""

    id: str
    domain: str
    token_ids: msgspec.Raw
    spans: tuple[Span, ...]
    part: str


class Ranked(NamedTuple):
    """A row by its place in the seeded order."""

    rank: int
    id: str
    tokens: int
    """Supervised ones."""


@dataclass(frozen=True, slots=True)
class Reach:
    """What training reads of a sample."""

    max_seq_tokens: int
    """Samples are cut to so many when their states are taken."""
    end: int
    """No token from here on is a target."""

    @classmethod
    def of(cls, config: RunConfig) -> Reach:
        """The last token that is trained on may be followed by one more that it predicts."""
        longest = config.extract.max_seq_tokens
        return cls(longest, min(longest, config.train.max_seq_tokens + 1))

    def supervised(self, spans: Iterable[Span]) -> int:
        """Tokens of a row that are targets."""
        return sum(span.end - span.start for span in self.first(spans, self.end))

    def first(self, spans: Iterable[Span], tokens: int) -> tuple[Span, ...]:
        """The spans of the first `tokens` targets of a row."""
        kept: list[Span] = []
        for span in spans:
            start, end = max(span.start, FIRST_TARGET), min(span.end, self.end)
            if not kept and span.start >= self.max_seq_tokens - 1:
                break
            end = min(end, start + tokens)
            if start < end:
                kept.append(Span(start=start, end=end, kind=span.kind))
                tokens -= end - start
        return tuple(kept)


def rank_of(seed: int, row_id: str) -> int:
    """A row's place in the seeded order."""
    return int.from_bytes(hashlib.blake2b(f"{seed}:compare:{row_id}".encode(), digest_size=8).digest())


def ranked(config: RunConfig, rows: Iterable[PartRow]) -> dict[str, list[Ranked]]:
    """The rows with something to learn, by part in the order of the mix, lowest rank first.

    Raises ConfigError unless the mix has two parts or more, ArtifactError when one has nothing to give.
    """
    names = [part.name for part in config.mix.parts]
    require_parts(names)
    reach = Reach.of(config)
    found: dict[str, list[Ranked]] = {name: [] for name in names}
    for row in rows:
        if row.part not in found:
            raise ArtifactError(
                f"{config.train_path}: row {row.id} is of part {row.part!r}, mix.parts has {names}: run "
                f"`synthgen mix CONFIG` to make the dataset anew"
            )
        if tokens := reach.supervised(row.spans):
            found[row.part].append(Ranked(rank_of(config.seed, row.id), row.id, tokens))
    for name, part in found.items():
        if not part:
            raise ArtifactError(f"{config.train_path}: part {name!r} has no row with states to learn from")
        part.sort()
    return found


def require_parts(names: Sequence[str]) -> None:
    """Raise ConfigError unless there are parts to compare, none of them with the name of all."""
    if len(names) < 2:
        raise ConfigError(
            f"mix.parts has one part only, {names[0]!r}: there is nothing to compare. Add one whose "
            f"`replies` are others' (a file, or hub:mlabonne/open-perfectblend:train), then run `synthgen "
            f"render`, `synthgen mix`, `eagle extract` and `eagle vocab` again"
        )
    if MIX in names:
        raise ConfigError(f"mix.parts: {MIX!r} is what the arm of all parts is called: rename that part")


def tokens_for_all(parts: dict[str, list[Ranked]], asked: int | None) -> int:
    """The supervised tokens of each arm: as asked, or the most that each part can give.

    Raises ConfigError when a part hasn't as many as asked.
    """
    there = {name: sum(row.tokens for row in rows) for name, rows in parts.items()}
    scarce = min(there, key=there.__getitem__)
    if asked is not None and asked > there[scarce]:
        raise ConfigError(
            f"--tokens {asked:,} is more than part {scarce!r} has supervised, {there[scarce]:,}: ask for "
            f"that or less, or make the dataset larger"
        )
    return asked or there[scarce]


def choose(parts: dict[str, list[Ranked]], tokens: int) -> dict[str, dict[str, int]]:
    """The rows of each arm, and how many of their targets are supervised: all but in a last row."""
    there = {name: sum(row.tokens for row in rows) for name, rows in parts.items()}
    arms = {name: _taken(rows, tokens) for name, rows in parts.items()}
    mixed: dict[str, int] = {}
    for name, quota in _quotas(there, tokens).items():
        mixed |= _taken(parts[name], quota)
    return arms | {MIX: mixed}


def _quotas(there: dict[str, int], tokens: int) -> dict[str, int]:
    """What each part gives to the mix: in proportion, whole tokens, `tokens` together."""
    whole, given, quotas = sum(there.values()), 0, {}
    before = 0
    for name, supply in there.items():
        before += supply
        quotas[name] = before * tokens // whole - given
        given += quotas[name]
    return quotas


def _taken(rows: Sequence[Ranked], tokens: int) -> dict[str, int]:
    taken: dict[str, int] = {}
    for row in rows:
        if tokens <= 0:
            break
        taken[row.id] = min(row.tokens, tokens)
        tokens -= taken[row.id]
    return taken

"""Which rows a part of a dataset gives: by hash, so that neither order nor memory matters.

Every row has a rank, a hash of its id and the run's seed. A part gives its rows of lowest rank until its
quota is full, so a larger quota contains the smaller one, but for a few rows at its edge: among those that
share the first 16 bits of their ranks the ones read first are taken. A first pass sums the weights of all
rows into a histogram of ranks; a second one takes them.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Mapping

RANK_BITS = 64
BUCKET_BITS = 16


def rank_of(seed: int, name: str) -> int:
    """A row's place in the seeded order: 64 bits of a hash."""
    return int.from_bytes(hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest())


def is_heldout(seed: int, prompt: str, fraction: float) -> bool:
    """Whether all rows of a prompt are held out."""
    return fraction > 0 and rank_of(seed, f"heldout:{prompt}") < fraction * (1 << RANK_BITS)


def quotas(shares: Mapping[str, float], available: Mapping[str, int]) -> dict[str, float]:
    """How much each part gives so that the shares hold and the scarcest part gives all it has."""
    whole = min(available[name] / share for name, share in shares.items())
    return {name: share * whole for name, share in shares.items()}


class Supply:
    """What a part has to give: the weight of its rows by rank."""

    def __init__(self) -> None:
        self.rows = 0
        self.weight = 0
        self._buckets = array("Q", bytes(8 << BUCKET_BITS))

    def add(self, rank: int, weight: int) -> None:
        """Count one row."""
        self.rows += 1
        self.weight += weight
        self._buckets[rank >> (RANK_BITS - BUCKET_BITS)] += weight

    def draw(self, quota: float) -> Draw:
        """The draw that gives `quota` of this supply, as near as whole rows come to it."""
        taken = 0
        for bucket, weight in enumerate(self._buckets):
            if taken + weight > quota:
                return Draw(bucket << (RANK_BITS - BUCKET_BITS), quota - taken)
            taken += weight
        return Draw(1 << RANK_BITS, 0.0)


class Draw:
    """Takes the rows below a rank, and of the bucket that begins there those that come first."""

    def __init__(self, below: int, rest: float) -> None:
        self._below = below
        self._until = below + (1 << (RANK_BITS - BUCKET_BITS))
        self._rest = rest

    def takes(self, rank: int, weight: int) -> bool:
        """Whether a row is drawn; each row is asked for once."""
        if rank < self._below:
            return True
        if rank >= self._until or weight > 2 * self._rest:
            return False
        self._rest -= weight
        return True

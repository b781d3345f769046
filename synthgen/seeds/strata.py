"""How a limit is shared out among domains."""

from __future__ import annotations

from typing import Literal


def shares(
    sizes: dict[str, int], limit: int | None, strata: Literal["proportional", "even"]
) -> dict[str, int]:
    """How many of each domain are taken: together `limit`, or all when there are no more.

    Whatever can't be shared out evenly goes by name, so that it is the same each time. An even share never
    falls when `limit` rises; a proportional one may, by one.
    """
    if limit is None or limit >= sum(sizes.values()):
        return dict(sizes)
    return _even(sizes, limit) if strata == "even" else _proportional(sizes, limit)


def _proportional(sizes: dict[str, int], limit: int) -> dict[str, int]:
    """By largest remainder: each quota rounded down, and one more where most was cut off."""
    whole = sum(sizes.values())
    taken = {name: limit * size // whole for name, size in sizes.items()}
    by_remainder = sorted(sizes, key=lambda name: (-(limit * sizes[name] % whole), name))
    for name in by_remainder[: limit - sum(taken.values())]:
        taken[name] += 1
    return taken


def _even(sizes: dict[str, int], limit: int) -> dict[str, int]:
    """The smallest first: each gets an even part of what is left, or all it has."""
    taken = dict.fromkeys(sizes, 0)
    level = _level(sizes, limit)
    for name, size in sizes.items():
        taken[name] = min(size, level)
    deeper = sorted(name for name, size in sizes.items() if size > level)
    for name in deeper[: limit - sum(taken.values())]:
        taken[name] += 1
    return taken


def _level(sizes: dict[str, int], limit: int) -> int:
    """The most that every domain can have, as far as it lasts, without going over the limit."""
    left, domains = limit, len(sizes)
    for size in sorted(sizes.values()):
        if size * domains > left:
            return left // domains
        left, domains = left - size, domains - 1
    return max(sizes.values(), default=0)

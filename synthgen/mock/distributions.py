"""How long things take and how long replies are, drawn anew for each request."""

from __future__ import annotations

import math
import random

import msgspec

from synthgen.errors import ConfigError


class Fixed(msgspec.Struct, frozen=True, tag="fixed"):
    """Always the same."""

    value: float

    def __post_init__(self) -> None:
        _refuse(self.value < 0, f"fixed {self.value}: it must not be below 0")

    def draw(self, generator: random.Random) -> float:
        """One value."""
        return self.value


class Uniform(msgspec.Struct, frozen=True, tag="uniform"):
    """Any value between two, alike."""

    low: float
    high: float

    def __post_init__(self) -> None:
        _refuse(not 0 <= self.low <= self.high, f"uniform {self.low} to {self.high}: wants 0 <= low <= high")

    def draw(self, generator: random.Random) -> float:
        """One value."""
        return generator.uniform(self.low, self.high)


class Lognormal(msgspec.Struct, frozen=True, tag="lognormal"):
    """Many near the median and some far above, as lengths and latencies of real servers are."""

    median: float
    sigma: float
    """Standard deviation of the logarithm; 0.7 puts one in a hundred above five medians."""

    def __post_init__(self) -> None:
        _refuse(
            self.median < 0 or self.sigma < 0,
            f"lognormal {self.median}, {self.sigma}: neither may be below 0",
        )

    def draw(self, generator: random.Random) -> float:
        """One value."""
        return self.median * generator.lognormvariate(0.0, self.sigma)


Distribution = Fixed | Uniform | Lognormal


def parse_distribution(text: str) -> Distribution:
    """`3`, `uniform:1,5` (low, high) or `lognormal:2,0.7` (median, sigma). Raises ConfigError for others."""
    name, _, numbers = text.rpartition(":")
    try:
        values = [float(number) for number in numbers.split(",")]
    except ValueError:
        values = []
    if not all(map(math.isfinite, values)):
        values = []
    match name or "fixed", values:
        case "fixed", [value]:
            return Fixed(value)
        case "uniform", [low, high]:
            return Uniform(low, high)
        case "lognormal", [median, sigma]:
            return Lognormal(median, sigma)
    raise ConfigError(f"{text!r} is no distribution: write 3, uniform:1,5 or lognormal:2,0.7 (median, sigma)")


def _refuse(is_wrong: bool, message: str) -> None:
    if is_wrong:
        raise ConfigError(message)

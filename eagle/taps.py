"""Which hidden states of the verifier are taken, in one convention: vLLM's.

vLLM's id k is the hidden state before layer index k, which is `hidden_states[k]` of transformers;
SGLang and SpecForge write the same tensor as k - 1. Id L (the number of layers) is the last layer's
output *before* the final norm, where transformers' `hidden_states[-1]` is after it. Mixing these
loses acceptance silently, so ids are only ever made and read here.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from synthgen.errors import ConfigError

CONVENTION = "vllm: id k is the state before layer index k"


class Counting(enum.StrEnum):
    """Whose count layer ids are of."""

    VLLM = "vllm"
    SGLANG = "sglang"
    """One lower: the layer whose output is meant."""


@dataclass(frozen=True, slots=True)
class TapPoints:
    """Three aux layers and the final state of a verifier with `num_layers` layers."""

    aux: tuple[int, int, int]
    num_layers: int

    def __post_init__(self) -> None:
        if not 0 < self.aux[0] < self.aux[1] < self.aux[2] < self.num_layers:
            raise ConfigError(
                f"extract.aux_layers {list(self.aux)} don't fit a verifier of {self.num_layers} layers: "
                f"three rising ids between 1 and {self.num_layers - 1}; its default would be "
                f"{list(default_aux(self.num_layers))}"
            )

    @property
    def captured(self) -> tuple[int, int, int, int]:
        """The ids to capture, in the order in which shards hold them: aux, then the pre-norm final state."""
        return (*self.aux, self.num_layers)

    @property
    def sglang(self) -> tuple[int, int, int]:
        """The same aux states as SGLang and SpecForge count them."""
        low, middle, high = self.aux
        return (low - 1, middle - 1, high - 1)


def default_aux(num_layers: int) -> tuple[int, int, int]:
    """vLLM's own choice when a draft names none: (2, L // 2, L - 3)."""
    return (2, num_layers // 2, num_layers - 3)

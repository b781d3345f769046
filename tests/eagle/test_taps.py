"""Tap points: one convention, refused when they don't fit the verifier."""

from __future__ import annotations

import pytest

from eagle.taps import TapPoints, default_aux
from synthgen.errors import ConfigError


@pytest.mark.parametrize(
    ("num_layers", "expected"),
    [(61, (2, 30, 58)), (30, (2, 15, 27)), (8, (2, 4, 5))],
    ids=["Kimi", "SmolLM2", "demo"],
)
def test_the_default_is_vllms(num_layers: int, expected: tuple[int, int, int]) -> None:
    """(2, L // 2, L - 3)."""
    assert default_aux(num_layers) == expected


def test_kimis_taps_in_both_conventions() -> None:
    """vLLM's 2, 30, 58 and the final 61 are SGLang's 1, 29, 57."""
    taps = TapPoints(aux=(2, 30, 58), num_layers=61)
    assert taps.captured == (2, 30, 58, 61)
    assert taps.sglang == (1, 29, 57)


@pytest.mark.parametrize("aux", [(0, 1, 2), (2, 2, 3), (4, 2, 5), (2, 4, 8)])
def test_ids_that_do_not_fit_are_refused_with_the_default(aux: tuple[int, int, int]) -> None:
    """What is asked, how many layers there are, and what would do."""
    with pytest.raises(
        ConfigError, match=r"don't fit a verifier of 8 layers: .* its default would be \[2, 4, 5\]"
    ):
        TapPoints(aux=aux, num_layers=8)

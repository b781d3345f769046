"""Rotary embedding against the paper's formulas and against vLLM's own tables."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors import safe_open

from eagle.rotary import attention_factor, pair_frequencies, relative_attention_factor, rotary_tables, rotate
from synthgen.corpus.draft_sections import YarnScaling

SCRIPT = Path(__file__).with_name("vllm_rope.py")
YARN = YarnScaling(
    rope_type="yarn",
    factor=32.0,
    original_max_position_embeddings=4096,
    beta_fast=32.0,
    beta_slow=1.0,
    attention_factor=None,
)


def frequencies_by_the_paper(head_dim: int, theta: float, scaling: YarnScaling) -> dict[int, float]:
    """Definition 2, NTK-by-parts: (1 - γ(r)) θ / s + γ(r) θ, where a pair turns r times in the context. Left
    out are the pairs where γ is neither 0 nor 1: see the test of the ramp."""
    found = {}
    for pair in range(head_dim // 2):
        frequency = theta ** (-2 * pair / head_dim)
        turns = scaling.original_max_position_embeddings * frequency / (2 * math.pi)
        gamma = (turns - scaling.beta_slow) / (scaling.beta_fast - scaling.beta_slow)
        if gamma <= 0 or gamma >= 1:
            gamma = min(max(gamma, 0), 1)
            found[pair] = (1 - gamma) * frequency / scaling.factor + gamma * frequency
    return found


def test_rotary_turns_halves_by_position_times_frequency() -> None:
    """With head size 4 and theta 100, position 2 turns (x0, x2) by 2 rad and (x1, x3) by 0.2 rad."""
    cos, sin = rotary_tables(torch.tensor([2]), 4, 100.0, None, torch.float32)
    turned = rotate(torch.tensor([[[1.0, 1.0, 0.0, 0.0]]]), cos, sin)
    torch.testing.assert_close(turned, torch.tensor([[[-0.41614684, 0.98006658, 0.90929743, 0.19866933]]]))


@pytest.mark.parametrize("position", [0, 1, 77, 5000])
def test_yarn_is_the_papers(position: int) -> None:
    """Pair by pair, within and beyond the original context, wherever nothing is blended."""
    cos, sin = rotary_tables(torch.tensor([position]), 128, 1e6, YARN, torch.float32)
    expected = frequencies_by_the_paper(128, 1e6, YARN)
    assert len(expected) == 47
    for pair, frequency in expected.items():
        length = 0.1 * math.log(32) + 1
        turned = position * frequency
        assert cos[0, 0, pair].item() == pytest.approx(math.cos(turned) * length, abs=1e-3)
        assert sin[0, 0, pair].item() == pytest.approx(math.sin(turned) * length, abs=1e-3)


def test_between_them_the_ramp_is_even_over_the_pairs() -> None:
    """The paper's ramp is over turns; its authors' code, transformers and vLLM have it over pairs.
    With 64 pairs and theta 1e6 it goes from pair 13 to 31: a third of the way at 19, half at 22."""
    found = pair_frequencies(128, 1e6, YARN, torch.device("cpu"))
    plain = pair_frequencies(128, 1e6, None, torch.device("cpu"))
    ratios = (found / plain).tolist()
    assert ratios[13] == 1.0
    assert ratios[19] == pytest.approx(1 / 3 / 32 + 2 / 3)
    assert ratios[22] == pytest.approx(1 / 2 / 32 + 1 / 2)
    assert ratios[31] == pytest.approx(1 / 32)


def test_fast_pairs_keep_their_frequency_and_slow_ones_are_slowed_down() -> None:
    """With factor 8 the first pair turns as it did, the last an eighth as far; both are 1.2079 long."""
    scaling = msgspec.structs.replace(YARN, factor=8.0)
    plain = rotary_tables(torch.tensor([3, 8 * 3]), 64, 10000.0, None, torch.float64)
    cos, sin = rotary_tables(torch.tensor([3, 8 * 3]), 64, 10000.0, scaling, torch.float64)
    length = (cos.square() + sin.square()).sqrt()
    torch.testing.assert_close(length, torch.full_like(length, 1.2079441541679836), rtol=1e-6, atol=0)
    torch.testing.assert_close(sin[0, 0, 0], plain[1][0, 0, 0] * 1.2079441541679836, rtol=1e-6, atol=0)
    torch.testing.assert_close(sin[1, 0, -1], plain[1][0, 0, -1] * 1.2079441541679836, rtol=1e-6, atol=0)


def test_the_attention_factor_can_be_given() -> None:
    """As vLLM takes it, and as a multiple of the paper's 1.3466 for older servers."""
    assert attention_factor(YARN) == pytest.approx(1.3465735903)
    given = msgspec.structs.replace(YARN, attention_factor=1.0)
    assert attention_factor(given) == 1.0
    assert relative_attention_factor(given) == pytest.approx(1 / 1.3465735903)
    assert relative_attention_factor(YARN) == 1.0


CASES: list[tuple[int, float, YarnScaling | None]] = [
    (128, 1e6, None),
    (128, 1e6, YARN),
    (64, 50000.0, msgspec.structs.replace(YARN, factor=2.5, original_max_position_embeddings=1024)),
    (32, 1000.0, msgspec.structs.replace(YARN, beta_fast=8.0, beta_slow=2.0, attention_factor=1.0)),
    (8, 1e6, msgspec.structs.replace(YARN, original_max_position_embeddings=16)),
]


@pytest.mark.vllm
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="compares with vLLM")
def test_equals_vllms_tables(tmp_path: Path) -> None:
    """Every bit of the tables that vLLM's class makes of the same parameters, over their whole length."""
    out = tmp_path / "rope.safetensors"
    asked = [(size, rope_parameters(theta, scaling)) for size, theta, scaling in CASES]
    command = [sys.executable, str(SCRIPT), json.dumps(asked), str(out)]
    environment = os.environ | {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    with safe_open(out, framework="pt") as file:
        for number, (head_dim, theta, scaling) in enumerate(CASES):
            name = "RotaryEmbedding" if scaling is None else "YaRNScalingRotaryEmbedding"
            assert file.metadata()[str(number)] == name
            theirs = file.get_tensor(str(number))
            tables = rotary_tables(torch.arange(len(theirs)), head_dim, theta, scaling, torch.float32)
            assert torch.equal(torch.cat(tables, -1)[:, 0], theirs), number


def rope_parameters(theta: float, scaling: YarnScaling | None) -> dict[str, object]:
    """As `config.json` of an export has them."""
    if scaling is None:
        return {"rope_type": "default", "rope_theta": theta}
    stated: dict[str, object] = msgspec.to_builtins(scaling)
    return {key: value for key, value in stated.items() if value is not None} | {"rope_theta": theta}

"""Rotary position embedding as vLLM's Llama draft applies it, plain or lengthened by YaRN (arXiv 2309.00071).

YaRN looks at how often each pair of dimensions turns within the original context. Pairs that turn more than
`beta_fast` times keep their frequency, those that turn less than `beta_slow` times are slowed down by
`factor`, and those between are blended, evenly over the pairs as vLLM has it (the paper: over the turns). cos
and sin are then multiplied with the attention factor.

Axes: T tokens, A heads, D head size.
"""

from __future__ import annotations

import math

import torch

from synthgen.corpus.draft_sections import YarnScaling


def rotary_tables(
    positions_T: torch.Tensor, head_dim: int, theta: float, scaling: YarnScaling | None, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin `[T, 1, D / 2]` of each position, computed in float32 as vLLM does."""
    frequencies = pair_frequencies(head_dim, theta, scaling, positions_T.device)
    angles = positions_T[:, None, None].float() * frequencies
    cos, sin = angles.cos(), angles.sin()
    if scaling is not None:
        factor = attention_factor(scaling)
        cos, sin = cos * factor, sin * factor
    return cos.to(dtype), sin.to(dtype)


def rotate(x_TAD: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding, neox style: the first half of each head turns with its second half."""
    first, second = x_TAD.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def attention_factor(scaling: YarnScaling) -> float:
    """What cos and sin are multiplied with, so that attention stays as sharp over a longer context."""
    return scaling.attention_factor or paper_factor(scaling.factor)


def paper_factor(factor: float) -> float:
    """The attention factor that the paper finds for a context `factor` times as long."""
    return 0.1 * math.log(factor) + 1.0


def relative_attention_factor(scaling: YarnScaling) -> float:
    """The attention factor as a multiple of the paper's: older vLLM and SGLang take it so (`attn_factor`)."""
    return attention_factor(scaling) / paper_factor(scaling.factor)


def pair_frequencies(
    head_dim: int, theta: float, scaling: YarnScaling | None, device: torch.device
) -> torch.Tensor:
    """`[D / 2]` radians a position, float32."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim
    wavelengths = theta**exponents
    if scaling is None:
        return 1.0 / wavelengths
    low, high = _blended_pairs(head_dim, theta, scaling)
    pairs = torch.arange(head_dim // 2, dtype=torch.float32, device=device)
    kept = 1.0 - ((pairs - low) / (high - low)).clamp(0, 1)
    # In the order in which vLLM adds: a bit's difference is a visible angle after 100,000 positions.
    return 1.0 / (scaling.factor * wavelengths) * (1.0 - kept) + 1.0 / wavelengths * kept


def _blended_pairs(head_dim: int, theta: float, scaling: YarnScaling) -> tuple[float, float]:
    """The pairs between which the frequencies are blended, whole numbers except where they would meet."""
    context = scaling.original_max_position_embeddings

    def pair_that_turns(times: float) -> float:
        return head_dim * math.log(context / (2 * math.pi * times)) / (2 * math.log(theta))

    low = max(math.floor(pair_that_turns(scaling.beta_fast)), 0)
    high = min(math.ceil(pair_that_turns(scaling.beta_slow)), head_dim - 1)
    return low, high + 0.001 if low == high else high

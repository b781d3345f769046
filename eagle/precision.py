"""Hidden states in half the bytes: fp8 (e4m3) with one scale for each token and tap.

A state's largest value is laid on the largest of e4m3, 448; what is read is `value * scale`. e4m3 has
three bits of mantissa, so a value is off by at most 1/16 of itself, or by half of the smallest step,
2^-9 of the scale.
"""

from __future__ import annotations

import torch

FP8 = torch.float8_e4m3fn
FP8_MAX = 448.0


def quantize(states_RH: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`[R, H]` states as fp8 of the same shape, and their scales `[R]` in float32."""
    values_RH = states_RH.float()
    scales_R = values_RH.abs().amax(-1) / FP8_MAX
    scales_R = torch.where(scales_R > 0, scales_R, torch.ones_like(scales_R))
    return (values_RH / scales_R[:, None]).clamp(-FP8_MAX, FP8_MAX).to(FP8), scales_R


def dequantize(values_RH: torch.Tensor, scales_R: torch.Tensor) -> torch.Tensor:
    """`[R, H]` states in bfloat16."""
    return (values_RH.to(torch.float32) * scales_R[:, None]).bfloat16()

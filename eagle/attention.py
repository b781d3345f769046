"""Attention of the training-time test (EAGLE-3, section 3.2) over packed documents, without padding.

Step s of the test looks back at the keys of steps 0..s. Of step 0 a slot sees its own document up to
itself; of each later step only its own entry, the *diagonal*, because at serving time it is the only
one drafted on top of it. So the softmax of slot t runs over t + 1 + s scores: one causal block and s
single scores. Block 0 goes through a flash kernel, and the diagonals are merged by log-sum-exp.

Only *active* slots, those with a supervised target at any step, are queries; every token has a key.

Axes: T tokens of the batch, N active slots, A query heads, G key-value heads, R = A / G queries that
share a key, D head size, S later steps.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
import torch.nn.functional as F

Starts = tuple[int, ...]
"""Where each document begins among the T tokens, and T at the end."""

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def ttt_attention(
    q_NAD: torch.Tensor,
    k_TGD: torch.Tensor,
    v_TGD: torch.Tensor,
    later_k_SNGD: torch.Tensor,
    later_v_SNGD: torch.Tensor,
    slots_N: torch.Tensor,
    starts: Starts,
) -> torch.Tensor:
    """Attend from the active slots to block 0 and to their diagonals; return `[N, A, D]`.

    `slots_N` holds the rising token index of each active slot. On the CPU the flash kernel and its
    backward are called by hand; elsewhere it is one masked SDPA call for each document.
    """
    if q_NAD.device.type == "cpu":
        merged: torch.Tensor = _Merged.apply(  # type: ignore[no-untyped-call]
            q_NAD, k_TGD, v_TGD, later_k_SNGD, later_v_SNGD, slots_N, starts
        )
        return merged
    return masked_attention(q_NAD, k_TGD, v_TGD, later_k_SNGD, later_v_SNGD, slots_N, starts)


def masked_attention(
    q_NAD: torch.Tensor,
    k_TGD: torch.Tensor,
    v_TGD: torch.Tensor,
    later_k_SNGD: torch.Tensor,
    later_v_SNGD: torch.Tensor,
    slots_N: torch.Tensor,
    starts: Starts,
) -> torch.Tensor:
    """The same by SDPA with a boolean mask: runs on any device, slower, and needs a mask in memory."""
    bounds = _slots_before(slots_N, starts)
    groups = q_NAD.shape[1] // k_TGD.shape[1]
    outputs = []
    for (start, end), (low, high) in zip(itertools.pairwise(starts), itertools.pairwise(bounds), strict=True):
        keys = torch.cat((k_TGD[start:end], later_k_SNGD[:, low:high].flatten(0, 1)))
        values = torch.cat((v_TGD[start:end], later_v_SNGD[:, low:high].flatten(0, 1)))
        mask = ttt_mask(slots_N[low:high] - start, end - start, len(later_k_SNGD))
        out = F.scaled_dot_product_attention(
            q_NAD[low:high].transpose(0, 1)[None],
            keys.repeat_interleave(groups, 1).transpose(0, 1)[None],
            values.repeat_interleave(groups, 1).transpose(0, 1)[None],
            attn_mask=mask,
        )
        outputs.append(out[0].transpose(0, 1))
    return torch.cat(outputs)


def _slots_before(slots_N: torch.Tensor, starts: Starts) -> list[int]:
    """How many slots lie before each start; where every token is one, their values aren't needed."""
    if len(slots_N) == starts[-1]:
        return list(starts)
    return torch.searchsorted(slots_N, torch.tensor(starts, device=slots_N.device)).tolist()


def ttt_mask(slots_n: torch.Tensor, tokens: int, later_steps: int) -> torch.Tensor:
    """`[n, tokens + later_steps * n]` bool for one document: causal block 0, then the diagonals."""
    causal = torch.arange(tokens, device=slots_n.device) <= slots_n[:, None]
    diagonal = torch.eye(len(slots_n), dtype=torch.bool, device=slots_n.device)
    return torch.cat((causal, *[diagonal] * later_steps), dim=1)


class _Merged(torch.autograd.Function):
    """Block 0 by the flash kernel, diagonals merged in.

    With m the log-sum-exp over all scores of a slot, out = exp(lse0 - m) out0 + Σ_s exp(score_s - m) v_s.
    The flash backward recomputes its probabilities as exp(score - lse) and subtracts dout·out: fed with
    the merged m and out, it gives block 0's exact gradients under the merged softmax.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q_NAD: torch.Tensor,
        k_TGD: torch.Tensor,
        v_TGD: torch.Tensor,
        later_k_SNGD: torch.Tensor,
        later_v_SNGD: torch.Tensor,
        slots_N: torch.Tensor,
        starts: Starts,
    ) -> torch.Tensor:
        q_TAD = _scatter(q_NAD, slots_N, len(k_TGD))
        parts = [
            _flash(_heads(q_TAD, s, e), _heads(k_TGD, s, e), _heads(v_TGD, s, e), 0.0, True)
            for s, e in itertools.pairwise(starts)
        ]
        out_NAD = torch.cat([out[0].transpose(0, 1) for out, _ in parts])[slots_N]
        lse_NA = torch.cat([lse[0].transpose(0, 1) for _, lse in parts])[slots_N]
        if len(later_k_SNGD):
            scores_SNA = _diagonal_scores(q_NAD, later_k_SNGD)
            block_lse_NA, lse_NA = lse_NA, torch.cat((lse_NA[None], scores_SNA)).logsumexp(0)
            merged = out_NAD * (block_lse_NA - lse_NA).exp()[..., None]
            weights_SNA = (scores_SNA - lse_NA).exp()
            merged += (weights_SNA[..., None] * _per_query(later_v_SNGD, q_NAD)).sum(0)
            out_NAD = merged.to(q_NAD.dtype)
        ctx.starts = starts
        ctx.save_for_backward(q_NAD, k_TGD, v_TGD, later_k_SNGD, later_v_SNGD, slots_N, out_NAD, lse_NA)
        return out_NAD

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q_NAD, k_TGD, v_TGD, later_k_SNGD, later_v_SNGD, slots_N, out_NAD, lse_NA = ctx.saved_tensors
        (dout_NAD,) = grads
        q, out, dout, lse = (_scatter(x, slots_N, len(k_TGD)) for x in (q_NAD, out_NAD, dout_NAD, lse_NA))
        pieces = [
            _flash_backward(
                *(_heads(x, s, e) for x in (dout, q, k_TGD, v_TGD, out)),
                lse[s:e].transpose(0, 1)[None].contiguous(),
                0.0,
                True,
            )
            for s, e in itertools.pairwise(ctx.starts)
        ]
        dq, dk, dv = (
            torch.cat([piece[0].transpose(0, 1) for piece in column]) for column in zip(*pieces, strict=True)
        )
        dq_NAD = dq[slots_N]
        dlater_k, dlater_v = torch.zeros_like(later_k_SNGD), torch.zeros_like(later_v_SNGD)
        if len(later_k_SNGD):
            extra, dlater_k, dlater_v = _diagonal_gradients(
                q_NAD, later_k_SNGD, later_v_SNGD, out_NAD, lse_NA, dout_NAD
            )
            dq_NAD = (dq_NAD + extra).to(q_NAD.dtype)
        return dq_NAD, dk, dv, dlater_k, dlater_v, None, None


def _scatter(x_N: torch.Tensor, slots_N: torch.Tensor, tokens: int) -> torch.Tensor:
    """Rows of the active slots at their tokens, zero elsewhere: zero rows have no gradient."""
    return x_N.new_zeros((tokens, *x_N.shape[1:])).index_copy_(0, slots_N, x_N)


def _heads(x_TAD: torch.Tensor, start: int, end: int) -> torch.Tensor:
    """One document as the kernel wants it: `[1, A, end - start, D]`."""
    return x_TAD[start:end].transpose(0, 1)[None]


def _per_query(x_SNGD: torch.Tensor, q_NAD: torch.Tensor) -> torch.Tensor:
    """`[S, N, A, D]`: each key-value head for all the queries that share it."""
    return x_SNGD.repeat_interleave(q_NAD.shape[1] // x_SNGD.shape[2], dim=2)


def _per_key(x_SNAD: torch.Tensor, like_SNGD: torch.Tensor) -> torch.Tensor:
    """The reverse for gradients: `[S, N, G, D]`, summed over the queries that share a key."""
    steps, slots, groups, head_dim = like_SNGD.shape
    shared = x_SNAD.shape[2] // groups
    return x_SNAD.reshape(steps, slots, groups, shared, head_dim).sum(3).to(like_SNGD.dtype)


def _diagonal_scores(q_NAD: torch.Tensor, later_k_SNGD: torch.Tensor) -> torch.Tensor:
    accurate = torch.promote_types(q_NAD.dtype, torch.float32)
    products_SNAD = q_NAD.to(accurate) * _per_query(later_k_SNGD, q_NAD)
    return products_SNAD.sum(-1) / math.sqrt(q_NAD.shape[-1])


def _diagonal_gradients(
    q_NAD: torch.Tensor,
    later_k_SNGD: torch.Tensor,
    later_v_SNGD: torch.Tensor,
    out_NAD: torch.Tensor,
    lse_NA: torch.Tensor,
    dout_NAD: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients through the diagonals: to q `[N, A, D]`, and to the later keys and values."""
    keys_SNAD, values_SNAD = _per_query(later_k_SNGD, q_NAD), _per_query(later_v_SNGD, q_NAD)
    dout_NAD = dout_NAD.to(lse_NA.dtype)
    weights_SNA = (_diagonal_scores(q_NAD, later_k_SNGD) - lse_NA).exp()
    delta_NA = (dout_NAD * out_NAD).sum(-1)
    dscores_SNA = weights_SNA * ((dout_NAD * values_SNAD).sum(-1) - delta_NA) / math.sqrt(q_NAD.shape[-1])
    dq_NAD = (dscores_SNA[..., None] * keys_SNAD).sum(0)
    dk_SNGD = _per_key(dscores_SNA[..., None] * q_NAD, later_k_SNGD)
    dv_SNGD = _per_key(weights_SNA[..., None] * dout_NAD, later_v_SNGD)
    return dq_NAD, dk_SNGD, dv_SNGD

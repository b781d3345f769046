"""Attention of the training-time test (EAGLE-3, section 3.2) over packed documents, without padding.

Step s of the test looks back at the keys of steps 0..s. Of step 0 a slot sees its own document up to
itself; of each later step only its own entry, the *diagonal*, because at serving time it is the only
one drafted on top of it. So the softmax of slot t runs over t + 1 + s scores: one causal block and s
single scores. The two are merged by log-sum-exp.

Only *active* slots are queries; every token has a key. A document's slots are taken a few at a time, with
the keys up to the last of them and all the queries of a key together, and scores are computed anew for the
gradients: memory is bounded, nothing is masked but the corner, no key is repeated. It is the same on every
device. (A flash kernel takes each token as a query, and on the CPU its backward is slow: docs/log.md.)

Axes: T tokens of the batch, N active slots, A query heads, G key-value heads, R = A / G queries that
share a key, D head size, S later steps; of one piece: n slots, t keys, M = R · n.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

import torch

Starts = tuple[int, ...]
"""Where each document begins among the T tokens, and T at the end."""
LOG2_E = math.log2(math.e)
"""Scores are to base 2: given -inf, the CPU's exp takes twenty times as long, its exp2 does not."""
SCORES_AT_ONCE = {"cpu": 1 << 21, "cuda": 1 << 27}
"""Scores that exist at once, by device: 8 MB in float32, and half a GB on a GPU."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows [low, high) of the active slots, which see the keys of [start, end) no later than themselves."""

    low: int
    high: int
    start: int
    end: int


def pieces_of(slots_N: torch.Tensor, starts: Starts, heads: int, device: torch.device) -> list[Piece]:
    """Slots of one document each, as many as SCORES_AT_ONCE allows for `heads` query heads on `device`."""
    slots, most = slots_N.tolist(), SCORES_AT_ONCE["cpu" if device.type == "cpu" else "cuda"] // heads
    pieces: list[Piece] = []
    for start, end in itertools.pairwise(starts):
        first, past = bisect_left(slots, start), bisect_left(slots, end)
        rows = max(1, most // (end - start))
        for low in range(first, past, rows):
            high = min(low + rows, past)
            pieces.append(Piece(low, high, start, slots[high - 1] + 1))
    return pieces


def ttt_attention(
    q_NAD: torch.Tensor,
    k_TGD: torch.Tensor,
    v_TGD: torch.Tensor,
    later_k_SNGD: torch.Tensor,
    later_v_SNGD: torch.Tensor,
    slots_N: torch.Tensor,
    pieces: list[Piece],
) -> torch.Tensor:
    """Attend from the active slots to block 0 and to their diagonals; return `[N, A, D]`.

    `slots_N` holds the rising token index of each active slot, `pieces` is `pieces_of` them.
    """
    merged: torch.Tensor = _Merged.apply(  # type: ignore[no-untyped-call]
        q_NAD, k_TGD, v_TGD, later_k_SNGD, later_v_SNGD, slots_N, pieces
    )
    return merged


class _Merged(torch.autograd.Function):
    """Block 0 with diagonals merged in.

    With m the log-sum-exp over all scores of a slot, out = exp(lse0 - m) out0 + Σ_s exp(score_s - m) v_s.
    Probabilities are computed anew as exp(score - m), and dout·out is subtracted from their gradients: with
    the merged m and out this gives block 0's exact gradients under the merged softmax.
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
        pieces: list[Piece],
    ) -> torch.Tensor:
        out_NAD, lse_NA = _block(q_NAD, k_TGD, v_TGD, slots_N, pieces)
        if len(later_k_SNGD):
            scores_SNA = _diagonal_scores(q_NAD, later_k_SNGD)
            block_lse_NA, lse_NA = lse_NA, torch.cat((lse_NA[None], scores_SNA)).logsumexp(0)
            out_NAD *= (block_lse_NA - lse_NA).exp()[..., None]
            weights_SNA = (scores_SNA - lse_NA).exp()
            out_NAD += (weights_SNA[..., None] * _per_query(later_v_SNGD, q_NAD)).sum(0)
        out_NAD = out_NAD.to(q_NAD.dtype)
        ctx.pieces = pieces
        ctx.save_for_backward(q_NAD, k_TGD, v_TGD, later_k_SNGD, later_v_SNGD, slots_N, out_NAD, lse_NA)
        return out_NAD

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q_NAD, k_TGD, v_TGD, later_k_SNGD, later_v_SNGD, slots_N, out_NAD, lse_NA = ctx.saved_tensors
        dout_NAD = grads[0].to(lse_NA.dtype)
        delta_NA = (dout_NAD * out_NAD).sum(-1)
        dq_NAD, dk_TGD, dv_TGD = _block_gradients(
            q_NAD, k_TGD, v_TGD, slots_N, ctx.pieces, lse_NA, dout_NAD, delta_NA
        )
        dlater_k, dlater_v = torch.zeros_like(later_k_SNGD), torch.zeros_like(later_v_SNGD)
        if len(later_k_SNGD):
            extra, dlater_k, dlater_v = _diagonal_gradients(
                q_NAD, later_k_SNGD, later_v_SNGD, lse_NA, dout_NAD, delta_NA
            )
            dq_NAD += extra
        dblock = (x.to(q_NAD.dtype) for x in (dq_NAD, dk_TGD, dv_TGD))
        return *dblock, dlater_k, dlater_v, None, None


def _block(
    q_NAD: torch.Tensor, k_TGD: torch.Tensor, v_TGD: torch.Tensor, slots_N: torch.Tensor, pieces: list[Piece]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention to block 0 alone, `[N, A, D]`, and the log-sum-exp of its scores, `[N, A]`."""
    q, k, v = _accurate(q_NAD) * (_scale(q_NAD) * LOG2_E), _accurate(k_TGD), _accurate(v_TGD)
    out_NAD, lse_NA = torch.empty_like(q), q.new_empty(q.shape[:2])
    for piece in pieces:
        k_GtD, v_GtD = _keys(k, piece), _keys(v, piece)
        scores_GMt = _scores(_queries(q, piece, k), k_GtD, slots_N, piece)
        most_GM1 = scores_GMt.amax(-1, keepdim=True)
        weights_GMt = scores_GMt.sub_(most_GM1).exp2_()
        sum_GM1 = weights_GMt.sum(-1, keepdim=True)
        _put(out_NAD, piece, torch.bmm(weights_GMt, v_GtD).div_(sum_GM1))
        _put(lse_NA[..., None], piece, most_GM1 + sum_GM1.log2())
    return out_NAD, lse_NA.div_(LOG2_E)


def _block_gradients(
    q_NAD: torch.Tensor,
    k_TGD: torch.Tensor,
    v_TGD: torch.Tensor,
    slots_N: torch.Tensor,
    pieces: list[Piece],
    lse_NA: torch.Tensor,
    dout_NAD: torch.Tensor,
    delta_NA: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients through block 0, to q, k and v."""
    scale = _scale(q_NAD)
    q, k, v = _accurate(q_NAD) * (scale * LOG2_E), _accurate(k_TGD), _accurate(v_TGD)
    dq_NAD, dk_TGD, dv_TGD = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
    for piece in pieces:
        k_GtD, v_GtD = _keys(k, piece), _keys(v, piece)
        q_GMD, dout_GMD, lse_GM1, delta_GM1 = (
            _queries(x, piece, k) for x in (q, dout_NAD, lse_NA[..., None] * LOG2_E, delta_NA[..., None])
        )
        weights_GMt = _scores(q_GMD, k_GtD, slots_N, piece).sub_(lse_GM1).exp2_()
        _keys(dv_TGD, piece).add_(torch.bmm(weights_GMt.mT, dout_GMD))
        dscores_GMt = torch.bmm(dout_GMD, v_GtD.mT).sub_(delta_GM1).mul_(weights_GMt)
        _put(dq_NAD, piece, torch.bmm(dscores_GMt, k_GtD))
        _keys(dk_TGD, piece).add_(torch.bmm(dscores_GMt.mT, q_GMD))
    return dq_NAD.mul_(scale), dk_TGD.div_(LOG2_E), dv_TGD


def _scores(q_GMD: torch.Tensor, k_GtD: torch.Tensor, slots_N: torch.Tensor, piece: Piece) -> torch.Tensor:
    """`[G, M, t]`: each slot's scores over ln 2, -inf where a key is later than it."""
    scores_GMt = torch.bmm(q_GMD, k_GtD.mT)
    keys_t = torch.arange(piece.start, piece.end, device=slots_N.device)
    later_nt = keys_t > slots_N[piece.low : piece.high, None]
    mask_nt = scores_GMt.new_zeros(later_nt.shape).masked_fill_(later_nt, -math.inf)
    scores_GMt.view(len(k_GtD), -1, *mask_nt.shape).add_(mask_nt)  # a tenth of what masked_fill_ takes
    return scores_GMt


def _queries(x_NAX: torch.Tensor, piece: Piece, like_TGD: torch.Tensor) -> torch.Tensor:
    """A piece's rows, `[G, M, …]`: beneath each key the queries that share it."""
    rows = x_NAX[piece.low : piece.high]
    grouped = rows.view(len(rows), like_TGD.shape[1], -1, rows.shape[-1])
    return grouped.permute(1, 2, 0, 3).flatten(1, 2)


def _put(x_NAX: torch.Tensor, piece: Piece, rows_GMX: torch.Tensor) -> None:
    """The reverse: write a piece's rows."""
    grouped = rows_GMX.view(len(rows_GMX), -1, piece.high - piece.low, rows_GMX.shape[-1])
    x_NAX[piece.low : piece.high] = grouped.permute(2, 0, 1, 3).flatten(1, 2)


def _keys(x_TGD: torch.Tensor, piece: Piece) -> torch.Tensor:
    """`[G, t, D]`: a piece's keys, values or their gradients, a view."""
    return x_TGD[piece.start : piece.end].transpose(0, 1)


def _accurate(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _scale(q_NAD: torch.Tensor) -> float:
    return 1 / math.sqrt(q_NAD.shape[-1])


def _per_query(x_SNGD: torch.Tensor, q_NAD: torch.Tensor) -> torch.Tensor:
    """`[S, N, A, D]`: each key-value head for all the queries that share it."""
    return x_SNGD.repeat_interleave(q_NAD.shape[1] // x_SNGD.shape[2], dim=2)


def _per_key(x_SNAD: torch.Tensor, like_SNGD: torch.Tensor) -> torch.Tensor:
    """The reverse for gradients: `[S, N, G, D]`, summed over the queries that share a key."""
    steps, slots, groups, head_dim = like_SNGD.shape
    shared = x_SNAD.shape[2] // groups
    return x_SNAD.reshape(steps, slots, groups, shared, head_dim).sum(3).to(like_SNGD.dtype)


def _diagonal_scores(q_NAD: torch.Tensor, later_k_SNGD: torch.Tensor) -> torch.Tensor:
    products_SNAD = _accurate(q_NAD) * _per_query(later_k_SNGD, q_NAD)
    return products_SNAD.sum(-1) * _scale(q_NAD)


def _diagonal_gradients(
    q_NAD: torch.Tensor,
    later_k_SNGD: torch.Tensor,
    later_v_SNGD: torch.Tensor,
    lse_NA: torch.Tensor,
    dout_NAD: torch.Tensor,
    delta_NA: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients through the diagonals: to q `[N, A, D]`, and to the later keys and values."""
    keys_SNAD, values_SNAD = _per_query(later_k_SNGD, q_NAD), _per_query(later_v_SNGD, q_NAD)
    weights_SNA = (_diagonal_scores(q_NAD, later_k_SNGD) - lse_NA).exp()
    dscores_SNA = weights_SNA * ((dout_NAD * values_SNAD).sum(-1) - delta_NA) * _scale(q_NAD)
    dq_NAD = (dscores_SNA[..., None] * keys_SNAD).sum(0)
    dk_SNGD = _per_key(dscores_SNA[..., None] * q_NAD, later_k_SNGD)
    dv_SNGD = _per_key(weights_SNA[..., None] * dout_NAD, later_v_SNGD)
    return dq_NAD, dk_SNGD, dv_SNGD

"""The loss of the training-time test, and the acceptance it predicts.

Step s is trained on the soft cross-entropy between the verifier's distribution over the draft
vocabulary and the draft's, averaged over its targets by their weights; the total is Σ γ^s L_s / Σ γ^s
(EAGLE-3, section 3.2, with the mean over supervised positions only). Where the verifier's most likely
token is not in the draft vocabulary there is nothing to learn: such a target adds no loss to the mean
and counts as a miss. So what a mean is taken over is known from the samples alone, before any state is
there, and an update over many batches or processes is the sum of its parts.

Logits are only ever made for a few hundred rows at a time. The gradient of soft cross-entropy is
softmax(z) - p, so it is taken while the logits are there, and nothing is computed twice or kept.

Axes: N active slots, P targets, S steps, H hidden size, K draft vocabulary, V verifier vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from eagle.batches import SHAPE_STEP, Targets
from eagle.tensors import argmax_last
from eagle.verifier import VerifierWeights
from eagle.vocab import VocabMap

CHUNK_LOGITS = {"cpu": 1 << 22, "cuda": 1 << 27}
"""The draft's logits that exist at once, by device: on the CPU what its caches hold, on a GPU half a GB in
float32. Of the verifier's, which nothing more is computed of, there are four times as many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierHead:
    """The verifier's final norm and head, in the dtype in which logits are computed.

    embedding_VH is the verifier's too: it is what a draft slot is given.
    """

    embedding_VH: torch.Tensor
    norm_H: torch.Tensor
    eps: float
    head_VH: torch.Tensor
    target_ids_K: torch.Tensor
    draft_ids_V: torch.Tensor
    """Of each of the verifier's tokens the draft's id; -1 where it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetLogits:
    """What the verifier says at each target.

    logits_PK: over the draft vocabulary.
    best_P: the draft's id of the verifier's most likely token; -1 where the draft vocabulary lacks it.
    """

    logits_PK: torch.Tensor
    best_P: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """The total with its gradient, and what it is made of.

    losses_S: `[S]` this batch's part of each step's mean soft cross-entropy.
    hits_SP: `[S, P]` bool, whether the draft's most likely token is the verifier's.
    """

    total: torch.Tensor
    losses_S: torch.Tensor
    hits_SP: torch.Tensor


def verifier_head(
    weights: VerifierWeights, eps: float, vocab: VocabMap, dtype: torch.dtype, device: torch.device
) -> VerifierHead:
    """The verifier's weights where and as training computes with them; the norm stays float32."""
    head_VH = weights.head_VH.to(device, dtype)
    tied = weights.embedding_VH is weights.head_VH
    return VerifierHead(
        embedding_VH=head_VH if tied else weights.embedding_VH.to(device, dtype),
        norm_H=weights.norm_H.to(device, torch.float32),
        eps=eps,
        head_VH=head_VH,
        target_ids_K=vocab.target_ids_K.to(device),
        draft_ids_V=draft_ids(vocab.t2d_V).to(device),
    )


def draft_ids(t2d_V: torch.Tensor) -> torch.Tensor:
    """`[V]`: of each of the verifier's tokens the draft's id, -1 where `t2d_V` says that it has none."""
    return torch.where(t2d_V, t2d_V.cumsum(0) - 1, -1)


def target_logits(verifier: VerifierHead, final_PH: torch.Tensor) -> TargetLogits:
    """The verifier's logits at its states before the final norm, pruned to the draft vocabulary.

    The norm is computed in float32. Of tokens that are equally likely the first counts, as when vLLM samples.
    """
    rows = _rows_at_once(4 * CHUNK_LOGITS[final_PH.device.type], len(verifier.head_VH))
    pruned, best = [], []
    for chunk_PH in torch.split(_filled_up(final_PH), rows):
        normed_PH = F.rms_norm(chunk_PH.float(), chunk_PH.shape[-1:], verifier.norm_H, verifier.eps)
        logits_PV = F.linear(normed_PH.to(verifier.head_VH.dtype), verifier.head_VH)
        pruned.append(logits_PV.index_select(1, verifier.target_ids_K))
        best.append(verifier.draft_ids_V[argmax_last(logits_PV)])
    targets = len(final_PH)
    return TargetLogits(logits_PK=torch.cat(pruned)[:targets], best_P=torch.cat(best)[:targets])


def _rows_at_once(numbers: int, columns: int) -> int:
    """Of a matrix of so many columns, of which `numbers` may exist; a multiple of SHAPE_STEP if it can be."""
    rows = max(1, numbers // columns)
    return max(rows - rows % SHAPE_STEP, min(rows, SHAPE_STEP))


def _filled_up(x_PX: torch.Tensor) -> torch.Tensor:
    """Zero rows after those of `x_PX`, up to a multiple of SHAPE_STEP."""
    missing = -len(x_PX) % SHAPE_STEP
    return F.pad(x_PX, (0, 0, 0, missing)) if missing else x_PX


def step_losses(
    outputs_SNH: torch.Tensor,
    head_KH: torch.Tensor,
    verifier_says: TargetLogits,
    targets: Targets,
    share_SP: torch.Tensor,
    decay: float,
) -> Losses:
    """Loss and hits of all steps; `outputs_SNH` are the head's inputs, `head_KH` its master weight,
    computed with in the outputs' dtype. `share_SP`: see `shares`."""
    best_P = verifier_says.best_P
    decays_S = decay ** torch.arange(len(share_SP), dtype=torch.float32, device=best_P.device)
    total, losses_S, best_SP = _SoftCrossEntropy.apply(  # type: ignore[no-untyped-call]
        outputs_SNH,
        head_KH if torch.is_grad_enabled() else head_KH.detach(),
        _filled_up(verifier_says.logits_PK),
        _filled_up(targets.row_SP.T).T,
        _filled_up((share_SP * (best_P >= 0)).T).T,
        decays_S / decays_S.sum(),
    )
    hits_SP = best_SP[:, : len(best_P)] == best_P
    return Losses(total=total, losses_S=losses_S, hits_SP=hits_SP & targets.valid_SP)


def shares(targets: Targets, weight_P: torch.Tensor, totals_S: torch.Tensor) -> torch.Tensor:
    """`[S, P]`: each target's part of its step's mean, its weight over the step's whole weight `totals_S`.

    `totals_S` is summed over the whole update, which may be more batches than this one.
    """
    whole_S1 = torch.where(totals_S > 0, totals_S, 1.0)[:, None]
    return targets.valid_SP * weight_P / whole_S1


def prefix_counts(hits_SP: torch.Tensor, targets: Targets) -> tuple[torch.Tensor, torch.Tensor]:
    """How often the first k steps of a slot all hit, and of how many: two `[S]`, for k = 1..S.

    A slot counts for k when all its first k steps have a target.
    """
    hits_SN, valid_SN = by_slot(hits_SP, targets)
    return hits_SN.int().cumprod(0).sum(1), valid_SN.int().cumprod(0).sum(1)


def by_slot(hits_SP: torch.Tensor, targets: Targets) -> tuple[torch.Tensor, torch.Tensor]:
    """Whether each slot hits at each step, and whether it has a target there: two `[S, N]` bool."""
    steps, slots = len(hits_SP), len(targets.slots_N)
    hits_SN = torch.zeros((steps, slots), dtype=torch.bool, device=hits_SP.device)
    valid_SN = torch.zeros_like(hits_SN)
    for step in range(steps):
        valid_P = targets.valid_SP[step]
        rows = targets.row_SP[step, valid_P]
        valid_SN[step, rows] = True
        hits_SN[step, rows] = hits_SP[step, valid_P]
    return hits_SN, valid_SN


def predicted_acceptance(prefix_hits_S: torch.Tensor, prefix_slots_S: torch.Tensor) -> float:
    """Tokens a verification step is expected to yield: 1 + Σ_k P(the first k drafted all hit)."""
    return 1.0 + float((prefix_hits_S / prefix_slots_S.clamp(min=1)).sum())


class _SoftCrossEntropy(torch.autograd.Function):
    """Σ decay · share · CE(p, softmax(head · outputs)), its gradient taken chunk by chunk on the way.

    Returns it, each step's part without decay `[S]`, and the draft's most likely ids `[S, P]`.
    """

    @staticmethod
    def forward(
        ctx: Any,
        outputs_SNH: torch.Tensor,
        head_KH: torch.Tensor,
        target_logits_PK: torch.Tensor,
        row_SP: torch.Tensor,
        share_SP: torch.Tensor,
        decay_S: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        steps, slots = outputs_SNH.shape[:2]
        accurate = torch.promote_types(outputs_SNH.dtype, torch.float32)
        weight_KH = head_KH.to(outputs_SNH.dtype)
        flat_SP = row_SP + slots * torch.arange(steps, device=row_SP.device)[:, None]
        flat_outputs = outputs_SNH.flatten(0, 1)
        doutputs = torch.zeros_like(flat_outputs) if ctx.needs_input_grad[0] else None
        dhead_KH = torch.zeros_like(head_KH, dtype=accurate) if ctx.needs_input_grad[1] else None
        weights_SP = share_SP * decay_S[:, None]
        ce_SP = torch.zeros_like(share_SP, dtype=accurate)
        best_SP = torch.zeros_like(row_SP)
        width = _rows_at_once(CHUNK_LOGITS[head_KH.device.type], steps * len(head_KH))
        for low in range(0, len(target_logits_PK), width):
            chunk = slice(low, low + width)
            rows = flat_SP[:, chunk].flatten()
            x = flat_outputs[rows]
            z_SPK = F.linear(x, weight_KH).to(accurate).view(steps, -1, len(head_KH))
            p_PK = target_logits_PK[chunk].to(accurate).softmax(-1)
            best_SP[:, chunk] = argmax_last(z_SPK)
            q_SPK = z_SPK.softmax(-1)
            at_best = best_SP[:, chunk, None]
            log_sum_SP = (z_SPK.gather(-1, at_best) - q_SPK.gather(-1, at_best).log()).squeeze(-1)
            ce_SP[:, chunk] = log_sum_SP - z_SPK.mul_(p_PK).sum(-1)
            if doutputs is None:  # a validation
                continue
            dz = q_SPK.sub_(p_PK).mul_(weights_SP[:, chunk, None]).to(x.dtype).flatten(0, 1)
            doutputs.index_add_(0, rows, dz @ weight_KH)
            if dhead_KH is not None:
                dhead_KH += dz.T @ x
        ctx.save_for_backward(None if doutputs is None else doutputs.view_as(outputs_SNH), dhead_KH)
        ctx.head_dtype = head_KH.dtype
        ctx.mark_non_differentiable(best_SP)
        losses_S = (ce_SP * share_SP).sum(1)
        ctx.mark_non_differentiable(losses_S)
        return (losses_S * decay_S).sum(), losses_S, best_SP

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        doutputs_SNH, dhead_KH = ctx.saved_tensors
        upstream = grads[0]
        dhead = None if dhead_KH is None else (dhead_KH * upstream).to(ctx.head_dtype)
        return (doutputs_SNH * upstream).to(doutputs_SNH.dtype), dhead, None, None, None, None

"""One update of the draft: forward, loss and backward over its batches, then the optimizers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn

from eagle.batches import SHAPE_STEP, Batch, Kind, Targets, blank_batch, find_targets, kind_weights
from eagle.draft import Draft, unroll
from eagle.feed import Update
from eagle.loss import VerifierHead, prefix_counts, shares, step_losses, target_logits
from eagle.optim import Optimizers, rate_at
from eagle.parallel import World, accumulating
from eagle.tensors import whole
from eagle.training_log import StepMetrics, unpacked
from synthgen.corpus.draft_sections import TrainConfig
from synthgen.errors import TrainingError

KINDS = {kind.name.lower(): kind for kind in (Kind.THINKING, Kind.RESPONSE, Kind.TOOL)}


class Objective(nn.Module):
    """The loss of a batch as a module, so that torch's parallel engines can wrap it."""

    def __init__(self, draft: Draft, verifier: VerifierHead, config: TrainConfig) -> None:
        super().__init__()
        self.draft = draft
        self.verifier = verifier
        self.config = config
        self.kind_weights = kind_weights(config.span_weights).to(verifier.norm_H.device)

    def forward(
        self, batch: Batch, targets: Targets, totals_S: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The batch's part of the loss, of each step's mean `[S]`, and its hits `[S, P]`.

        `totals_S`: the weight of the whole update's targets at each step.
        """
        with torch.no_grad():
            says = target_logits(self.verifier, batch.final_PH)
        outputs_SNH = unroll(
            self.draft,
            self.verifier.head_VH.dtype,
            batch.aux_T3H,
            self.verifier.embedding_VH[batch.token_ids_T],
            targets.slots_N,
            batch.starts,
            self.config.ttt_steps,
        )
        weight_P = self.kind_weights[batch.next_kind_T[targets.targets_P].long()]
        share_SP = shares(targets, weight_P, totals_S)
        losses = step_losses(
            outputs_SNH, self.draft.lm_head.weight, says, targets, share_SP, self.config.ttt_decay
        )
        return losses.total, losses.losses_S, losses.hits_SP


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainee:
    """Everything that an update changes or reads besides its data.

    engine: the objective as it is called, under torch's engine when there are many processes.
    """

    objective: Objective
    engine: nn.Module
    optimizers: Optimizers
    world: World

    @property
    def config(self) -> TrainConfig:
        """How it is trained."""
        return self.objective.config


def train_step(trainee: Trainee, update: Update, step: int, steps: int) -> StepMetrics:
    """One update, the `step`th of `steps` from 0; every process does its part and has the metrics of all.

    Raises TrainingError on all of them, before anything is changed, when the loss or its gradient isn't
    finite.
    """
    config, device = trainee.config, trainee.world.device
    totals_S = update.totals_S.to(device)
    numbers = None
    for number, batch in enumerate(update.batches, 1):
        with accumulating(trainee.engine, last=number == update.num_own):
            found = _accumulate(trainee, batch.to(device), totals_S)
        numbers = found if numbers is None else numbers + found
    if numbers is None:
        with accumulating(trainee.engine, last=True):
            numbers = _take_part(trainee)
    weights = list(trainee.optimizers.named.values())
    norm = whole(nn.utils.get_total_norm([w.grad for w in weights if w.grad is not None]))
    *own, grad_norm = torch.cat((numbers, norm.double()[None])).tolist()  # where a GPU is waited for
    metrics = unpacked(trainee.world.sums(own), [*KINDS], config.ttt_steps, grad_norm)
    _require_finite(metrics, step, update)
    if metrics.grad_norm > config.grad_clip_norm:
        nn.utils.clip_grads_with_norm_(weights, config.grad_clip_norm, norm)
    trainee.optimizers.step(rate_at(step, steps, config.warmup_fraction))
    return metrics


def _accumulate(trainee: Trainee, batch: Batch, totals_S: torch.Tensor) -> torch.Tensor:
    """Add a batch's gradients to those that are there; return what `unpacked` reads, in float64."""
    targets = find_targets(batch, trainee.config.ttt_steps, SHAPE_STEP)
    total, losses_S, hits_SP = trainee.engine(batch, targets, totals_S)
    total.backward()
    counts = (hits_SP.sum(1), targets.valid_SP.sum(1), *prefix_counts(hits_SP, targets))
    by_kind = _by_kind(hits_SP[0], batch.next_kind_T[targets.targets_P])
    return torch.cat([x.double() for x in (total.detach()[None], losses_S, *counts, by_kind)])


def _take_part(trainee: Trainee) -> torch.Tensor:
    """The passes of a process that has no batch of an update: of a blank one, which weighs nothing of an
    endless whole, so that its gradients are zero. Nothing of it is counted."""
    return torch.zeros_like(_accumulate(trainee, *blank_of(trainee)))


def blank_of(trainee: Trainee) -> tuple[Batch, torch.Tensor]:
    """A blank batch for a process that has none, and the weight of an endless whole `[S]`."""
    hidden_size = trainee.objective.verifier.embedding_VH.shape[1]
    batch = blank_batch(trainee.config.ttt_steps + 2, hidden_size).to(trainee.world.device)
    return batch, torch.full((trainee.config.ttt_steps,), torch.inf, device=trainee.world.device)


def _require_finite(metrics: StepMetrics, step: int, update: Update) -> None:
    if math.isfinite(metrics.loss) and math.isfinite(metrics.grad_norm):
        return
    raise TrainingError(
        f"step {step + 1} (epoch {update.position.epoch}, batch {update.position.index}): loss "
        f"{metrics.loss}, gradient norm {metrics.grad_norm}; samples {', '.join(update.samples)}. Nothing "
        f"of this step was applied: check their states, or lower train.learning_rate"
    )


def _by_kind(hits_P: torch.Tensor, kind_P: torch.Tensor) -> torch.Tensor:
    """Hits and targets of each of KINDS in turn."""
    of_kinds_KP = torch.stack([kind_P == kind for kind in KINDS.values()])
    return torch.stack(((of_kinds_KP & hits_P).sum(1), of_kinds_KP.sum(1)), dim=1).flatten()

"""How good the draft is on replies that it isn't trained on.

The figure to choose a checkpoint by is the predicted acceptance length: it goes on rising and falls again
while the loss tells little. It is counted over slots as serving drafts: a slot's k-th token counts when its
first k are all the verifier's most likely ones. A slot belongs to the domain of its sample and to the kind of
span in which its first token lies.

The verifier's logits are computed anew each time: those of all held-out targets would be gigabytes.

Axes: D domains, K kinds, S steps, P targets, N slots, C the four counts.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from eagle.batches import (
    Batch,
    Document,
    Kind,
    Position,
    Targets,
    find_targets,
    outline_of,
    pack,
    plan_epoch,
)
from eagle.feed import read_documents
from eagle.loss import by_slot, predicted_acceptance
from eagle.step import Trainee
from eagle.training_log import Line
from synthgen.corpus.config import RunConfig
from synthgen.corpus.records import Record
from synthgen.corpus.samples import read_samples

COUNTS = 4
"""Of slots at each step: whose tokens so far all hit, of how many; whose token hits, of how many."""


class Acceptance(Record, frozen=True, kw_only=True):
    """What the draft gets right. `accuracy` has one entry a draft position."""

    slots: int
    """Those whose first token is supervised."""
    length: float
    """Predicted acceptance length: 1 + Σ_k P(the first k drafted are all right)."""
    accuracy: list[float]
    """Share of tokens that are the verifier's most likely one; one outside the draft vocabulary never is."""


class Validation(Line, frozen=True, kw_only=True):
    """One line of the validation log."""

    seconds: float
    loss: float
    """As in training, over all held-out targets."""
    losses: list[float]
    whole: Acceptance
    by_domain: dict[str, Acceptance]
    by_kind: dict[str, Acceptance]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Samples that are held out, in batches that are the same at each validation."""

    documents: Sequence[Document]
    domains: Sequence[str]
    """Of each document."""
    plan: list[list[int]]
    """Numbers of the documents in each batch."""
    totals_S: torch.Tensor
    """`[S]`: the weight of all targets at each step."""

    @classmethod
    def of(cls, config: RunConfig) -> HeldOut | None:
        """The held-out samples of a run, None where it has none. Raises ArtifactError as `read_documents`."""
        samples = read_samples(config.validation_path, config.extract.max_seq_tokens)
        if not samples:
            return None
        domain_of = {sample.id: sample.domain for sample in samples}
        documents = read_documents(config, config.validation_path)
        train = config.train
        outlines = [
            outline_of(d.sample_id, d.next_kind_T, train.span_weights, train.ttt_steps) for d in documents
        ]
        lengths = [outline.num_tokens for outline in outlines]
        weights = torch.tensor([outline.target_weights for outline in outlines], dtype=torch.float64)
        return cls(
            documents=documents,
            domains=[domain_of[d.sample_id] for d in documents],
            plan=plan_epoch(lengths, train.batch_tokens, config.seed, 0),
            totals_S=weights.sum(0).float(),
        )

    def batches(self) -> Iterator[tuple[Batch, list[str]]]:
        """Each batch, and the domains of its documents."""
        for numbers in self.plan:
            batch = pack([self.documents[number] for number in numbers], Position(0, 0))
            yield batch, [self.domains[number] for number in numbers]


@torch.no_grad()
def validate(trainee: Trainee, heldout: HeldOut, step: int) -> Validation:
    """Measure the draft as it is after `step` updates; nothing of it, and no random state, is changed.

    All processes take all batches: they hold parts of one draft, and each has to know the result.
    """
    began, device = time.monotonic(), trainee.world.device
    steps, names = trainee.config.ttt_steps, sorted(set(heldout.domains))
    totals_S = heldout.totals_S.to(device)
    loss, losses_S = 0.0, torch.zeros(steps, dtype=torch.float64)
    counts_DKSC = torch.zeros(len(names), len(Kind), steps, COUNTS, dtype=torch.int64)
    for packed, domains in heldout.batches():
        batch = packed.to(device)
        targets = find_targets(batch, steps)
        total, batch_losses_S, hits_SP = trainee.engine(batch, targets, totals_S)
        loss += total.item()
        losses_S += batch_losses_S.cpu()
        domain_B = torch.tensor([names.index(domain) for domain in domains], device=device)
        counts_DKSC += slot_counts(batch, targets, hits_SP, domain_B, len(names)).cpu()
    of_kind_KSC = counts_DKSC.sum(0)
    kinds = [kind for kind in Kind if of_kind_KSC[kind, 0, 1] and kind != Kind.NONE]
    return Validation(
        step=step,
        seconds=time.monotonic() - began,
        loss=loss,
        losses=losses_S.tolist(),
        whole=acceptance_of(counts_DKSC.sum((0, 1))),
        by_domain={name: acceptance_of(counts_DKSC[at].sum(0)) for at, name in enumerate(names)},
        by_kind={kind.name.lower(): acceptance_of(of_kind_KSC[kind]) for kind in kinds},
    )


def slot_counts(
    batch: Batch, targets: Targets, hits_SP: torch.Tensor, domain_B: torch.Tensor, domains: int
) -> torch.Tensor:
    """`[D, K, S, C]` of a batch whose documents are of `domain_B`.

    A slot just before a reply, whose first token isn't supervised but a later one is, counts as `Kind.NONE`.
    """
    hits_SN, valid_SN = (of_slot_SN.long() for of_slot_SN in by_slot(hits_SP, targets))
    counted_CSN = torch.stack((hits_SN.cumprod(0), valid_SN.cumprod(0), hits_SN, valid_SN))
    ends_B = torch.tensor(batch.starts[1:], device=hits_SP.device)
    document_N = torch.bucketize(targets.slots_N, ends_B, right=True)
    group_N = domain_B[document_N] * len(Kind) + batch.next_kind_T[targets.slots_N + 1]
    counts_GSC = counted_CSN.new_zeros(domains * len(Kind), len(hits_SP), COUNTS)
    counts_GSC.index_add_(0, group_N, counted_CSN.permute(2, 1, 0))
    return counts_GSC.view(domains, len(Kind), *counts_GSC.shape[1:])


def acceptance_of(counts_SC: torch.Tensor) -> Acceptance:
    """What the counts of some slots `[S, C]` say."""
    hits_S, slots_S, right_S, targets_S = counts_SC.double().unbind(1)
    return Acceptance(
        slots=int(slots_S[0]),
        length=predicted_acceptance(hits_S, slots_S),
        accuracy=(right_S / targets_S.clamp(min=1)).tolist(),
    )


def best_of(validations: Sequence[Validation]) -> Validation | None:
    """The first with the greatest acceptance length."""
    return max(validations, key=lambda one: one.whole.length, default=None)


def since_best(validations: Sequence[Validation]) -> int:
    """How many in a row, up to the last, brought no new best."""
    best = best_of(validations)
    return 0 if best is None else len(validations) - 1 - validations.index(best)

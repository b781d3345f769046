"""How good the draft is on replies that it isn't trained on.

The figure to choose a checkpoint by is the predicted acceptance length: it goes on rising and falls again
while the loss tells little. It is counted over slots as serving drafts: a slot's k-th token counts when its
first k are all the verifier's most likely ones. A slot belongs to the domain of its sample and to the kind of
span in which its first token lies.

The verifier's logits are computed anew each time: those of all held-out targets would be gigabytes.

Axes: D domains, K kinds, S steps, P targets, N slots, C the four counts.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from eagle.batches import (
    SHAPE_STEP,
    Batch,
    Document,
    Kind,
    Targets,
    find_targets,
    outline_of,
    pack,
    plan_epoch,
)
from eagle.feed import AHEAD, Rank, ahead, read_documents
from eagle.loss import by_slot, predicted_acceptance
from eagle.parallel import let_go
from eagle.step import Trainee, blank_of
from eagle.training_log import Line
from synthgen.corpus.config import RunConfig
from synthgen.corpus.records import Record
from synthgen.corpus.samples import read_samples
from synthgen.errors import TrainingError

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
    places: Sequence[str]
    """What an error says of each document."""
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
            outline_of(d.sample_id, d.next_kind_T, train.span_weights, train.ttt_steps, d.states.file)
            for d in documents
        ]
        lengths = [outline.num_tokens for outline in outlines]
        weights = torch.tensor([outline.target_weights for outline in outlines], dtype=torch.float64)
        return cls(
            documents=documents,
            domains=[domain_of[d.sample_id] for d in documents],
            places=[outline.place for outline in outlines],
            plan=plan_epoch(lengths, train.batch_tokens, config.seed, 0),
            totals_S=weights.sum(0).float(),
        )

    def batches(self, rank: Rank) -> Iterator[tuple[int, Batch, list[str]]]:
        """A process's batches: the number of each, and the domains of its documents."""
        for at in range(rank.number, len(self.plan), rank.world):
            documents = [self.documents[number] for number in self.plan[at]]
            yield at, pack(documents, SHAPE_STEP), [self.domains[number] for number in self.plan[at]]


@torch.no_grad()
def validate(trainee: Trainee, heldout: HeldOut, step: int) -> Validation:
    """Measure the draft as it is after `step` updates; nothing of it, and no random state, is changed.

    Each process takes some of the batches, and all know the result. Raises TrainingError on all of them when
    the loss isn't finite.
    """
    began, world = time.monotonic(), trainee.world
    steps, names = trainee.config.ttt_steps, sorted(set(heldout.domains))
    totals_S = heldout.totals_S.to(world.device)
    loss_B = torch.zeros(len(heldout.plan), dtype=torch.float64, device=world.device)
    losses_S = torch.zeros(steps, dtype=torch.float64, device=world.device)
    counts_DKSC = torch.zeros(len(names), len(Kind), steps, COUNTS, dtype=torch.int64, device=world.device)
    with contextlib.closing(ahead(heldout.batches(world.rank), AHEAD)) as batches:
        for at, packed, domains in batches:
            batch = packed.to(world.device)
            targets = find_targets(batch, steps, SHAPE_STEP)
            loss_B[at], batch_losses_S, hits_SP = trainee.engine(batch, targets, totals_S)
            losses_S += batch_losses_S
            domain_B = torch.tensor([names.index(domain) for domain in domains], device=world.device)
            counts_DKSC += slot_counts(batch, targets, hits_SP, domain_B, len(names))
    if world.rank.number >= len(heldout.plan):  # the others wait for its part of the weights
        blank, endless_S = blank_of(trainee)
        trainee.engine(blank, find_targets(blank, steps), endless_S)
    let_go(trainee.engine)

    numbers = iter(world.sums([*loss_B.tolist(), *losses_S.tolist(), *counts_DKSC.flatten().tolist()]))
    batch_losses = list(itertools.islice(numbers, len(heldout.plan)))
    _require_finite(batch_losses, heldout, step)
    losses = list(itertools.islice(numbers, steps))
    counts_DKSC = torch.tensor(list(numbers), dtype=torch.int64).view(counts_DKSC.shape)
    of_kind_KSC = counts_DKSC.sum(0)
    kinds = [kind for kind in Kind if of_kind_KSC[kind, 0, 1] and kind != Kind.NONE]
    return Validation(
        step=step,
        seconds=time.monotonic() - began,
        loss=sum(batch_losses),
        losses=losses,
        whole=acceptance_of(counts_DKSC.sum((0, 1))),
        by_domain={name: acceptance_of(counts_DKSC[at].sum(0)) for at, name in enumerate(names)},
        by_kind={kind.name.lower(): acceptance_of(of_kind_KSC[kind]) for kind in kinds},
    )


def _require_finite(losses: Sequence[float], heldout: HeldOut, step: int) -> None:
    bad = [at for at, loss in enumerate(losses) if not math.isfinite(loss)]
    if not bad:
        return
    samples = ", ".join(heldout.places[number] for number in heldout.plan[bad[0]])
    raise TrainingError(
        f"validation after step {step}: loss {losses[bad[0]]} in {len(bad)} of {len(losses)} batches, "
        f"the first of samples {samples}. It wasn't logged: check their states, or lower train.learning_rate"
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
    document_N = document_N.clamp(max=len(domain_B) - 1)  # nothing counts in the blank document at the end
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

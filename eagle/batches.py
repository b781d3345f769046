"""Samples with their states, packed into batches without padding, aligned as serving aligns them.

Draft slot t is given the aux states of token t and the embedding of token t + 1, and predicts token
t + 2; its target is the verifier's distribution at t + 1. Step s of the training-time test keeps the
slot and moves on by s tokens. So a *target* is a token p whose successor is supervised, and the slot
that predicts it at step s is p - 1 - s, if that is still in p's document. (EAGLE and SpecForge mask by
token t at step 0 and thereby miss the first slots of each reply.)

Axes: T tokens of a batch, N active slots, P targets, S steps, H hidden size.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from eagle.attention import Starts
from eagle.draft import positions_of
from eagle.states import SampleStates
from synthgen.corpus.draft_sections import SpanWeights
from synthgen.corpus.samples import Sample, SpanKind
from synthgen.errors import ArtifactError


class Kind(enum.IntEnum):
    """What the token after this one is, as batches hold it."""

    NONE = 0
    """Not supervised: a prompt's, or past the end."""
    THINKING = 1
    RESPONSE = 2
    TOOL = 3


KIND_OF = {
    SpanKind.THINKING: Kind.THINKING,
    SpanKind.RESPONSE: Kind.RESPONSE,
    SpanKind.TOOL: Kind.TOOL,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One sample, cut to the longest length that is trained on.

    next_kind_T: `[T]` uint8, the `Kind` of the token after each; the last one's successor may lie past
    the states, since the last sampled token of a reply has none.
    """

    states: SampleStates
    next_kind_T: torch.Tensor

    @property
    def sample_id(self) -> str:
        """The sample's id."""
        return self.states.sample_id

    @property
    def token_ids_T(self) -> torch.Tensor:
        """Its tokens, `[T]`."""
        return self.states.token_ids_T

    @property
    def targets_P(self) -> torch.Tensor:
        """The tokens with a supervised successor, but never the first: no slot predicts it."""
        return targets_of(self.next_kind_T)


def targets_of(next_kind_T: torch.Tensor) -> torch.Tensor:
    """The targets of a document whose tokens are followed by `next_kind_T`: never its first token."""
    return next_kind_T.nonzero().flatten()[int(next_kind_T[0] != Kind.NONE) :]


@dataclass(frozen=True, slots=True)
class Position:
    """Where a batch stands in the data: its epoch and its number there, both from 0."""

    epoch: int
    index: int


SHAPE_STEP = 32
"""Tokens and slots of a batch are filled up to a multiple of it, so that few shapes occur: a CPU's
matrix library builds a kernel for each new one, which takes several times as long as to run it."""
TENSORS = ("token_ids_T", "aux_T3H", "final_PH", "next_kind_T")
"""Of a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Documents end to end, the last one perhaps a blank one (see `pack`).

    token_ids_T `[T]`, aux_T3H `[T, 3, H]`, next_kind_T `[T]`; final_PH `[P, H]`, of the targets, before the
    verifier's final norm; `starts` has each document's first token, and T at the end.
    """

    token_ids_T: torch.Tensor
    aux_T3H: torch.Tensor
    final_PH: torch.Tensor
    next_kind_T: torch.Tensor
    starts: Starts

    def to(self, device: torch.device) -> Batch:
        """The same batch on `device`; a pinned one is copied while the CPU goes on."""
        return replace(self, **{name: getattr(self, name).to(device, non_blocking=True) for name in TENSORS})

    def pinned(self) -> Batch:
        """The same batch in memory that a GPU copies from by itself."""
        return replace(self, **{name: getattr(self, name).pin_memory() for name in TENSORS})


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """Who predicts what.

    slots_N: `[N]` rising token index of each slot that predicts a target at any step, and of some
        that predict none, where they are filled up.
    targets_P: `[P]` rising token index of each target.
    row_SP: `[S, P]` the place in slots_N of the slot that predicts target p at step s.
    valid_SP: `[S, P]` false where that slot would lie before the document; row_SP is then meaningless.
    """

    slots_N: torch.Tensor
    targets_P: torch.Tensor
    row_SP: torch.Tensor
    valid_SP: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """What is known of a document before its states are there.

    target_weights: the summed weights of the targets that a slot predicts at each step.
    """

    sample_id: str
    num_tokens: int
    target_weights: tuple[float, ...]
    file: str = ""
    """The shard that has its states."""

    @property
    def place(self) -> str:
        """What an error says of it."""
        return f"{self.sample_id} in {self.file}" if self.file else self.sample_id


def kind_weights(weights: SpanWeights) -> torch.Tensor:
    """`[4]` float32: what a target weighs in the loss, by its `Kind`."""
    return torch.tensor([0.0, weights.thinking, weights.response, weights.tool])


def outline_of(
    sample_id: str, next_kind_T: torch.Tensor, weights: SpanWeights, steps: int, file: str = ""
) -> Outline:
    """The outline of a document whose tokens are followed by `next_kind_T`, with states in `file`.

    Target p is predicted at step s when there is a slot p - 1 - s: when p > s.
    """
    weight_T = kind_weights(weights)[next_kind_T.long()].double()
    totals = tuple(float(weight_T[step + 1 :].sum()) for step in range(steps))
    return Outline(sample_id=sample_id, num_tokens=len(next_kind_T), target_weights=totals, file=file)


def next_kinds(sample: Sample, tokens: int) -> torch.Tensor:
    """`[tokens]` uint8: the `Kind` of the token after each of a sample's first `tokens` tokens."""
    kinds = torch.zeros(len(sample.token_ids) + 1, dtype=torch.uint8)
    for span in sample.spans:
        kinds[span.start : span.end] = KIND_OF[span.kind]
    return kinds[1 : tokens + 1]


def join(states: SampleStates, sample: Sample, max_seq_tokens: int) -> Document:
    """Lay a sample's spans over its states, cut to `max_seq_tokens`.

    Raises ArtifactError when the states are not of these tokens, or lack a final state that is wanted.
    """
    length = len(states.token_ids_T)
    found, expected = states.token_ids_T.tolist(), list(sample.token_ids[:length])
    if found != expected:
        at = next((i for i, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b), len(expected))
        raise ArtifactError(
            f"sample {sample.id}: its states were taken of other tokens: {length} states, "
            f"{len(sample.token_ids)} tokens in the corpus, first difference at token {at}: "
            f"{found[at : at + 3]} in the states, {expected[at : at + 3]} in the corpus. "
            f"Remove the states and extract them again"
        )
    length = min(length, max_seq_tokens)
    document = Document(states=states.cut(length), next_kind_T=next_kinds(sample, length))
    missing = document.targets_P[~torch.isin(document.targets_P, document.states.final_at_F)]
    if len(missing):
        raise ArtifactError(
            f"sample {sample.id}: the final state of token {int(missing[0])} wasn't kept, but the token "
            f"after it is supervised now: remove the states and extract them again"
        )
    return document


def has_targets(document: Document) -> bool:
    """Whether any slot of the document has something to learn: token 0 is never a target."""
    return len(document.targets_P) > 0


def plan_epoch(lengths: list[int], batch_tokens: int, seed: int, epoch: int) -> list[list[int]]:
    """Which documents go into each batch of an epoch: a seeded permutation, cut where a batch is full.

    Every document is in exactly one batch, and no batch has more than `batch_tokens` tokens as long as
    no document has.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    plan: list[list[int]] = []
    room = 0
    for number in torch.randperm(len(lengths), generator=generator).tolist():
        if lengths[number] > room or not plan:
            plan.append([])
            room = batch_tokens
        plan[-1].append(number)
        room -= lengths[number]
    return plan


def pack(documents: list[Document], multiple: int = 1) -> Batch:
    """Lay documents end to end, and after them a blank one without targets, up to a multiple of tokens."""
    lengths = [len(d.token_ids_T) for d in documents]
    blank = -sum(lengths) % multiple
    aux_D = [d.states.aux.read() for d in documents]
    return Batch(
        token_ids_T=_joined([d.token_ids_T for d in documents], blank),
        aux_T3H=_joined(aux_D, blank),
        final_PH=torch.cat([_final_PH(d) for d in documents]),
        next_kind_T=_joined([d.next_kind_T for d in documents], blank),
        starts=tuple(itertools.accumulate([*lengths, blank] if blank else lengths, initial=0)),
    )


def _joined(tensors: list[torch.Tensor], blank: int) -> torch.Tensor:
    return torch.cat([*tensors, tensors[0].new_zeros((blank, *tensors[0].shape[1:]))])


def blank_batch(tokens: int, hidden_size: int) -> Batch:
    """One document of `tokens` replies to nothing: its shapes are a batch's, its states are zero."""
    return Batch(
        token_ids_T=torch.zeros(tokens, dtype=torch.long),
        aux_T3H=torch.zeros(tokens, 3, hidden_size),
        final_PH=torch.zeros(tokens - 1, hidden_size),
        next_kind_T=torch.full((tokens,), Kind.RESPONSE, dtype=torch.uint8),
        starts=(0, tokens),
    )


def _final_PH(document: Document) -> torch.Tensor:
    """The final states of the targets; `join` has seen that they are there."""
    kept_FH, at_F = document.states.final.read(), document.states.final_at_F
    return kept_FH[torch.searchsorted(at_F, document.targets_P)]


def find_targets(batch: Batch, steps: int, multiple: int = 1) -> Targets:
    """The targets of a batch and the slots that predict them at each of `steps` steps.

    Where it can be, slots are filled up to a multiple of as many.
    """
    within_T = positions_of(batch.starts, batch.token_ids_T.device)
    targets_P = ((batch.next_kind_T != Kind.NONE) & (within_T > 0)).nonzero().flatten()
    back_S1 = torch.arange(1, steps + 1, device=targets_P.device)[:, None]
    slot_SP = targets_P - back_S1
    valid_SP = within_T[targets_P] >= back_S1
    slots_N = _filled_up(slot_SP[valid_SP], len(within_T), multiple)
    row_SP = torch.searchsorted(slots_N, slot_SP).clamp(max=max(len(slots_N) - 1, 0))
    return Targets(slots_N=slots_N, targets_P=targets_P, row_SP=row_SP, valid_SP=valid_SP)


def _filled_up(slots: torch.Tensor, tokens: int, multiple: int) -> torch.Tensor:
    """Each of `slots` once, rising, and the first other tokens, though never the last, up to a multiple."""
    is_slot_T = torch.zeros(tokens, dtype=torch.bool, device=slots.device)
    is_slot_T[slots] = True
    missing = -int(is_slot_T.sum()) % multiple
    is_slot_T[(~is_slot_T[:-1]).nonzero().flatten()[:missing]] = True
    return is_slot_T.nonzero().flatten()


def join_all(
    states: Iterable[SampleStates], samples: dict[str, Sample], max_seq_tokens: int
) -> list[Document]:
    """Every sample that has states and something to learn; states of samples that are gone are passed over.

    Raises ArtifactError when nothing is left.
    """
    documents = [
        join(one, samples[one.sample_id], max_seq_tokens) for one in states if one.sample_id in samples
    ]
    if not documents:
        raise ArtifactError(
            "none of the states is of a sample of this dataset: the two are of different runs; remove the "
            "states and extract them again"
        )
    kept = [d for d in documents if has_targets(d)]
    if not kept:
        raise ArtifactError(
            f"none of the {len(documents)} samples with states has a supervised token within its first "
            f"{max_seq_tokens}: raise train.max_seq_tokens, or extract states of more of the corpus"
        )
    return kept

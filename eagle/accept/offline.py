"""The draft on hidden states of the verifier: what a server that drafts with it would accept.

A slot's run is how many of its first drafted tokens are the verifier's most likely ones; the draft is given
the text's own tokens on the way, as in training. Serving doesn't begin a draft at each slot but behind what
the last one gave, so the like of the live figure is a walk: accept a run, take the verifier's own token, go
on behind it. Every slot alike is what training's validation counts.

The walk is exact where the text is the verifier's greedy one. On sampled text it is what serving would accept
if it were given that text.

Axes: S steps, N slots, T tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

from eagle.accept.report import Offline
from eagle.accept.steps import PromptSteps, StepFigures, breakdown_of, figures_of
from eagle.batches import Document, Kind, find_targets, pack
from eagle.draft import Draft, empty_draft
from eagle.draft_files import known_tokens, read_draft
from eagle.draft_fit import fit_of
from eagle.loss import by_slot, predicted_acceptance, prefix_counts, verifier_head
from eagle.parallel import device_of
from eagle.step import Objective
from eagle.taps import TapPoints
from eagle.tensors import DTYPES
from eagle.verifier import weights_of
from eagle.vocab import VocabMap
from eagle.walk import verify_steps
from synthgen.corpus.config import RunConfig
from synthgen.corpus.verifier_files import shape_of
from synthgen.errors import ArtifactError

OFFLINE = "offline"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What the draft gets right in one document.

    runs: of each token as a slot, how many of the first drafted tokens are right. kinds: of each token, one
    more than there are slots, since the last state speaks of the next token.
    hits, slots: how often the first 1, 2, … drafted tokens are all right, and of how many slots.
    """

    sample_id: str
    domain: str
    runs: tuple[int, ...]
    kinds: tuple[int, ...]
    hits: tuple[int, ...]
    slots: tuple[int, ...]

    def walk(self, num_draft_tokens: int) -> Iterator[tuple[int, int]]:
        """The first token and the accepted drafted tokens of each verify step that serving would take."""
        for start, end in _replies(self.kinds):
            yield from verify_steps(self.runs, start, end, num_draft_tokens)

    def steps(self, num_draft_tokens: int) -> PromptSteps:
        """The same as a record."""
        walked = list(self.walk(num_draft_tokens))
        names = [Kind(self.kinds[at]).name.lower() for at, _ in walked]
        return PromptSteps(
            id=self.sample_id,
            domain=self.domain,
            draft=OFFLINE,
            num_draft_tokens=num_draft_tokens,
            accepted=tuple(accepted for _, accepted in walked),
            steps_by_span={name: names.count(name) for name in dict.fromkeys(names)},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """A draft that is tried at each supervised slot of documents, with up to `steps` draft tokens."""

    objective: Objective
    device: torch.device
    steps: int

    @classmethod
    def of(cls, config: RunConfig, directory: Path, steps: int) -> Judge:
        """The draft as a server loads it. Raises ArtifactError when it isn't one for this run's states."""
        weights, device = weights_of(config.verifier), device_of(config.train)
        draft, vocab = load_exported(config, directory)
        dtype = DTYPES[config.train.compute_dtype]
        head = verifier_head(weights, shape_of(config.verifier).rms_norm_eps, vocab, dtype, device)
        train = msgspec.structs.replace(config.train, ttt_steps=steps)
        return cls(objective=Objective(draft.to(device), head, train), device=device, steps=steps)

    @torch.no_grad()
    def judge(self, document: Document, domain: str) -> Judged:
        """Draft at each slot of a document."""
        batch = pack([document]).to(self.device)
        targets = find_targets(batch, self.steps)
        endless_S = torch.full((self.steps,), torch.inf, device=self.device)  # no loss is wanted
        _, _, hits_SP = self.objective(batch, targets, endless_S)
        hits_SN, _ = by_slot(hits_SP, targets)
        runs_T = torch.zeros(len(batch.token_ids_T), dtype=torch.int64, device=self.device)
        runs_T[targets.slots_N] = hits_SN.int().cumprod(0).sum(0)
        hits_S, slots_S = prefix_counts(hits_SP, targets)
        return Judged(
            sample_id=document.sample_id,
            domain=domain,
            runs=tuple(runs_T.tolist()),
            kinds=(int(Kind.NONE), *document.next_kind_T.tolist()),
            hits=tuple(hits_S.tolist()),
            slots=tuple(slots_S.tolist()),
        )


def load_exported(config: RunConfig, directory: Path) -> tuple[Draft, VocabMap]:
    """An exported draft with its vocabulary, float32 on the CPU.

    Raises ArtifactError when it isn't of the run's `draft` section, or reads other layers than its states.
    """
    shape, files = shape_of(config.verifier), read_draft(str(directory))
    fit = fit_of(files, config.draft, TapPoints(config.extract.aux_layers, shape.num_layers), shape)
    if fit.problems:
        lines = "".join(f"\n  {line}" for line in fit.problems)
        raise ArtifactError(f"{directory} isn't the draft that this run describes:{lines}")
    ids_K = known_tokens(files, shape.vocab_size)
    t2d_V = torch.zeros(shape.vocab_size, dtype=torch.bool)
    t2d_V[ids_K] = True
    draft = empty_draft(config.draft, shape.hidden_size, len(ids_K))
    with torch.no_grad():
        for name, weight in draft.named_parameters():
            weight.copy_(files.tensor(name))
    return draft, VocabMap(t2d_V=t2d_V, d2t_K=ids_K - torch.arange(len(ids_K)))


def offline_of(judged: Sequence[Judged], num_draft_tokens: int, seed: int) -> Offline | None:
    """All figures of a draft on some documents; None when there is no step in them."""
    walked = breakdown_of([one.steps(num_draft_tokens) for one in judged], num_draft_tokens, seed)
    if walked is None:
        return None
    hits_S, slots_S = (
        torch.tensor([getattr(one, name) for one in judged])[:, :num_draft_tokens].sum(0).double()
        for name in ("hits", "slots")
    )
    return Offline(
        walked=walked,
        every_slot=predicted_acceptance(hits_S, slots_S),
        by_draft_tokens=tuple(_figures(judged, tokens) for tokens in range(1, len(judged[0].hits) + 1)),
    )


def _figures(judged: Sequence[Judged], num_draft_tokens: int) -> StepFigures:
    accepted = (count for one in judged for _, count in one.walk(num_draft_tokens))
    figures = figures_of(accepted, num_draft_tokens)
    assert figures is not None
    return figures


def _replies(kinds: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First and end of each stretch of supervised tokens."""
    places = itertools.groupby(range(len(kinds)), key=lambda at: kinds[at] != Kind.NONE)
    for supervised, stretch in places:
        if supervised:
            first, *_ = whole = list(stretch)
            yield first, whole[-1] + 1

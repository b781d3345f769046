"""A previous draft as the beginning of training: `train.init_from`.

Everything is checked from headers and configs before anything is trained or written, one line for each
difference. All weights are taken over, as float32 masters; the optimizer starts anew. Rows of the head go
by token: a token that the previous draft doesn't know gets the row that its verifier's row suggests.

Axes: V the verifier's vocabulary, K a draft's, H hidden size.
"""

from __future__ import annotations

import torch

from eagle.draft import Draft, build_draft, empty_draft
from eagle.draft_files import EMBEDDING, HEAD, DraftFiles, known_tokens, read_draft
from eagle.draft_fit import FLOATS, fit_of
from eagle.taps import TapPoints
from eagle.tensors import all_finite
from eagle.verifier import VerifierWeights
from eagle.vocab import VocabMap
from synthgen.corpus.config import RunConfig
from synthgen.corpus.console import console, waiting
from synthgen.corpus.manifest import Manifest, read_manifest
from synthgen.corpus.verifier_files import shape_of
from synthgen.errors import ArtifactError

INPUT = "init_from"


def init_inputs(config: RunConfig, *, begun: Manifest | None = None) -> dict[str, str]:
    """The sha256 of the previous draft's weights as an input of the run's; nothing without one.

    `begun` is the manifest of a training that has a checkpoint: it remembers, and no file is needed. Raises
    ArtifactError with a line for each difference when the draft can't be the beginning of this run's.
    """
    if begun is not None:
        return {name: value for name, value in begun.inputs.items() if name == INPUT}
    if config.train.init_from is None:
        return {}
    with waiting("checking the draft to begin with"):
        return {INPUT: _require_usable(read_draft(config.train.init_from), config)}


def first_draft(config: RunConfig, verifier: VerifierWeights, vocab: VocabMap, *, fresh: bool) -> Draft:
    """The run's draft before its first step. Unless `fresh` its weights are yet to be written, by a
    checkpoint's, and a previous draft isn't read."""
    if not fresh:
        return empty_draft(config.draft, len(verifier.norm_H), vocab.size)
    draft = build_draft(config.draft, verifier, vocab, config.seed)
    if config.train.init_from is not None:
        _take_over(draft, read_draft(config.train.init_from), verifier, vocab)
    return draft


def moved_head(
    rows_KH: torch.Tensor, ids_K: torch.Tensor, verifier_VH: torch.Tensor, wanted_K: torch.Tensor
) -> tuple[torch.Tensor, int]:
    """The head's rows for the tokens `wanted_K`, float32, and how many were there among `ids_K`.

    A token that wasn't there begins as `a · w + b`, w its row in the verifier's head. The number a and the
    vector b `[H]` are the best fit (least squares) to the rows that were there. So a head that is still the
    verifier's is gone on with exactly; one that was trained from it keeps its scale and its shift; and for
    one that has nothing to do with it a is near 0, so that the token begins as likely as the mean of all.
    """
    place_V = torch.full((len(verifier_VH),), -1)
    place_V[ids_K] = torch.arange(len(ids_K))
    places_K = place_V[wanted_K]
    known_K = places_K >= 0
    head_KH = rows_KH.new_empty((len(wanted_K), rows_KH.shape[1]))
    head_KH[known_K] = rows_KH[places_K[known_K]]
    if not known_K.all():
        scale, shift_H = _fitted(rows_KH, verifier_VH[ids_K].float())
        head_KH[~known_K] = scale * verifier_VH[wanted_K[~known_K]].float() + shift_H
    return head_KH, int(known_K.sum())


def _fitted(rows_KH: torch.Tensor, own_KH: torch.Tensor) -> tuple[float, torch.Tensor]:
    """a and b of the least squares |rows - (a · own + b)|²; exactly 1 and 0 when the two are the same."""
    if torch.equal(rows_KH.bfloat16(), own_KH.bfloat16()):
        return 1.0, torch.zeros_like(rows_KH[0])
    mean_H, own_mean_H = rows_KH.mean(0), own_KH.mean(0)
    around_KH = own_KH - own_mean_H
    spread = around_KH.square().sum().item()
    scale = (around_KH * (rows_KH - mean_H)).sum().item() / spread if spread > 0 else 0.0
    return scale, mean_H - scale * own_mean_H


def _require_usable(previous: DraftFiles, config: RunConfig) -> str:
    """The sha256 of a draft that this run can begin with."""
    shape = shape_of(config.verifier)
    taps = TapPoints(config.extract.aux_layers, shape.num_layers)
    fit = fit_of(previous, config.draft, taps, shape)
    if not fit.problems:
        fit.problems.extend(_not_finite(previous))
    if fit.problems:
        lines = "".join(f"\n  {line}" for line in fit.problems)
        raise ArtifactError(f"train.init_from {previous.path} is no beginning for this run's draft:{lines}")
    known_tokens(previous, shape.vocab_size)
    for note in fit.notes:
        console.print(f"init_from: {note}")
    found, trained = previous.sha256(), read_manifest(config.checkpoints_path)
    begun = trained.inputs.get(INPUT, found) if trained is not None else found
    if found != begun:
        raise ArtifactError(
            f"train.init_from {previous.path} has sha256 {found}, the training in {config.checkpoints_path} "
            f"began with {begun}: put that draft back, or remove the training to begin anew"
        )
    return found


def _not_finite(previous: DraftFiles) -> list[str]:
    """speculators, for one, fills what it never loaded with NaN."""
    return [
        f"tensor `{name}` holds NaN or infinity: it was never loaded, or training went wrong"
        for name, place in previous.places.items()
        if place.dtype in FLOATS and name != EMBEDDING and not all_finite(previous.tensor(name))
    ]


def _take_over(draft: Draft, previous: DraftFiles, verifier: VerifierWeights, vocab: VocabMap) -> None:
    ids_K = known_tokens(previous, len(verifier.head_VH))
    head_KH, known = moved_head(previous.tensor(HEAD).float(), ids_K, verifier.head_VH, vocab.target_ids_K)
    with torch.no_grad():
        for name, weight in draft.named_parameters():
            weight.copy_(head_KH if name == HEAD else previous.tensor(name))
    console.print(
        f"init_from: {previous.path}, {known:,} of the head's {vocab.size:,} rows its own, "
        f"{vocab.size - known:,} made from the verifier's"
    )
    if _other_embedding(previous, verifier):
        console.print(
            "init_from: it has an embedding of its own, which is left out: drafts share the verifier's"
        )


def _other_embedding(previous: DraftFiles, verifier: VerifierWeights) -> bool:
    if EMBEDDING not in previous.places:
        return False
    own_VH = previous.tensor(EMBEDDING)
    return own_VH.shape != verifier.embedding_VH.shape or not torch.equal(
        own_VH.bfloat16(), verifier.embedding_VH.bfloat16()
    )

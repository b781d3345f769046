"""The draft's vocabulary: the verifier's tokens that the supervised text uses most.

Axes: V the verifier's vocabulary, K the draft's.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from eagle.draft_files import DraftFiles, known_tokens, read_draft
from eagle.tensors import save_tensors
from synthgen.corpus.config import RunConfig
from synthgen.corpus.files import sha256_of, written_aside
from synthgen.corpus.manifest import (
    Manifest,
    digest_of,
    manifest_of,
    read_manifest,
    require_fit,
    require_manifest,
    write_manifest,
)
from synthgen.corpus.samples import Sample, SpanKind, read_samples
from synthgen.corpus.verifier_files import revision_of, shape_of
from synthgen.errors import ArtifactError, ConfigError

FILE_NAME = "vocab.safetensors"
FIRST_TARGET = 2
"""Slot 0 of a document predicts its token 2: the two tokens before are never a target."""


@dataclass(frozen=True, slots=True)
class VocabMap:
    """Which verifier tokens the draft knows.

    t2d_V: `[V]` bool, true where the draft knows the token.
    d2t_K: `[K]` int64, OFFSETS: draft id i is the verifier's token `d2t_K[i] + i`.
    """

    t2d_V: torch.Tensor
    d2t_K: torch.Tensor

    def __post_init__(self) -> None:
        for name, tensor, dtype in (("t2d", self.t2d_V, torch.bool), ("d2t", self.d2t_K, torch.int64)):
            if tensor.dtype is not dtype or tensor.ndim != 1:
                raise ArtifactError(
                    f"{name} is {tensor.dtype} {list(tensor.shape)}; expected {dtype}, one axis"
                )
        if not torch.equal(self.target_ids_K, self.t2d_V.nonzero().flatten()):
            raise ArtifactError(
                f"d2t ({len(self.d2t_K)} offsets) doesn't list the {int(self.t2d_V.sum())} tokens that t2d "
                f"marks, in rising order: d2t[i] + i must be the verifier's id"
            )

    @property
    def target_ids_K(self) -> torch.Tensor:
        """`[K]` int64, rising: the verifier's id of each draft id."""
        return self.d2t_K + torch.arange(len(self.d2t_K))

    @property
    def size(self) -> int:
        """K."""
        return len(self.d2t_K)


def count_supervised(samples: Iterable[Sample], vocab_size: int) -> torch.Tensor:
    """`[V]` int64: how often each token is a supervised target.

    Raises ArtifactError naming a sample whose token ids don't fit the verifier's vocabulary.
    """
    counts_V = torch.zeros(vocab_size, dtype=torch.int64)
    for sample in samples:
        if max(sample.token_ids) >= vocab_size:
            raise ArtifactError(
                f"sample {sample.id} has token id {max(sample.token_ids)}, the verifier's vocabulary has "
                f"{vocab_size}: the corpus is another model's; set verifier.model to the one that wrote it"
            )
        for span in sample.spans:
            ids = torch.tensor(sample.token_ids[max(span.start, FIRST_TARGET) : span.end], dtype=torch.int64)
            counts_V += torch.bincount(ids, minlength=vocab_size)
    return counts_V


def build_vocab(counts_V: torch.Tensor, size: int) -> VocabMap:
    """The `size` most frequent tokens; equal counts go by id, and so do tokens that were never seen.

    Raises ConfigError when `size` is more than the verifier has.
    """
    if size > len(counts_V):
        raise ConfigError(
            f"vocab.size {size} is more than the verifier's vocabulary of {len(counts_V)}: "
            f"set it to {len(counts_V)} or less"
        )
    order_V = torch.sort(counts_V, descending=True, stable=True).indices
    target_ids_K = order_V[:size].sort().values
    t2d_V = torch.zeros(len(counts_V), dtype=torch.bool)
    t2d_V[target_ids_K] = True
    return VocabMap(t2d_V, target_ids_K - torch.arange(size))


def vocab_of(draft: DraftFiles, size: int, vocab_size: int) -> VocabMap:
    """The vocabulary of another draft of a verifier with `vocab_size` tokens.

    Raises ConfigError when it hasn't `size` tokens, ArtifactError as `known_tokens` does.
    """
    ids_K = known_tokens(draft, vocab_size).sort().values
    if len(ids_K) != size:
        raise ConfigError(
            f"vocab.size is {size}, vocab.from_draft {draft.path} has {len(ids_K)} tokens: set it to that"
        )
    t2d_V = torch.zeros(vocab_size, dtype=torch.bool)
    t2d_V[ids_K] = True
    return VocabMap(t2d_V, ids_K - torch.arange(size))


def coverage(counts_V: torch.Tensor, vocab: VocabMap) -> float:
    """The share of supervised tokens that the draft can propose, 0 when there are none."""
    total = int(counts_V.sum())
    return int(counts_V[vocab.t2d_V].sum()) / total if total else 0.0


def save_vocab(vocab: VocabMap, directory: Path) -> None:
    """Write `t2d` and `d2t` as safetensors, complete or not at all."""
    with written_aside(directory / FILE_NAME) as aside:
        save_tensors({"t2d": vocab.t2d_V, "d2t": vocab.d2t_K}, aside)


def load_vocab(directory: Path) -> VocabMap:
    """Read back what `save_vocab` wrote. Raises ArtifactError when it isn't there or isn't that."""
    path = directory / FILE_NAME
    if not path.exists():
        raise ArtifactError(f"{path} is missing: run `eagle vocab CONFIG` first")
    try:
        tensors = load_file(path)
        return VocabMap(tensors["t2d"], tensors["d2t"])
    except (SafetensorError, KeyError, ArtifactError) as error:
        raise ArtifactError(f"{path}: damaged: {error}. Remove {directory} to make it anew") from error


def require_states(config: RunConfig) -> Manifest:
    """The manifest of the run's complete hidden states.

    Raises ArtifactError when they are missing, of another verifier, or of other layers.
    """
    states = require_manifest(config.states_path, "eagle extract CONFIG")
    layers = [*config.extract.aux_layers, shape_of(config.verifier).num_layers]
    wanted = {
        "verifier": {"model": config.verifier.model, "revision": revision_of(config.verifier)},
        "taps": states.settings["taps"] | {"ids": layers},
        "max_seq_tokens": config.extract.max_seq_tokens,
    }
    dataset = require_manifest(config.dataset_path, "synthgen mix CONFIG")
    require_fit(
        config.states_path,
        states,
        settings=states.settings | wanted,
        inputs={"dataset": digest_of(dataset)},
        remedy="run `eagle extract CONFIG` to bring it up to the dataset",
    )
    return states


def dataset_inputs(config: RunConfig) -> dict[str, str]:
    """What the vocabulary is made from. Raises ArtifactError when it is missing."""
    return {"dataset": digest_of(require_manifest(config.dataset_path, "synthgen mix CONFIG"))}


def states_inputs(config: RunConfig) -> dict[str, str]:
    """What training is made from: the shards, or the dataset where states are streamed.

    Raises ArtifactError when that is missing or doesn't fit.
    """
    return dataset_inputs(config) if config.train.stream else {"states": digest_of(require_states(config))}


def vocab_settings(config: RunConfig) -> dict[str, Any]:
    """What the draft vocabulary depends on."""
    return {
        "size": config.vocab.size,
        "from_draft": config.vocab.from_draft,
        "verifier": config.verifier.model,
    }


def make_vocab(config: RunConfig) -> Manifest:
    """Choose the draft vocabulary from the dataset, or keep another draft's.

    A complete, fitting one is left as it is.
    """
    started = time.monotonic()
    settings = vocab_settings(config)
    inputs = dataset_inputs(config)
    found = read_manifest(config.vocab_path)
    if found is not None:
        require_fit(config.vocab_path, found, settings=settings, inputs=inputs)
        if found.complete:
            return found
    samples = read_samples(config.train_path, config.extract.max_seq_tokens)
    counts_V = count_supervised(samples, shape_of(config.verifier).vocab_size)
    if not counts_V.any():
        raise ArtifactError(
            f"{config.dataset_path}: none of the {len(samples)} samples has a supervised token: "
            f"generate traces first"
        )
    if config.vocab.from_draft is None:
        vocab = build_vocab(counts_V, config.vocab.size)
    else:
        vocab = vocab_of(read_draft(config.vocab.from_draft), config.vocab.size, len(counts_V))
    save_vocab(vocab, config.vocab_path)
    figures = {
        "size": vocab.size,
        "coverage": coverage(counts_V, vocab),
        "sha256": sha256_of(config.vocab_path / FILE_NAME),
        "supervised_tokens": int(counts_V.sum()),
        **{f"{kind}_tokens": _tokens_of(samples, kind) for kind in SpanKind},
    }
    manifest = manifest_of(
        "vocab", settings=settings, inputs=inputs, figures=figures, seconds=time.monotonic() - started
    )
    write_manifest(config.vocab_path, manifest)
    return manifest


def _tokens_of(samples: list[Sample], kind: SpanKind) -> int:
    return sum(span.end - span.start for s in samples for span in s.spans if span.kind is kind)

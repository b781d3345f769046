"""The three tensors of the verifier that training needs, read by key: the model is never loaded.

A Kimi-K2.5 checkpoint is 547 GB; embedding, final norm and head are 4.7 GB of it. Plain, sharded
(`*.index.json`) and nested layouts (`language_model.…` keys, `text_config`) are read alike. The tensors are
mapped from their files: they take memory only where they are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from eagle.hub_weights import checkpoint_directory
from eagle.verifier_tensors import INDEX_FILE, Place, locate
from synthgen.corpus.sections import VerifierConfig
from synthgen.corpus.verifier_config import read_shape
from synthgen.errors import ArtifactError


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierWeights:
    """Frozen weights of the verifier.

    embedding_VH: `[V, H]`; norm_H: `[H]`; head_VH: `[V, H]` (the embedding when the two are tied).
    """

    embedding_VH: torch.Tensor
    norm_H: torch.Tensor
    head_VH: torch.Tensor


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """The files of a checkpoint directory."""

    directory: Path

    def place(self, file: str) -> str:
        """As messages name it."""
        return str(self.directory / file)

    def index(self) -> Path | None:
        """The index; None when there is none."""
        path = self.directory / INDEX_FILE
        return path if path.exists() else None

    def read(self, file: str, start: int, end: int) -> bytes | None:
        """Bytes [start, end) of a file; None when it isn't there."""
        path = self.directory / file
        if not path.exists():
            return None
        with path.open("rb") as opened:
            opened.seek(start)
            return opened.read(end - start)


def weights_of(verifier: VerifierConfig) -> VerifierWeights:
    """The weights of the configured verifier, a local directory or a model of the hub.

    Raises what `read_weights` and `checkpoint_directory` raise.
    """
    return read_weights(checkpoint_directory(verifier))


def read_weights(model: Path) -> VerifierWeights:
    """Embedding, final norm and head of the checkpoint in `model`, in the dtype they are stored in.

    Raises ArtifactError when one is missing or quantised, or its shape doesn't fit `config.json`.
    """
    places = locate(LocalFiles(model), read_shape(model))
    embedding_VH = _mapped(model, places.embedding)
    return VerifierWeights(
        embedding_VH=embedding_VH,
        norm_H=_mapped(model, places.norm),
        head_VH=embedding_VH if places.head is None else _mapped(model, places.head),
    )


def _mapped(model: Path, place: Place) -> torch.Tensor:
    try:
        with safe_open(model / place.file, framework="pt") as tensors:
            tensor: torch.Tensor = tensors.get_tensor(place.name)
            return tensor
    except SafetensorError as error:
        raise ArtifactError(f"{model / place.file}: damaged: {error}: download it again") from error

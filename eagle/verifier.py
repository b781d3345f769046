"""The three tensors of the verifier that training needs, read by key: the model is never loaded.

A Kimi-K2.5 checkpoint is 547 GB; embedding, final norm and head are 4.7 GB of it. Plain, sharded
(`*.index.json`) and nested layouts (`language_model.…` keys, `text_config`) are read alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from safetensors import safe_open

from synthgen.corpus.verifier_config import read_shape
from synthgen.errors import ArtifactError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"
PREFIXES = ("", "language_model.")


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierWeights:
    """Frozen weights of the verifier.

    embedding_VH: `[V, H]`; norm_H: `[H]`; head_VH: `[V, H]` (the embedding when the two are tied).
    """

    embedding_VH: torch.Tensor
    norm_H: torch.Tensor
    head_VH: torch.Tensor


def read_weights(model: Path) -> VerifierWeights:
    """Embedding, final norm and head of the checkpoint in `model`, in the dtype they are stored in.

    Raises ArtifactError when one is missing or its shape doesn't fit `config.json`.
    """
    shape = read_shape(model)
    embedding_VH = _read(model, EMBEDDING)
    norm_H = _read(model, FINAL_NORM)
    if embedding_VH is None or norm_H is None:
        missing = EMBEDDING if embedding_VH is None else FINAL_NORM
        raise ArtifactError(f"{model}: no tensor `{missing}`, with or without the prefix `language_model.`")
    head_VH = _read(model, HEAD)
    weights = VerifierWeights(
        embedding_VH=embedding_VH, norm_H=norm_H, head_VH=embedding_VH if head_VH is None else head_VH
    )
    for name, tensor, expected in (
        (EMBEDDING, weights.embedding_VH, (shape.vocab_size, shape.hidden_size)),
        (FINAL_NORM, weights.norm_H, (shape.hidden_size,)),
        (HEAD, weights.head_VH, (shape.vocab_size, shape.hidden_size)),
    ):
        if tuple(tensor.shape) != expected:
            raise ArtifactError(f"{model}: `{name}` is {tuple(tensor.shape)}, config.json says {expected}")
    return weights


def _read(model: Path, key: str) -> torch.Tensor | None:
    for file, name in _places(model, key):
        with safe_open(file, framework="pt") as tensors:
            if name in tensors.keys():  # noqa: SIM118 -- safe_open is no mapping
                tensor: torch.Tensor = tensors.get_tensor(name)
                return tensor
    return None


def _places(model: Path, key: str) -> Iterator[tuple[Path, str]]:
    names = [prefix + key for prefix in PREFIXES]
    index = model / INDEX_FILE
    if index.exists():
        weight_map: dict[str, str] = msgspec.json.decode(index.read_bytes())["weight_map"]
        for name in names:
            if name in weight_map:
                yield model / Path(weight_map[name]).name, name
    elif (model / SINGLE_FILE).exists():
        for name in names:
            yield model / SINGLE_FILE, name
    else:
        raise ArtifactError(f"{model}: neither {SINGLE_FILE} nor {INDEX_FILE} is there")

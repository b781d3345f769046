"""The sizes of a verifier, from its `config.json` alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from synthgen.corpus.records import Record
from synthgen.errors import ArtifactError

CONFIG_FILE = "config.json"
TAPS = 4
"""States of a token: three aux states and the final one."""
SCALE_BYTES = 4
"""A float32 scale for each fp8 state."""


class VerifierShape(Record, frozen=True, kw_only=True):
    """The sizes of a verifier that a draft has to fit."""

    hidden_size: int
    vocab_size: int
    num_layers: int
    rms_norm_eps: float
    bos_token_id: int | None
    eos_token_id: int | None
    tie_word_embeddings: bool | None = None
    """Whether the head is the embedding; None when the config leaves it open."""
    architectures: tuple[str, ...] = ()
    latent_attention: bool = False
    """MLA, as DeepSeek's and Kimi's models have it."""


def state_bytes_per_token(hidden_size: int, states_dtype: str) -> int:
    """Bytes of one token's four states: 57,344 for Kimi-K2.5's hidden size of 7168 in bfloat16."""
    if states_dtype == "bfloat16":
        return TAPS * hidden_size * 2
    return TAPS * (hidden_size + SCALE_BYTES)


def read_shape(model: Path) -> VerifierShape:
    """The sizes in `config.json`, from `text_config` when it is nested.

    Raises ArtifactError naming the missing file or key.
    """
    path = model / CONFIG_FILE
    if not path.exists():
        raise ArtifactError(f"{path}: no such file; verifier.model must be a directory with a checkpoint")
    try:
        outer = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ArtifactError(f"{path}: not JSON: {error}") from error
    text: dict[str, Any] = outer.get("text_config") or outer
    missing = [k for k in ("hidden_size", "vocab_size", "num_hidden_layers") if k not in text]
    if missing:
        raise ArtifactError(f"{path}: has no {', '.join(missing)}: is it a causal language model's config?")
    return VerifierShape(
        hidden_size=text["hidden_size"],
        vocab_size=text["vocab_size"],
        num_layers=text["num_hidden_layers"],
        rms_norm_eps=text.get("rms_norm_eps", 1e-6),
        bos_token_id=_single(text.get("bos_token_id")),
        eos_token_id=_single(text.get("eos_token_id")),
        tie_word_embeddings=text.get("tie_word_embeddings", outer.get("tie_word_embeddings")),
        architectures=tuple(outer.get("architectures") or ()),
        latent_attention=text.get("kv_lora_rank") is not None,
    )


def _single(token_id: int | list[int] | None) -> int | None:
    return token_id[0] if isinstance(token_id, list) else token_id

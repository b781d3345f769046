"""The keys of a draft's config.json that are read here, and what each may be; others may be anything."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from synthgen.errors import ArtifactError

Size = Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
"""Of hidden states, the MLP, a vocabulary: those of published models are below 2^19."""
Heads = Annotated[int, msgspec.Meta(ge=1, le=1 << 12)]
"""How many they are, and how wide one is."""
Count = Annotated[int, msgspec.Meta(ge=1, lt=1 << 40)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
Factor = Annotated[float, msgspec.Meta(ge=1)]


class _Rope(msgspec.Struct, frozen=True, kw_only=True):
    rope_type: str | None = None
    type: str | None = None
    rope_theta: Positive | None = None
    factor: Factor | None = None
    original_max_position_embeddings: Count | None = None
    beta_fast: Positive | None = None
    beta_slow: Positive | None = None
    mscale: Positive | None = None
    mscale_all_dim: Positive | None = None
    attention_factor: Positive | None = None
    attn_factor: Positive | None = None
    partial_rotary_factor: float | None = None
    truncate: bool | None = None
    full_attention: _Rope | None = None


class _Eagle(msgspec.Struct, frozen=True, kw_only=True):
    eagle_aux_hidden_state_layer_ids: list[int] | None = None
    norm_before_fc: bool | None = None


class _Keys(msgspec.Struct, frozen=True, kw_only=True):
    hidden_size: Size | None = None
    intermediate_size: Size | None = None
    vocab_size: Size | None = None
    draft_vocab_size: Size | None = None
    num_attention_heads: Heads | None = None
    num_key_value_heads: Heads | None = None
    head_dim: Heads | None = None
    num_hidden_layers: Count | None = None
    max_position_embeddings: Count | None = None
    rms_norm_eps: Positive | None = None
    rope_theta: Positive | None = None
    rope_scaling: _Rope | None = None
    rope_parameters: _Rope | None = None
    hidden_act: str | None = None
    layer_types: list[str] | None = None
    norm_before_residual: bool | None = None
    norm_before_fc: bool | None = None
    fc_norm: bool | None = None
    norm_output: bool | None = None
    speculators_model_type: str | None = None
    eagle_aux_hidden_state_layer_ids: list[int] | None = None
    eagle_config: _Eagle | None = None
    transformer_layer_config: dict[str, Any] | None = None


def require_readable(config: dict[str, Any], place: str) -> None:
    """Raise ArtifactError, naming `place` and the key, for a value that no draft's config.json has."""
    try:
        msgspec.convert(config, _Keys)
    except msgspec.ValidationError as error:
        raise ArtifactError(f"{place}: {error}: is it a draft's?") from error

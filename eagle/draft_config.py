"""The forms in which a draft is exported: which names its tensors have, and the `config.json` beside them.

    target       tensors       layer ids                 config
    vllm         midlayer.*    vLLM's                    flat Llama; vLLM reads layers.0.* as well
    sglang       midlayer.*    one lower, SGLang's       flat Llama; layers.0.* only its newer releases read
    speculators  layers.0.*    vLLM's                    the layer's nested; names the verifier

SGLang 0.5 takes `eagle_config.eagle_aux_hidden_state_layer_ids` as ids of the layers whose output is meant
and adds one to each; vLLM 0.32 takes its own, at the top or in `eagle_config`, as they are.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from eagle.draft_files import FIRST_LAYER, LAYER_IDS, OUR_LAYER
from eagle.rotary import relative_attention_factor
from eagle.taps import TapPoints
from synthgen.corpus.config import RunConfig
from synthgen.corpus.draft_sections import DraftConfig
from synthgen.corpus.verifier_config import VerifierShape
from synthgen.corpus.verifier_files import shape_of
from synthgen.errors import ConfigError

CONFIG = "config.json"
ARCHITECTURE = "LlamaForCausalLMEagle3"


class Target(enum.StrEnum):
    """Who is to load a draft."""

    VLLM = "vllm"
    SGLANG = "sglang"
    SPECULATORS = "speculators"


class LayerNames(enum.StrEnum):
    """What the names of the only layer's tensors begin with."""

    MIDLAYER = "midlayer"
    LAYERS_0 = "layers.0"


ONLY = {Target.SGLANG: LayerNames.MIDLAYER, Target.SPECULATORS: LayerNames.LAYERS_0}
"""Names of targets that read no others."""


@dataclass(frozen=True, slots=True)
class Form:
    """One form of an export. The default is what `eagle accept` serves."""

    target: Target = Target.VLLM
    layer_names: LayerNames = LayerNames.MIDLAYER

    def __post_init__(self) -> None:
        only = ONLY.get(self.target, self.layer_names)
        if self.layer_names != only:
            raise ConfigError(
                f"--layer-names {self.layer_names} doesn't go with --target {self.target}, which reads "
                f"{only}: leave it out"
            )

    @classmethod
    def of(cls, target: Target, layer_names: LayerNames | None) -> Form:
        """A target's form, with the names that it reads unless others are given."""
        return cls(target, layer_names or ONLY.get(target, LayerNames.MIDLAYER))

    def place(self, default: Path) -> Path:
        """The directory of this form, beside that of the default: `draft/export-sglang`."""
        if self == Form():
            return default
        return default.with_name(f"{default.name}-{self._other}")

    @property
    def _other(self) -> str:
        return str(self.layer_names if self.target is Target.VLLM else self.target)

    def stored_name(self, name: str) -> str:
        """What a parameter of our draft is called in the file."""
        if self.layer_names is LayerNames.LAYERS_0 and name.startswith(OUR_LAYER):
            return FIRST_LAYER + name.removeprefix(OUR_LAYER)
        return name

    def layer_ids(self, taps: TapPoints) -> list[int]:
        """The aux layers as the target counts them."""
        return list(taps.sglang if self.target is Target.SGLANG else taps.aux)

    def settings(self, make: Make) -> dict[str, Any]:
        """What an export's manifest says of its form; nothing of the default one."""
        if self == Form():
            return {}
        said: dict[str, Any] = {"target": self.target.value, "layer_names": self.layer_names.value}
        if self.target is Target.SPECULATORS:  # it stands in the config
            said["num_draft_tokens"] = make.num_draft_tokens
        return said


DEFAULT = Form()
FORMS = (
    DEFAULT,
    Form(layer_names=LayerNames.LAYERS_0),
    *(Form(target, only) for target, only in ONLY.items()),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Make:
    """What a draft is, its weights aside."""

    draft: DraftConfig
    vocab_size: int
    """Tokens that the draft knows."""
    shape: VerifierShape
    taps: TapPoints
    verifier: str = ""
    """As the run names it; speculators' config does, too."""
    num_draft_tokens: int = 3


def make_of(config: RunConfig, vocab_size: int) -> Make:
    """What a run's draft is. Raises what `shape_of` and `TapPoints` raise."""
    shape = shape_of(config.verifier)
    return Make(
        draft=config.draft,
        vocab_size=vocab_size,
        shape=shape,
        taps=TapPoints(config.extract.aux_layers, shape.num_layers),
        verifier=config.verifier.model,
        num_draft_tokens=config.accept.num_draft_tokens[0],
    )


def require_serveable(form: Form, draft: DraftConfig) -> None:
    """Raise ConfigError for a draft that the target would load and compute wrongly."""
    if form.target is Target.SGLANG and draft.norm_before_residual:
        raise ConfigError(
            "--target sglang: SGLang's LlamaForCausalLMEagle3 knows no norm_before_residual: it would take "
            "the residual before the norm and draft badly without a word: train with "
            "draft.norm_before_residual=false, or serve with vLLM"
        )


def config_content(form: Form, make: Make) -> dict[str, Any]:
    """The `config.json` of a draft in this form."""
    if form.target is Target.SPECULATORS:
        return _speculators(make)
    ids = form.layer_ids(make.taps)
    # vLLM's second model runner and its compile cache see only those at the top, its draft counts the others.
    at_top = {LAYER_IDS: ids} if form.target is Target.VLLM else {}
    return {
        "architectures": [ARCHITECTURE],
        **_layer(make),
        **_rope_keys(make.draft),
        "draft_vocab_size": make.vocab_size,
        "tie_word_embeddings": False,
        "bos_token_id": make.shape.bos_token_id,
        "eos_token_id": make.shape.eos_token_id,
        "dtype": "bfloat16",
        **_norms(make.draft),
        **at_top,
        "eagle_config": {LAYER_IDS: ids, "use_aux_hidden_state": True},
    }


def _layer(make: Make) -> dict[str, Any]:
    """The Llama layer and the verifier's sizes."""
    draft, shape = make.draft, make.shape
    return {
        "model_type": "llama",
        "hidden_size": shape.hidden_size,
        "intermediate_size": draft.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": draft.num_attention_heads,
        "num_key_value_heads": draft.num_key_value_heads,
        "head_dim": draft.head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "max_position_embeddings": draft.max_position_embeddings,
        "rms_norm_eps": draft.rms_norm_eps,
        "vocab_size": shape.vocab_size,
    }


def _norms(draft: DraftConfig) -> dict[str, Any]:
    return {
        "norm_before_residual": draft.norm_before_residual,
        "fc_norm": draft.fc_norm,
        "norm_output": draft.norm_output,
    }


def _speculators(make: Make) -> dict[str, Any]:
    """As speculators 0.9 writes it; vLLM takes method, draft tokens and verifier from it."""
    proposal = {
        "proposal_type": "greedy",
        "speculative_tokens": make.num_draft_tokens,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    return {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "draft_vocab_size": make.vocab_size,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        **_norms(make.draft),
        "norm_before_fc": False,
        "embed_requires_grad": False,
        LAYER_IDS: list(make.taps.aux),
        "transformer_layer_config": {
            **_layer(make),
            "rope_parameters": _rope_keys(make.draft)["rope_parameters"],
        },
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"name_or_path": make.verifier, "architectures": list(make.shape.architectures)},
        },
    }


def _rope_keys(draft: DraftConfig) -> dict[str, Any]:
    """The rotary embedding under the key of transformers 5 (`rope_parameters`), and under the two before it,
    which older vLLM and SGLang read; where both are there, transformers 5 takes a `rope_scaling` that isn't
    null. They say the same."""
    if draft.rope_scaling is None:
        parameters: dict[str, Any] = {"rope_type": "default"}
    else:
        stated = msgspec.to_builtins(draft.rope_scaling).items()
        parameters = {key: value for key, value in stated if value is not None}
        if draft.rope_scaling.attention_factor is not None:  # SGLang's name: a factor on the paper's
            parameters["attn_factor"] = relative_attention_factor(draft.rope_scaling)
    return {
        "rope_parameters": parameters | {"rope_theta": draft.rope_theta},
        "rope_theta": draft.rope_theta,
        "rope_scaling": None if draft.rope_scaling is None else parameters,
    }

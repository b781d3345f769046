"""Whether a previous draft is of the run's own make, told from headers and configs: one line a difference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import torch
import yaml

from eagle.draft import Draft
from eagle.draft_files import EMBEDDING, HEAD, DraftFiles, layer_ids_in
from eagle.rotary import attention_factor, paper_factor
from eagle.taps import Counting, TapPoints, default_aux
from synthgen.corpus.draft_sections import DraftConfig, YarnScaling
from synthgen.corpus.verifier_config import VerifierShape
from synthgen.errors import ArtifactError

FLOATS = ("F32", "BF16", "F16")
VOCABULARY = ("d2t", "t2d")
LLAMA: dict[str, Any] = {
    "num_attention_heads": 32,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
}
"""transformers' defaults for a Llama config, which leaves them out when it is saved."""
COMPARED = (
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "rope_theta",
    "rms_norm_eps",
    "norm_before_residual",
    "fc_norm",
    "norm_output",
)
KEYS_OF = {
    "mlp.": "draft.intermediate_size",
    "q_proj": "draft.num_attention_heads or draft.head_dim",
    "o_proj": "draft.num_attention_heads or draft.head_dim",
    "k_proj": "draft.num_key_value_heads or draft.head_dim",
    "v_proj": "draft.num_key_value_heads or draft.head_dim",
    "fc_norm": "draft.fc_norm",
}
WHY_UNKNOWN = {
    "input_norm": "one norm over all aux states (norm_before_fc), which this trainer hasn't",
    "q_norm": "a norm of the queries (Qwen3), which this trainer's Llama layer hasn't",
    "k_norm": "a norm of the keys (Qwen3), which this trainer's Llama layer hasn't",
    "layers.": "a second layer, where this trainer has one",
    ".bias": "a bias, which this trainer's Llama layer hasn't",
    "fc_norm": "set draft.fc_norm: true",
}


@dataclass(frozen=True, slots=True)
class Fit:
    """`problems` must be mended before training; `notes` are worth knowing."""

    problems: list[str]
    notes: list[str]


def fit_of(previous: DraftFiles, config: DraftConfig, taps: TapPoints, shape: VerifierShape) -> Fit:
    """What stands between a previous draft and this run's."""
    fit = Fit(_tensor_problems(previous, config, shape), [])
    if not previous.config:
        fit.notes.append(
            "no config.json beside it: norms, rotary embedding and aux layers are taken to be this run's"
        )
        return fit
    fit.problems.extend(_config_problems(previous.config, config, shape))
    _compare_scaling(previous.config, config, fit)
    _compare_layers(previous, taps, fit)
    if "sliding_attention" in (previous.config.get("layer_types") or ()):
        fit.notes.append("it was trained with sliding attention, this trainer and vLLM attend to all tokens")
    return fit


def _tensor_problems(previous: DraftFiles, config: DraftConfig, shape: VerifierShape) -> list[str]:
    found = {name: place for name, place in previous.places.items() if name not in (*VOCABULARY, EMBEDDING)}
    rows = found[HEAD].shape[0] if HEAD in found and found[HEAD].shape else 1
    with torch.device("meta"):
        draft = Draft(config, shape.hidden_size, rows)
    expected = {name: list(weight.shape) for name, weight in draft.named_parameters()}
    lines = []
    for name in sorted(expected.keys() | found.keys()):
        if name not in found:
            key = _first_of(KEYS_OF, name)
            lines.append(f"tensor `{name}` {expected[name]} is missing" + (f": set {key}" if key else ""))
        elif name not in expected:
            why = _first_of(WHY_UNKNOWN, name) or "not a tensor of an EAGLE-3 Llama draft"
            lines.append(f"tensor `{name}` {found[name].shape} is not known: {why}")
        elif found[name].shape != expected[name]:
            key = _first_of(KEYS_OF, name) or "verifier.model, whose hidden size is another"
            lines.append(f"tensor `{name}` is {found[name].shape}, expected {expected[name]}: set {key}")
        elif found[name].dtype not in FLOATS:
            lines.append(f"tensor `{name}` is {found[name].dtype}, expected one of {', '.join(FLOATS)}")
    return lines


def _config_problems(content: dict[str, Any], config: DraftConfig, shape: VerifierShape) -> list[str]:
    """What the config says otherwise than the run's: settings, the verifier, what isn't to be had here."""
    lines = []
    stated = stated_in(content)
    for key in COMPARED:
        have, want = stated.get(key), getattr(config, key)
        if have is not None and have != want:
            lines.append(
                f"config.json: `{key}` is {_yaml(have)}, this run's is {_yaml(want)}: "
                f"set draft.{key}: {_yaml(have)}"
            )
    for key, size in (("hidden_size", shape.hidden_size), ("vocab_size", shape.vocab_size)):
        if content.get(key) not in (None, size):
            lines.append(
                f"config.json: `{key}` is {content[key]}, this verifier's is {size}: it is another's draft"
            )
    eagle, rope = content.get("eagle_config") or {}, _rope(content)
    for key, value, usable in (
        ("num_hidden_layers", content.get("num_hidden_layers"), 1),
        ("hidden_act", content.get("hidden_act"), "silu"),
        ("norm_before_fc", eagle.get("norm_before_fc", content.get("norm_before_fc")), False),
        ("partial_rotary_factor", rope.get("partial_rotary_factor"), 1.0),
        ("truncate", rope.get("truncate"), True),
        ("speculators_model_type", content.get("speculators_model_type"), "eagle3"),
    ):
        if value not in (None, usable):
            lines.append(f"config.json: `{key}` is {_yaml(value)}, this trainer has {_yaml(usable)}")
    return lines


def stated_in(content: dict[str, Any]) -> dict[str, Any]:
    """The config with what it leaves out: transformers' defaults, and vLLM's for the norms."""
    heads = content.get("num_attention_heads") or LLAMA["num_attention_heads"]
    left_out = {
        "num_key_value_heads": heads,
        "head_dim": (content.get("hidden_size") or 0) // heads or None,
        "norm_before_residual": False,
        "fc_norm": False,
        "norm_output": False,
    }
    present = {key: value for key, value in content.items() if value is not None}
    return LLAMA | left_out | present | {"rope_theta": _theta(content)}


def config_of(content: dict[str, Any]) -> DraftConfig:
    """The make of a draft by its flat config, with the defaults of what it leaves out.

    Raises ArtifactError for a key that is missing or wrong, and for positions scaled otherwise than by yarn.
    """
    fields = {name: stated_in(content).get(name) for name in DraftConfig.__struct_fields__}
    try:
        fields["rope_scaling"] = scaling_in(content)
        return msgspec.convert(msgspec.to_builtins(fields), DraftConfig)
    except (msgspec.ValidationError, KeyError, TypeError, ValueError) as error:
        raise ArtifactError(f"config.json: {error}") from error


def scaling_in(content: dict[str, Any]) -> YarnScaling | None:
    """How a draft's positions are scaled, None where they aren't.

    Raises ValueError for another way than yarn, KeyError or TypeError for a yarn that can't be read.
    """
    stated = _rope(content)
    kind = stated.get("rope_type") or stated.get("type") or "default"
    if kind == "default":
        return None
    if kind != "yarn":
        raise ValueError(f"positions are scaled by `{kind}`, this trainer has only yarn or none")
    return _yarn({"original_max_position_embeddings": content.get("max_position_embeddings")} | stated)


def _compare_scaling(content: dict[str, Any], config: DraftConfig, fit: Fit) -> None:
    """Refuse positions scaled otherwise. To scale those of a draft without lengthens its context: a note."""
    try:
        have = scaling_in(content)
    except ValueError as error:
        fit.problems.append(f"config.json: {error}")
        return
    except (KeyError, TypeError) as error:
        fit.problems.append(f"config.json: its yarn can't be read: {error!r}")
        return
    if have is None:
        if config.rope_scaling is not None:
            fit.notes.append("it has no rope_scaling: it learns this run's yarn from here on")
        return
    if config.rope_scaling is None or same_scaling(have) != same_scaling(config.rope_scaling):
        fit.problems.append(
            f"config.json: positions are scaled by other factors than this run's "
            f"({_yaml(config.rope_scaling)}): set draft.rope_scaling: {_yaml(have)}"
        )


def _rope(content: dict[str, Any]) -> dict[str, Any]:
    """The rotary parameters, under the old key or the new; of full attention where layer types differ."""
    stated: dict[str, Any] = content.get("rope_scaling") or content.get("rope_parameters") or {}
    inner: dict[str, Any] = stated.get("full_attention") or stated
    return inner


def _theta(content: dict[str, Any]) -> float:
    inner = _rope(content).get("rope_theta") or (content.get("rope_parameters") or {}).get("rope_theta")
    return float(inner or content.get("rope_theta") or LLAMA["rope_theta"])


def _yarn(stated: dict[str, Any]) -> YarnScaling:
    """YaRN under any of the names that the factor on cos and sin goes by."""
    factor, given = float(stated["factor"]), stated.get("attention_factor")
    papers = paper_factor(factor)
    if given is None and stated.get("mscale") and stated.get("mscale_all_dim"):
        given = (papers - 1) * stated["mscale"] + 1
        given /= (papers - 1) * stated["mscale_all_dim"] + 1
    if given is None and "attn_factor" in stated:
        given = papers * stated["attn_factor"]
    return YarnScaling(
        rope_type="yarn",
        factor=factor,
        original_max_position_embeddings=stated["original_max_position_embeddings"],
        beta_fast=stated.get("beta_fast") or 32,
        beta_slow=stated.get("beta_slow") or 1,
        attention_factor=given,
    )


def same_scaling(scaling: YarnScaling) -> tuple[float, ...]:
    """What a scaling does, whichever way it is written."""
    context = scaling.original_max_position_embeddings
    factor = round(attention_factor(scaling), 6)
    return (scaling.factor, context, scaling.beta_fast, scaling.beta_slow, factor)


def _compare_layers(previous: DraftFiles, taps: TapPoints, fit: Fit) -> None:
    """Refuse a draft of other aux layers. Ids one lower than the run's are SGLang's count of the same, where
    it isn't sure that they are vLLM's."""
    wanted, ids = list(taps.aux), layer_ids_in(previous.config)
    if ids is None:
        ids = list(default_aux(taps.num_layers))
        fit.notes.append(f"it names no aux layers: {ids} are vLLM's choice for {taps.num_layers} layers")
    if ids == wanted and previous.counting is not Counting.SGLANG:
        return
    if ids == list(taps.sglang) and previous.counting is not Counting.VLLM:
        fit.notes.append(f"its aux layers {ids} are taken as SGLang counts: {wanted} as vLLM does")
        return
    fit.problems.append(
        f"config.json: it was trained on aux layers {ids}, this run's states are of {wanted}: begin with "
        f"another draft, or set extract.aux_layers to them as vLLM counts"
        + ("" if previous.counting is Counting.VLLM else " (one more, if SGLang counted)")
        + " and extract again"
    )


def _first_of(meanings: dict[str, str], name: str) -> str | None:
    """The meaning of the first part that occurs in a tensor's name."""
    return next((meaning for part, meaning in meanings.items() if part in name), None)


def _yaml(value: object) -> str:
    """A value as the config's YAML has it."""
    text = yaml.safe_dump(msgspec.to_builtins(value), default_flow_style=True, sort_keys=False, width=1000)
    return text.removesuffix("...\n").strip()

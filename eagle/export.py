"""The draft as vLLM loads it: one safetensors file and a flat Llama config.

Weights are bfloat16 under the names of vLLM's `LlamaForCausalLMEagle3`. The embedding is left out:
vLLM shares the verifier's. Layer ids are vLLM's, and stand where it counts the aux states.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError, safe_open

from eagle.checkpoint import checkpoint_path, checkpoints, load_progress, load_weights
from eagle.draft import Draft
from eagle.init_from import first_draft, init_inputs
from eagle.rotary import relative_attention_factor
from eagle.taps import TapPoints
from eagle.tensors import save_tensors
from eagle.train import train_settings
from eagle.verifier import weights_of
from eagle.vocab import VocabMap, load_vocab
from synthgen.corpus.config import RunConfig
from synthgen.corpus.console import console
from synthgen.corpus.draft_sections import DraftConfig
from synthgen.corpus.files import directory_written_aside
from synthgen.corpus.manifest import (
    Manifest,
    as_json,
    digest_of,
    manifest_of,
    read_manifest,
    require_fit,
    require_manifest,
    write_manifest,
)
from synthgen.corpus.verifier_config import VerifierShape
from synthgen.corpus.verifier_files import shape_of
from synthgen.errors import ArtifactError

WEIGHTS = "model.safetensors"
CONFIG = "config.json"
ARCHITECTURE = "LlamaForCausalLMEagle3"


def export(config: RunConfig, *, untrained: bool = False) -> Manifest:
    """Export the run's trained draft, or the same draft before its first step; return the manifest.

    Raises ArtifactError when training isn't complete, or was of another draft than the config's.
    """
    started = time.monotonic()
    made = require_manifest(config.vocab_path, "eagle vocab CONFIG")
    inputs = {"vocab": digest_of(made)}
    vocab = load_vocab(config.vocab_path)
    if untrained:
        inputs |= init_inputs(config)
    draft = first_draft(config, weights_of(config.verifier), vocab, fresh=untrained)
    figures: dict[str, Any] = {"step": 0}
    if not untrained:
        trained = require_manifest(config.checkpoints_path, "eagle train CONFIG")
        require_fit(
            config.checkpoints_path,
            trained,
            settings=trained.settings | as_json(train_settings(config)),  # however its states came
            inputs=trained.inputs | inputs,
        )
        checkpoint, why = chosen(config.checkpoints_path, trained)
        console.print(f"export: {checkpoint.name}, {why}", soft_wrap=True)
        load_weights(checkpoint, draft)
        inputs["checkpoints"] = digest_of(trained)
        figures = {"step": load_progress(checkpoint).step, "chosen": why, "trained": trained.figures}
    out = config.untrained_path if untrained else config.export_path
    shape = shape_of(config.verifier)
    found = read_manifest(out)
    if found is not None and found.settings == as_json(train_settings(config)) and found.inputs == inputs:
        check_draft(out, shape)
        console.print(f"export: {out} has this draft")
        return found
    with directory_written_aside(out) as aside:
        write_draft(aside, draft, vocab, shape, TapPoints(config.extract.aux_layers, shape.num_layers))
        manifest = manifest_of(
            "export",
            settings=train_settings(config),
            inputs=inputs,
            figures=figures | {"bytes": (aside / WEIGHTS).stat().st_size},
            seconds=time.monotonic() - started,
        )
        write_manifest(aside, manifest)
    check_draft(out, shape)
    return manifest


def chosen(directory: Path, trained: Manifest) -> tuple[Path, str]:
    """The checkpoint that validated best, or the newest where none was validated; and which of them it is.

    Raises ArtifactError when it isn't there.
    """
    found = checkpoints(directory)
    if not found:
        raise ArtifactError(f"{directory} has no checkpoint: run `eagle train CONFIG` first")
    validation = trained.figures.get("validation")
    if validation is None:
        streamed = trained.settings.get("states", {}).get("source") == "streamed"
        why = "a streamed training validates none" if streamed else "no samples were held out"
        return found[-1], f"the newest: {why}"
    best = validation["best"]
    path = checkpoint_path(directory, best["step"])
    if path not in found:
        raise ArtifactError(
            f"{path} is missing, the best of {validation['count']} checkpoints that were validated: remove "
            f"{directory} to train anew"
        )
    length = best["whole"]["length"]
    return path, f"the best of {validation['count']} validated: acceptance length {length:.2f} held out"


def write_draft(
    directory: Path, draft: Draft, vocab: VocabMap, shape: VerifierShape, taps: TapPoints
) -> None:
    """Write weights and config into an existing directory."""
    tensors = {
        name: weight.detach().to("cpu", torch.bfloat16).contiguous()
        for name, weight in draft.named_parameters()
    }
    if vocab.size < shape.vocab_size:  # vLLM has no place for the map when there is nothing to map
        tensors |= {"d2t": vocab.d2t_K, "t2d": vocab.t2d_V}
    save_tensors(tensors, directory / WEIGHTS, metadata={"format": "pt"})
    content = draft_config(draft.config, vocab.size, shape, taps)
    (directory / CONFIG).write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")


def draft_config(
    draft: DraftConfig, vocab_size: int, shape: VerifierShape, taps: TapPoints
) -> dict[str, Any]:
    """The `config.json` of a draft with `vocab_size` tokens."""
    return {
        "architectures": [ARCHITECTURE],
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
        **_rope_keys(draft),
        "rms_norm_eps": draft.rms_norm_eps,
        "vocab_size": shape.vocab_size,
        "draft_vocab_size": vocab_size,
        "tie_word_embeddings": False,
        "bos_token_id": shape.bos_token_id,
        "eos_token_id": shape.eos_token_id,
        "dtype": "bfloat16",
        "norm_before_residual": draft.norm_before_residual,
        "fc_norm": draft.fc_norm,
        "norm_output": draft.norm_output,
        # vLLM's second model runner and its compile cache see only these, its draft counts those below.
        "eagle_aux_hidden_state_layer_ids": list(taps.aux),
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": list(taps.aux),
            "use_aux_hidden_state": True,
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


def check_draft(directory: Path, shape: VerifierShape) -> None:
    """Raise ArtifactError unless the draft in `directory` fits a verifier of this shape.

    The message names the key or tensor, what is expected and what was found.
    """
    content = _read_config(directory)
    wanted = {
        "architectures": [ARCHITECTURE],
        "hidden_size": shape.hidden_size,
        "vocab_size": shape.vocab_size,
    }
    for key, value in wanted.items():
        _require(directory / CONFIG, f"`{key}`", value, content.get(key))
    ids = (content.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids") or []
    if len(ids) != 3 or not 0 < ids[0] < ids[1] < ids[2] < shape.num_layers:
        raise ArtifactError(
            f"{directory / CONFIG}: `eagle_aux_hidden_state_layer_ids` is {ids}; expected three rising ids "
            f"below the verifier's {shape.num_layers} layers, as vLLM counts them: "
            f"export the draft of this run"
        )
    found = _shapes(directory / WEIGHTS)
    for name, expected in _expected_shapes(directory / CONFIG, content).items():
        _require(directory / WEIGHTS, f"tensor `{name}`", expected, found.get(name, "missing"))


def _read_config(directory: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode((directory / CONFIG).read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError) as error:
        raise ArtifactError(
            f"{directory / CONFIG}: can't be read: {error}. Run `eagle export CONFIG` again"
        ) from error


def _shapes(path: Path) -> dict[str, list[int]]:
    try:
        with safe_open(path, framework="pt") as tensors:
            return {name: tensors.get_slice(name).get_shape() for name in tensors.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ArtifactError(f"{path}: can't be read: {error}. Run `eagle export CONFIG` again") from error


def _expected_shapes(where: Path, content: dict[str, Any]) -> dict[str, list[int]]:
    """The tensors that a draft's own config asks for."""
    fields = {name: content.get(name) for name in DraftConfig.__struct_fields__}
    fields["rope_theta"] = (content.get("rope_parameters") or {}).get("rope_theta")
    fields["rope_scaling"] = None  # it has no tensor
    try:
        config = msgspec.convert(fields, DraftConfig)
    except msgspec.ValidationError as error:
        raise ArtifactError(f"{where}: {error}. Run `eagle export CONFIG` again") from error
    with torch.device("meta"):
        draft = Draft(config, content["hidden_size"], content["draft_vocab_size"])
    shapes = {name: list(weight.shape) for name, weight in draft.named_parameters()}
    if content["draft_vocab_size"] < content["vocab_size"]:
        shapes |= {"d2t": [content["draft_vocab_size"]], "t2d": [content["vocab_size"]]}
    return shapes


def _require(where: Path, what: str, expected: object, found: object) -> None:
    if found != expected:
        raise ArtifactError(
            f"{where}: {what} is {found}; expected {expected} for this verifier: export the draft of this run"
        )

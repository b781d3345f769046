"""The draft as servers load it: one safetensors file, a `config.json` and a model card.

Weights are bfloat16 under the names of vLLM's `LlamaForCausalLMEagle3`, or of another target's; see
eagle/draft_config.py. The embedding is left out: servers share the verifier's. A checkpoint goes from file to
file a piece at a time, so an export takes no more memory for a larger draft.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from eagle.card import write_card
from eagle.checkpoint import checkpoint_path, checkpoints, load_progress, stored_weights
from eagle.draft import Draft
from eagle.draft_check import check_draft
from eagle.draft_config import (
    CONFIG,
    DEFAULT,
    Form,
    Make,
    Target,
    config_content,
    make_of,
    require_serveable,
)
from eagle.init_from import first_draft, init_inputs
from eagle.tensors import Pieces, save_in_pieces
from eagle.train import train_settings
from eagle.verifier import weights_of
from eagle.vocab import VocabMap, load_vocab
from synthgen.corpus.config import RunConfig
from synthgen.corpus.console import console, shown
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
from synthgen.corpus.verifier_files import local_directory
from synthgen.errors import ArtifactError

WEIGHTS = "model.safetensors"
DTYPE = torch.bfloat16


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chosen:
    """The weights to export, what they were made from, and what is to be said of them."""

    weights: Mapping[str, Pieces]
    inputs: dict[str, str]
    figures: dict[str, Any]


def export(config: RunConfig, *, untrained: bool = False, form: Form = DEFAULT) -> Manifest:
    """Export the run's trained draft, or the same draft before its first step; return the manifest.

    One that is there is left as it is, but for its card, which is written anew.
    Raises ArtifactError when training isn't complete, or was of another draft than the config's; ConfigError
    for a form in which its target would compute another draft.
    """
    started = time.monotonic()
    require_serveable(form, config.draft)
    _note_path(config, form)
    made = require_manifest(config.vocab_path, "eagle vocab CONFIG")
    vocab = load_vocab(config.vocab_path)
    inputs = {"vocab": digest_of(made)}
    picked = _untrained(config, vocab, inputs) if untrained else _trained(config, vocab, inputs)
    make = make_of(config, vocab.size)
    out = form.place(config.untrained_path if untrained else config.export_path)
    settings = as_json(train_settings(config)) | form.settings(make)
    found = read_manifest(out)
    if found is not None and found.settings == settings and found.inputs == picked.inputs:
        check_draft(out, make.shape)
        console.print(f"export: {out} has this draft", soft_wrap=True)
        write_card(config, out, found, form)
        return found
    with directory_written_aside(out) as aside:
        write_draft(aside, picked.weights, vocab, make, form)
        manifest = manifest_of(
            "export",
            settings=settings,
            inputs=picked.inputs,
            figures=picked.figures | {"bytes": (aside / WEIGHTS).stat().st_size},
            seconds=time.monotonic() - started,
        )
        write_manifest(aside, manifest)
        write_card(config, aside, manifest, form)
    check_draft(out, make.shape)
    return manifest


def _note_path(config: RunConfig, form: Form) -> None:
    """Say that speculators' config names a verifier by a path here, which leads nowhere on other machines."""
    if form.target is Target.SPECULATORS and local_directory(config.verifier) is not None:
        console.print(
            f"export: config.json names the verifier by its path, {shown(config.verifier.model)}: to serve "
            f"the draft elsewhere set speculators_config.verifier.name_or_path there, or name a hub id in "
            f"verifier.model",
            soft_wrap=True,
        )


def _untrained(config: RunConfig, vocab: VocabMap, inputs: dict[str, str]) -> _Chosen:
    inputs = inputs | init_inputs(config)
    draft = first_draft(config, weights_of(config.verifier), vocab, fresh=True)
    weights = {name: Pieces.of(weight.detach(), DTYPE) for name, weight in draft.named_parameters()}
    return _Chosen(weights=weights, inputs=inputs, figures={"step": 0})


def _trained(config: RunConfig, vocab: VocabMap, inputs: dict[str, str]) -> _Chosen:
    trained = require_manifest(config.checkpoints_path, "eagle train CONFIG")
    require_fit(
        config.checkpoints_path,
        trained,
        settings=trained.settings | as_json(train_settings(config)),  # however its states came
        inputs=trained.inputs | inputs,
    )
    checkpoint, why = chosen(config.checkpoints_path, trained)
    console.print(f"export: {checkpoint.name}, {why}", soft_wrap=True)
    shape = make_of(config, vocab.size).shape
    with torch.device("meta"):
        draft = Draft(config.draft, shape.hidden_size, vocab.size)
    return _Chosen(
        weights=stored_weights(checkpoint, draft, DTYPE),
        inputs=inputs | {"checkpoints": digest_of(trained)},
        figures={"step": load_progress(checkpoint).step, "chosen": why, "trained": trained.figures},
    )


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
    directory: Path, weights: Mapping[str, Pieces], vocab: VocabMap, make: Make, form: Form
) -> None:
    """Write weights and config into an existing directory."""
    tensors = {form.stored_name(name): pieces for name, pieces in weights.items()}
    if vocab.size < make.shape.vocab_size:  # vLLM has no place for the map when there is nothing to map
        tensors |= {"d2t": Pieces.of(vocab.d2t_K), "t2d": Pieces.of(vocab.t2d_V)}
    save_in_pieces(tensors, directory / WEIGHTS, metadata={"format": "pt"})
    content = config_content(form, make)
    (directory / CONFIG).write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")

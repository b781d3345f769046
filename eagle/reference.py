"""A verifier small enough to load, through transformers: the states that vLLM's must equal."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import torch


def load_reference(model: Path | str, revision: str | None = None) -> Any:
    """A directory or hub id in float32.

    transformers is imported here: it takes seconds, and most commands do without.
    """
    transformers = importlib.import_module("transformers")
    return transformers.AutoModelForCausalLM.from_pretrained(
        model, revision=revision, dtype=torch.float32
    ).eval()


def reference_states(model: Any, token_ids_T: torch.Tensor, aux: tuple[int, int, int]) -> torch.Tensor:
    """`[T, 4, H]`: the states before the aux layers, and the final one before the norm.

    transformers' last hidden state is after the norm, so the final one is taken where the norm reads it.
    """
    finals: list[torch.Tensor] = []
    hook = model.model.norm.register_forward_pre_hook(lambda _, inputs: finals.append(inputs[0]))
    try:
        with torch.no_grad():
            hidden = model(token_ids_T[None], output_hidden_states=True).hidden_states
    finally:
        hook.remove()
    return torch.stack([*(hidden[k][0] for k in aux), finals[0][0]], dim=1)

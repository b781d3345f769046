"""Which optimizer takes what, and the rate over time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from eagle.draft import build_draft
from eagle.optim import Optimizers, build_optimizers, rate_at
from eagle.vocab import build_vocab
from tests.eagle.tiny import VOCAB, counting_weights, tiny_config


def optimizers(directory: Path, head: bool = True, **settings: str) -> Optimizers:
    config = tiny_config(directory, **settings)
    draft = build_draft(config.draft, counting_weights(), build_vocab(torch.ones(VOCAB), 20), config.seed)
    draft.lm_head.weight.requires_grad_(head)
    return build_optimizers(draft, config.train)


def taken(found: Optimizers) -> dict[str, list[tuple[float, float, list[str]]]]:
    """Rate, weight decay and parameter names of each group, by optimizer."""
    names = {id(p): name for name, p in found.named.items()}
    return {
        type(part).__name__: [
            (group["lr"], group["weight_decay"], [names[id(p)] for p in group["params"]])
            for group in part.param_groups
        ]
        for part in found.parts
    }


NORMS = [
    "fc_norm.0.weight",
    "fc_norm.1.weight",
    "fc_norm.2.weight",
    "midlayer.input_layernorm.weight",
    "midlayer.hidden_norm.weight",
    "midlayer.post_attention_layernorm.weight",
    "norm.weight",
]
MATRICES = [
    "fc.weight",
    "midlayer.self_attn.q_proj.weight",
    "midlayer.self_attn.k_proj.weight",
    "midlayer.self_attn.v_proj.weight",
    "midlayer.self_attn.o_proj.weight",
    "midlayer.mlp.gate_proj.weight",
    "midlayer.mlp.up_proj.weight",
    "midlayer.mlp.down_proj.weight",
]


def test_muon_takes_the_matrices_and_adamw_the_rest(tmp_path: Path) -> None:
    """The head and the norms stay with AdamW, at its own rate; norms don't decay."""
    assert taken(optimizers(tmp_path)) == {
        "AdamW": [(0.003, 0.01, ["lm_head.weight"]), (0.003, 0.0, NORMS)],
        "Muon": [(0.01, 0.01, MATRICES)],
    }


def test_adamw_alone_takes_everything_at_the_learning_rate(tmp_path: Path) -> None:
    """With `optimizer: adamw` there is one optimizer and one rate."""
    assert taken(optimizers(tmp_path, train__optimizer="adamw")) == {
        "AdamW": [(0.01, 0.01, [*MATRICES, "lm_head.weight"]), (0.01, 0.0, NORMS)],
    }


def test_a_frozen_head_is_left_out(tmp_path: Path) -> None:
    """What isn't trained is in no group."""
    assert taken(optimizers(tmp_path, head=False)) == {
        "AdamW": [(0.003, 0.0, NORMS)],
        "Muon": [(0.01, 0.01, MATRICES)],
    }


def test_rate_rises_and_falls_linearly() -> None:
    """Ten steps with a fifth of warm-up: half, whole, then down by eighths, never zero before the end."""
    expected = [0.5, 1.0, 1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125]
    assert [rate_at(step, 10, 0.2) for step in range(10)] == expected
    assert rate_at(0, 4, 0.0) == 1.0
    assert rate_at(3, 4, 0.0) == 0.25


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_state_goes_over_to_another_optimizer(tmp_path: Path, optimizer: str) -> None:
    """After loading the state of one, the other makes the very same update."""
    first, second = (optimizers(tmp_path, train__optimizer=optimizer) for _ in range(2))

    def update(target: Optimizers, number: int) -> None:
        generator = torch.Generator().manual_seed(number)
        for parameter in target.named.values():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        target.step(0.5)

    update(first, 0)
    with torch.no_grad():
        for name, parameter in second.named.items():
            parameter.copy_(first.named[name])
    second.load_state({name: tensor.clone() for name, tensor in first.state().items()})
    update(first, 1)
    update(second, 1)
    assert all(torch.equal(first.named[name], second.named[name]) for name in first.named)


def test_a_step_drops_the_gradients(tmp_path: Path) -> None:
    """The next step starts without what this one used."""
    found = optimizers(tmp_path)
    for parameter in found.named.values():
        parameter.grad = torch.ones_like(parameter)
    found.step(1.0)
    assert all(parameter.grad is None for parameter in found.named.values())

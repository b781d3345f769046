"""A previous draft of another make: one line for each difference, before anything is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from eagle.draft_files import read_draft
from eagle.draft_fit import Fit, fit_of
from eagle.taps import TapPoints
from synthgen.corpus.draft_sections import DraftConfig, YarnScaling
from synthgen.corpus.verifier_config import VerifierShape
from tests.eagle.drafts import (
    AQ_MEDAI_CONFIG,
    MIDLAYER,
    SPECULATORS,
    SPECULATORS_CONFIG,
    weights,
    write_draft,
)

SHAPE = VerifierShape(
    hidden_size=32, vocab_size=24, num_layers=8, rms_norm_eps=1e-6, bos_token_id=0, eos_token_id=1
)
TAPS = TapPoints((2, 4, 5), 8)
CONFIG = DraftConfig(
    intermediate_size=48,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    rope_theta=10000.0,
    rope_scaling=None,
    max_position_embeddings=256,
    rms_norm_eps=1e-6,
    norm_before_residual=False,
    fc_norm=False,
    norm_output=False,
)
EAGLE_3_1 = msgspec.structs.replace(CONFIG, norm_before_residual=True, fc_norm=True, norm_output=True)
YARN = YarnScaling(
    rope_type="yarn",
    factor=4.0,
    original_max_position_embeddings=64,
    beta_fast=32.0,
    beta_slow=1.0,
    attention_factor=None,
)
STATED = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


def fit(
    path: Path,
    tensors: dict[str, torch.Tensor],
    content: dict[str, Any] | None,
    config: DraftConfig = CONFIG,
    taps: TapPoints = TAPS,
) -> Fit:
    return fit_of(read_draft(str(write_draft(path / "d", tensors, content))), config, taps, SHAPE)


def test_each_family_fits(tmp_path: Path) -> None:
    """AQ-MedAI's and speculators' drafts of the same make have nothing against them."""
    assert fit(tmp_path / "a", weights(MIDLAYER), AQ_MEDAI_CONFIG) == Fit([], [])
    assert fit(tmp_path / "b", weights(SPECULATORS), SPECULATORS_CONFIG, EAGLE_3_1) == Fit([], [])


def test_every_difference_is_a_line_with_the_key_to_change(tmp_path: Path) -> None:
    """Shapes and settings, all at once."""
    shapes = MIDLAYER | {
        "midlayer.mlp.up_proj.weight": (64, 32),
        "midlayer.self_attn.o_proj.weight": (32, 64),
        "fc.weight": (32, 192),
    }
    content = AQ_MEDAI_CONFIG | {"intermediate_size": 64, "rope_theta": 1000000, "rms_norm_eps": 1e-5}
    found = fit(tmp_path, weights(shapes), content, msgspec.structs.replace(CONFIG, norm_output=True))
    assert found.problems == [
        "tensor `fc.weight` is [32, 192], expected [32, 96]: "
        "set verifier.model, whose hidden size is another",
        "tensor `midlayer.mlp.up_proj.weight` is [64, 32], expected [48, 32]: set draft.intermediate_size",
        "tensor `midlayer.self_attn.o_proj.weight` is [32, 64], expected [32, 32]: "
        "set draft.num_attention_heads or draft.head_dim",
        "config.json: `intermediate_size` is 64, this run's is 48: set draft.intermediate_size: 64",
        "config.json: `rope_theta` is 1000000.0, this run's is 10000.0: set draft.rope_theta: 1000000.0",
        "config.json: `rms_norm_eps` is 1.0e-05, this run's is 1.0e-06: set draft.rms_norm_eps: 1.0e-05",
        "config.json: `norm_output` is false, this run's is true: set draft.norm_output: false",
    ]


def test_heads_may_differ_where_the_shapes_agree(tmp_path: Path) -> None:
    """8 heads of 4 have the tensors of 4 heads of 8."""
    content = AQ_MEDAI_CONFIG | {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 4}
    assert [line.split(" is ")[0] for line in fit(tmp_path, weights(MIDLAYER), content).problems] == [
        "config.json: `num_attention_heads`",
        "config.json: `num_key_value_heads`",
        "config.json: `head_dim`",
    ]


def test_missing_unknown_and_quantised_tensors_are_named(tmp_path: Path) -> None:
    """With the reason where there is one."""
    tensors = weights(MIDLAYER)
    del tensors["midlayer.hidden_norm.weight"]
    tensors |= {
        "layers.1.mlp.up_proj.weight": torch.ones(48, 32),
        "input_norm.weight": torch.ones(96),
        "midlayer.self_attn.q_norm.weight": torch.ones(8),
        "midlayer.self_attn.q_proj.bias": torch.ones(32),
        "fc_norm.0.weight": torch.ones(32),
        "mask_hidden": torch.ones(96),
        "norm.weight": torch.ones(32, dtype=torch.int8),
    }
    content = AQ_MEDAI_CONFIG | {"eagle_config": AQ_MEDAI_CONFIG["eagle_config"] | {"norm_before_fc": True}}
    assert fit(tmp_path, tensors, content).problems == [
        "tensor `fc_norm.0.weight` [32] is not known: set draft.fc_norm: true",
        "tensor `input_norm.weight` [96] is not known: "
        "one norm over all aux states (norm_before_fc), which this trainer hasn't",
        "tensor `layers.1.mlp.up_proj.weight` [48, 32] is not known: "
        "a second layer, where this trainer has one",
        "tensor `mask_hidden` [96] is not known: not a tensor of an EAGLE-3 Llama draft",
        "tensor `midlayer.hidden_norm.weight` [32] is missing",
        "tensor `midlayer.self_attn.q_norm.weight` [8] is not known: "
        "a norm of the queries (Qwen3), which this trainer's Llama layer hasn't",
        "tensor `midlayer.self_attn.q_proj.bias` [32] is not known: "
        "a bias, which this trainer's Llama layer hasn't",
        "tensor `norm.weight` is I8, expected one of F32, BF16, F16",
        "config.json: `norm_before_fc` is true, this trainer has false",
    ]


def test_a_head_without_axes_is_a_line(tmp_path: Path) -> None:
    """As any other shape is."""
    tensors = weights(MIDLAYER) | {"lm_head.weight": torch.tensor(1.0)}
    (line,) = fit(tmp_path, tensors, AQ_MEDAI_CONFIG).problems
    assert line.startswith("tensor `lm_head.weight` is [], expected [1, 32]")


def test_another_verifiers_draft_is_told(tmp_path: Path) -> None:
    """By the sizes that its config states."""
    content = AQ_MEDAI_CONFIG | {"vocab_size": 30}
    assert fit(tmp_path, weights(MIDLAYER), content).problems == [
        "config.json: `vocab_size` is 30, this verifier's is 24: it is another's draft"
    ]


@pytest.mark.parametrize("place", ["eagle_config", "top"])
def test_other_aux_layers_are_refused_with_both_lists(tmp_path: Path, place: str) -> None:
    """Wherever the config has them."""
    ids = {"eagle_aux_hidden_state_layer_ids": [2, 3, 5]}
    content = AQ_MEDAI_CONFIG | (ids if place == "top" else {"eagle_config": ids})
    (line,) = fit(tmp_path, weights(MIDLAYER), content).problems
    assert "trained on aux layers [2, 3, 5], this run's states are of [2, 4, 5]" in line
    assert "one more, if SGLang counted" in line


def test_sglangs_count_is_recognised_where_it_may_be(tmp_path: Path) -> None:
    """[1, 3, 4] of a flat config are the run's [2, 4, 5]; of speculators they are what they say."""
    ids = {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}
    flat = fit(tmp_path / "a", weights(MIDLAYER), AQ_MEDAI_CONFIG | {"eagle_config": ids})
    assert flat == Fit([], ["its aux layers [1, 3, 4] are taken as SGLang counts: [2, 4, 5] as vLLM does"])
    nested = fit(tmp_path / "b", weights(SPECULATORS), SPECULATORS_CONFIG | ids, EAGLE_3_1)
    assert len(nested.problems) == 1
    assert "trained on aux layers [1, 3, 4]" in nested.problems[0]


def test_no_layer_ids_are_vllms_default(tmp_path: Path) -> None:
    """2, 4 and 5 of 8 layers; of a run with others the draft is refused."""
    content = {key: value for key, value in AQ_MEDAI_CONFIG.items() if key != "eagle_config"}
    found = fit(tmp_path / "a", weights(MIDLAYER), content)
    assert found == Fit([], ["it names no aux layers: [2, 4, 5] are vLLM's choice for 8 layers"])
    found = fit(tmp_path / "b", weights(MIDLAYER), content, taps=TapPoints((1, 2, 3), 8))
    assert len(found.problems) == 1


def test_without_a_config_only_shapes_are_checked(tmp_path: Path) -> None:
    """And it is said."""
    found = fit(tmp_path, weights(MIDLAYER), None)
    assert found.problems == []
    assert found.notes == [
        "no config.json beside it: norms, rotary embedding and aux layers are taken to be this run's"
    ]


@pytest.mark.parametrize(
    "stated",
    [
        STATED,
        STATED | {"beta_fast": 32, "beta_slow": 1, "rope_theta": 10000.0},
        {"type": "yarn", "factor": 4, "original_max_position_embeddings": 64, "attn_factor": 1.0},
        STATED | {"attention_factor": 1.138629436},
        {"rope_type": "yarn", "factor": 4.0},
    ],
)
@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_the_same_yarn_however_it_is_written(tmp_path: Path, stated: dict[str, Any], key: str) -> None:
    """Old key or new, defaults left out or not, the factor by any of its names."""
    content = AQ_MEDAI_CONFIG | {"max_position_embeddings": 64, key: stated}
    config = msgspec.structs.replace(CONFIG, rope_scaling=YARN)
    assert fit(tmp_path, weights(MIDLAYER), content, config) == Fit([], [])


def test_deepseeks_mscale_is_an_attention_factor(tmp_path: Path) -> None:
    """mscale over mscale_all_dim, both 1, is a factor of 1: not the paper's."""
    content = AQ_MEDAI_CONFIG | {"rope_scaling": STATED | {"mscale": 1.0, "mscale_all_dim": 1.0}}
    ones = msgspec.structs.replace(YARN, attention_factor=1.0)
    config = msgspec.structs.replace(CONFIG, rope_scaling=ones)
    assert fit(tmp_path / "a", weights(MIDLAYER), content, config) == Fit([], [])
    config = msgspec.structs.replace(CONFIG, rope_scaling=YARN)
    (line,) = fit(tmp_path / "b", weights(MIDLAYER), content, config).problems
    assert line.endswith(
        "set draft.rope_scaling: {rope_type: yarn, factor: 4.0, original_max_position_embeddings: 64, "
        "beta_fast: 32, beta_slow: 1, attention_factor: 1.0}"
    )


def test_scaling_may_be_added_but_not_dropped(tmp_path: Path) -> None:
    """A context is lengthened from a draft without; a scaled draft read unscaled would be another."""
    config = msgspec.structs.replace(CONFIG, rope_scaling=YARN)
    assert fit(tmp_path / "a", weights(MIDLAYER), AQ_MEDAI_CONFIG, config) == Fit(
        [], ["it has no rope_scaling: it learns this run's yarn from here on"]
    )
    scaled = AQ_MEDAI_CONFIG | {"rope_scaling": STATED}
    (line,) = fit(tmp_path / "b", weights(MIDLAYER), scaled).problems
    assert line.startswith("config.json: positions are scaled by other factors than this run's (null)")
    other = AQ_MEDAI_CONFIG | {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}
    assert fit(tmp_path / "c", weights(MIDLAYER), other).problems == [
        "config.json: positions are scaled by `llama3`, this trainer has only yarn or none"
    ]

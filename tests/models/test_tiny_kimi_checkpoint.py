"""The published checkpoint is small and has Kimi's text architecture."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import safe_open


def test_weights_are_small(model_dir: Path) -> None:
    """The weights stay under 12 MB, so the repository can carry them."""
    assert (model_dir / "model.safetensors").stat().st_size < 12_000_000


def test_config_has_kimis_architecture(model_dir: Path) -> None:
    """The config asks for latent attention and bias-balanced sigmoid routing, in sizes that vLLM takes."""
    config = json.loads((model_dir / "config.json").read_text(encoding="utf-8"))
    wanted = {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "num_hidden_layers": 8,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "tie_word_embeddings": False,
    }
    assert {key: config[key] for key in wanted} == wanted


def test_rope_is_the_kind_that_servers_rotate_correctly(model_dir: Path) -> None:
    """RoPE is named YaRN by a factor of one: vLLM on the CPU rotates plain RoPE wrongly here."""
    scaling = json.loads((model_dir / "config.json").read_text(encoding="utf-8"))["rope_scaling"]
    assert (scaling["type"], scaling["factor"]) == ("yarn", 1.0)


def test_weights_are_bfloat16(model_dir: Path) -> None:
    """Everything is bfloat16 but the routers' choice bias."""
    with safe_open(model_dir / "model.safetensors", framework="pt") as weights:
        names = list(weights.keys())
        kinds = {name: weights.get_slice(name).get_dtype() for name in names}
    assert {kind for name, kind in kinds.items() if "correction_bias" not in name} == {"BF16"}
    assert {kind for name, kind in kinds.items() if "correction_bias" in name} == {"F32"}

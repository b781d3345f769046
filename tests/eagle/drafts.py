"""Drafts for the tests' verifier as others write them: the tensors' names and the config of each family.

Sizes are those of `tiny_config`: hidden size 32, 24 tokens of which the draft knows 20, 48 in the MLP, 4
heads of 8 and 2 of keys.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import save_file

UNKNOWN = (1, 5, 6, 20)
"""The four tokens that these drafts don't know."""
KNOWN = [token for token in range(24) if token not in UNKNOWN]

MIDLAYER = {
    "midlayer.hidden_norm.weight": (32,),
    "midlayer.input_layernorm.weight": (32,),
    "midlayer.mlp.down_proj.weight": (32, 48),
    "midlayer.mlp.gate_proj.weight": (48, 32),
    "midlayer.mlp.up_proj.weight": (48, 32),
    "midlayer.post_attention_layernorm.weight": (32,),
    "midlayer.self_attn.k_proj.weight": (16, 64),
    "midlayer.self_attn.o_proj.weight": (32, 32),
    "midlayer.self_attn.q_proj.weight": (32, 64),
    "midlayer.self_attn.v_proj.weight": (16, 64),
    "fc.weight": (32, 96),
    "norm.weight": (32,),
    "lm_head.weight": (20, 32),
}
"""AQ-MedAI's names, and those of SpecForge's export to SGLang."""
SPECFORGE = MIDLAYER | {"embed_tokens.weight": (24, 32)}
"""SpecForge's export to transformers has the embedding beside them."""
SPECULATORS = {
    "embed_tokens.weight": (24, 32),
    "fc.weight": (32, 96),
    "fc_norm.0.weight": (32,),
    "fc_norm.1.weight": (32,),
    "fc_norm.2.weight": (32,),
    "layers.0.hidden_norm.weight": (32,),
    "layers.0.input_layernorm.weight": (32,),
    "layers.0.mlp.down_proj.weight": (32, 48),
    "layers.0.mlp.gate_proj.weight": (48, 32),
    "layers.0.mlp.up_proj.weight": (48, 32),
    "layers.0.post_attention_layernorm.weight": (32,),
    "layers.0.self_attn.k_proj.weight": (16, 64),
    "layers.0.self_attn.o_proj.weight": (32, 32),
    "layers.0.self_attn.q_proj.weight": (32, 64),
    "layers.0.self_attn.v_proj.weight": (16, 64),
    "lm_head.weight": (20, 32),
    "norm.weight": (32,),
}

AQ_MEDAI_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "attention_bias": False,
    "bos_token_id": 0,
    "draft_vocab_size": 20,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 4, 5], "use_aux_hidden_state": True},
    "eos_token_id": 1,
    "head_dim": 8,
    "hidden_act": "silu",
    "hidden_size": 32,
    "intermediate_size": 48,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "norm_before_residual": False,
    "num_attention_heads": 4,
    "num_hidden_layers": 1,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 10000,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 24,
}
"""The published Kimi drafts' flat config with the sizes of the tests."""
SPECULATORS_CONFIG: dict[str, Any] = {
    "architectures": ["Eagle3DraftModel"],
    "draft_vocab_size": 20,
    "dtype": "bfloat16",
    "eagle_aux_hidden_state_layer_ids": [2, 4, 5],
    "embed_requires_grad": False,
    "fc_norm": True,
    "norm_before_fc": False,
    "norm_before_residual": True,
    "norm_output": True,
    "speculators_config": {
        "algorithm": "eagle3",
        "default_proposal_method": "greedy",
        "proposal_methods": [
            {
                "accept_tolerance": 0.0,
                "proposal_type": "greedy",
                "speculative_tokens": 3,
                "verifier_accept_k": 1,
            }
        ],
        "verifier": {"architectures": ["LlamaForCausalLM"], "name_or_path": "verifier"},
    },
    "speculators_model_type": "eagle3",
    "speculators_version": "0.9.0",
    "target_hidden_size": None,
    "tie_word_embeddings": False,
    "transformer_layer_config": {
        "attention_bias": False,
        "head_dim": 8,
        "hidden_act": "silu",
        "hidden_size": 32,
        "intermediate_size": 48,
        "max_position_embeddings": 256,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": 4,
        "num_hidden_layers": 1,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-06,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "vocab_size": 24,
    },
}
"""As `Eagle3DraftModel.save_pretrained` of speculators 0.9 writes it, less what says nothing of the make."""
EAGLE_3 = {"draft__norm_before_residual": "false", "draft__fc_norm": "false", "draft__norm_output": "false"}
"""Settings of a run whose draft has the norms of the published ones: none of them."""


def weights(
    shapes: dict[str, tuple[int, ...]], dtype: torch.dtype = torch.bfloat16
) -> dict[str, torch.Tensor]:
    """Random weights under these names, and the map of the 20 known tokens."""
    generator = torch.Generator().manual_seed(11)
    tensors = {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in shapes.items()}
    t2d_V = torch.zeros(24, dtype=torch.bool)
    t2d_V[KNOWN] = True
    return tensors | {"t2d": t2d_V, "d2t": torch.tensor(KNOWN) - torch.arange(20)}


def write_draft(directory: Path, tensors: dict[str, torch.Tensor], config: dict[str, Any] | None) -> Path:
    """A checkpoint directory with one file of weights; without config.json where `config` is None."""
    directory.mkdir(parents=True)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    if config is not None:
        (directory / "config.json").write_bytes(msgspec.json.encode(config))
    return directory


def write_sharded(directory: Path, tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> Path:
    """The same in two files and their index."""
    directory.mkdir(parents=True)
    names = sorted(tensors)
    files = {"model-00001-of-00002.safetensors": names[:7], "model-00002-of-00002.safetensors": names[7:]}
    for file, inside in files.items():
        save_file({name: tensors[name] for name in inside}, directory / file)
    index = {"weight_map": {name: file for file, inside in files.items() for name in inside}}
    (directory / "model.safetensors.index.json").write_bytes(msgspec.json.encode(index))
    (directory / "config.json").write_bytes(msgspec.json.encode(config))
    return directory

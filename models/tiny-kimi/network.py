"""DeepSeek-V3 text network (latent attention, mixture of experts) written for quick training on a CPU.

The parameter names are those of a published checkpoint, so `state_dict()` is the checkpoint. The mathematics
is that of DeepseekV3 in transformers (`build.py` ends by comparing logits). Only the execution differs: at
this size it is cheaper to compute all experts in one wide matrix product, and to weigh those not chosen by
zero, than to gather tokens.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Shape:
    """Sizes of the network; latent rank and rope size are the only ones that vLLM's CPU attention accepts."""

    vocab_size: int
    hidden_size: int = 128
    intermediate_size: int = 384
    moe_intermediate_size: int = 96
    num_hidden_layers: int = 8
    num_attention_heads: int = 4
    kv_lora_rank: int = 512
    qk_rope_head_dim: int = 64
    qk_nope_head_dim: int = 32
    v_head_dim: int = 32
    n_routed_experts: int = 8
    num_experts_per_tok: int = 2
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 2048

    def config(self, bos: int, eos: int, pad: int) -> dict[str, Any]:
        """The `config.json` of a checkpoint of this shape."""
        fixed: dict[str, Any] = {
            "architectures": ["DeepseekV3ForCausalLM"],
            "model_type": "deepseek_v3",
            "torch_dtype": "bfloat16",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "first_k_dense_replace": 1,
            "hidden_act": "silu",
            "initializer_range": 0.02,
            "moe_layer_freq": 1,
            "n_group": 1,
            "n_shared_experts": 1,
            "norm_topk_prob": True,
            "num_key_value_heads": self.num_attention_heads,
            "num_nextn_predict_layers": 0,
            "q_lora_rank": None,
            "rope_interleave": True,
            # YaRN by a factor of 1 is plain RoPE. Kimi uses YaRN too, and vLLM 0.32 needs it here: its
            # rotation for plain RoPE on the CPU takes the wrong strides in latent attention.
            "rope_scaling": {
                "type": "yarn",
                "factor": 1.0,
                "original_max_position_embeddings": self.max_position_embeddings,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
            },
            "routed_scaling_factor": 1.0,
            "scoring_func": "sigmoid",
            "tie_word_embeddings": False,
            "topk_group": 1,
            "topk_method": "noaux_tc",
            "use_cache": True,
        }
        return {**fixed, **asdict(self), "bos_token_id": bos, "eos_token_id": eos, "pad_token_id": pad}


class RMSNorm(nn.Module):
    """Root mean square norm, computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, states: Tensor) -> Tensor:
        wide = states.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (self.weight * (wide * scale)).to(states.dtype)


def rope_tables(length: int, size: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosine and sine per position and pair of dimensions."""
    frequencies = 1.0 / (theta ** (torch.arange(0, size, 2, dtype=torch.float32) / size))
    angles = torch.arange(length, dtype=torch.float32)[:, None] * frequencies
    return angles.cos(), angles.sin()


def rotate(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate neighbouring pairs of dimensions (the interleaved layout); the result's order is free."""
    even, odd = states.float().reshape(*states.shape[:-1], -1, 2).unbind(-1)
    return torch.cat([even * cos - odd * sin, odd * cos + even * sin], dim=-1).to(states.dtype)


class Attention(nn.Module):
    """Multi-head latent attention without compression of the query."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        heads, hidden, rank, rope = (
            shape.num_attention_heads,
            shape.hidden_size,
            shape.kv_lora_rank,
            shape.qk_rope_head_dim,
        )
        self.q_proj = nn.Linear(hidden, heads * (shape.qk_nope_head_dim + rope), bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(hidden, rank + rope, bias=False)
        self.kv_a_layernorm = RMSNorm(rank, shape.rms_norm_eps)
        self.kv_b_proj = nn.Linear(rank, heads * (shape.qk_nope_head_dim + shape.v_head_dim), bias=False)
        self.o_proj = nn.Linear(heads * shape.v_head_dim, hidden, bias=False)

    def forward(self, states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, _ = states.shape
        shape, heads = self.shape, self.shape.num_attention_heads
        nope, rope, value_size = shape.qk_nope_head_dim, shape.qk_rope_head_dim, shape.v_head_dim
        query = self.q_proj(states).view(batch, length, heads, nope + rope).transpose(1, 2)
        latent, key_rope = self.kv_a_proj_with_mqa(states).split([shape.kv_lora_rank, rope], dim=-1)
        pair = self.kv_b_proj(self.kv_a_layernorm(latent)).view(batch, length, heads, nope + value_size)
        key_nope, value = pair.transpose(1, 2).split([nope, value_size], dim=-1)
        key_rope = rotate(key_rope[:, None], cos, sin).expand(batch, heads, length, rope)
        query = torch.cat([query[..., :nope], rotate(query[..., nope:], cos, sin)], dim=-1)
        key = torch.cat([key_nope, key_rope], dim=-1)
        # Written out, because the backward pass of the CPU's fused attention is several times slower here.
        scores = (query @ key.transpose(-1, -2)).float() * (nope + rope) ** -0.5
        future = torch.ones(length, length, dtype=torch.bool, device=states.device).triu(1)
        mixed = scores.masked_fill(future, float("-inf")).softmax(-1).to(value.dtype) @ value
        joined = mixed.transpose(1, 2).reshape(batch, length, heads * value_size)
        return functional.linear(joined, self.o_proj.weight)


class MLP(nn.Module):
    """Gated feed-forward layer: also one expert."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        inner = functional.silu(self.gate_proj(states)) * self.up_proj(states)
        return functional.linear(inner, self.down_proj.weight)


class Router(nn.Module):
    """Sigmoid scores; a bias steers the choice of experts, not their weight, to an even load."""

    e_score_correction_bias: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.top = shape.num_experts_per_tok
        self.weight = nn.Parameter(torch.zeros(shape.n_routed_experts, shape.hidden_size))
        self.register_buffer("e_score_correction_bias", torch.zeros(shape.n_routed_experts))

    def forward(self, states: Tensor) -> Tensor:
        """Weight of every expert for every token, zero for those not chosen."""
        with torch.autocast("cpu", enabled=False):
            scores = functional.linear(states.float(), self.weight.float()).sigmoid()
        chosen = (scores.detach() + self.e_score_correction_bias).topk(self.top, dim=-1).indices
        mask = torch.zeros_like(scores).scatter(-1, chosen, 1.0)
        weights = scores * mask
        return weights / (weights.sum(-1, keepdim=True) + 1e-20)


class MoE(nn.Module):
    """Routed experts and a shared one, computed as a single wide gated layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.inner = shape.moe_intermediate_size
        self.gate = Router(shape)
        self.experts = nn.ModuleList(
            MLP(shape.hidden_size, self.inner) for _ in range(shape.n_routed_experts)
        )
        self.shared_experts = MLP(shape.hidden_size, self.inner)

    def forward(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """The layer's output and the load of each expert (tokens that chose it)."""
        weights = self.gate(states)
        load = (weights.detach() > 0).flatten(0, -2).float().sum(0)
        every = [*self.experts, self.shared_experts]
        gate = torch.cat([expert.gate_proj.weight for expert in every])
        up = torch.cat([expert.up_proj.weight for expert in every])
        down = torch.cat([expert.down_proj.weight for expert in every], dim=1)
        inner = functional.silu(functional.linear(states, gate)) * functional.linear(states, up)
        ones = torch.ones_like(weights[..., :1])
        spread = torch.cat([weights, ones], dim=-1).to(inner.dtype)
        inner = (inner.view(*inner.shape[:-1], len(every), self.inner) * spread[..., None]).flatten(-2)
        return functional.linear(inner, down), load


class Layer(nn.Module):
    """One transformer layer; the first is dense, the others are mixtures."""

    def __init__(self, shape: Shape, *, dense: bool) -> None:
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp: MLP | MoE = MLP(shape.hidden_size, shape.intermediate_size) if dense else MoE(shape)
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)

    def forward(self, states: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        states = states + self.self_attn(self.input_layernorm(states), cos, sin)
        normed = self.post_attention_layernorm(states)
        if isinstance(self.mlp, MoE):
            change, load = self.mlp(normed)
            return states + change, load
        return states + self.mlp(normed), states.new_zeros(0)


class Body(nn.Module):
    """Embedding, layers and final norm (`model.*` of the checkpoint)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape, dense=i == 0) for i in range(shape.num_hidden_layers))
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)


class TinyKimi(nn.Module):
    """The whole language model."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.model = Body(shape)
        self.lm_head = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)
        self.tables = rope_tables(shape.max_position_embeddings, shape.qk_rope_head_dim, shape.rope_theta)
        self.reset()

    @torch.no_grad()
    def reset(self) -> None:
        """Random start: layers that write to the residual stream begin at zero, routers almost even."""
        for name, parameter in self.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.zero_()
            elif name.endswith(("embed_tokens.weight", "lm_head.weight")):
                parameter.normal_(std=0.3 if "embed" in name else 0.02)
            elif parameter.ndim == 2:
                parameter.normal_(std=0.5 * parameter.shape[1] ** -0.5)

    def forward(self, tokens: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Final states (after the norm) and the load of the experts of each mixture layer."""
        cos, sin = (table[: tokens.shape[1]] for table in self.tables)
        states = self.model.embed_tokens(tokens)
        if torch.is_autocast_enabled("cpu"):
            states = states.to(torch.get_autocast_dtype("cpu"))
        loads: list[Tensor] = []
        for layer in self.model.layers:
            states, load = layer(states, cos, sin)
            loads.append(load)
        return self.model.norm(states), loads[1:]

    def mixtures(self) -> list[MoE]:
        """The mixture layers, in order."""
        return [layer.mlp for layer in self.model.layers if isinstance(layer.mlp, MoE)]

"""The EAGLE-3 draft: one Llama decoder layer over the verifier's hidden states.

It computes what vLLM's `LlamaForCausalLMEagle3` computes. Parameter names are the checkpoint's, so
`state_dict()` is the export. The verifier's embedding is looked up outside and is no parameter.

The layer's input is [norm(embedding), norm(hidden)], so q, k and v are `W_e·norm(embedding) +
W_h·norm(hidden)`. In the training-time test the embeddings of step s are those of step 0, shifted by
s: the first half is computed once for all steps.

Axes: T tokens of the batch, N active slots, S steps, H hidden size, K draft vocabulary, A query heads,
G key-value heads, D head size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from eagle.attention import Starts, pieces_of, ttt_attention
from eagle.draft_files import HEAD
from eagle.rotary import rotary_tables, rotate
from eagle.verifier import VerifierWeights
from eagle.vocab import VocabMap
from synthgen.corpus.draft_sections import DraftConfig

INIT_STD = 0.02
HEAD_ROWS_AT_ONCE = 1024
"""Of the verifier's head, while a fresh draft's is made: 30 MB in float32 for Kimi-K2.5."""
INIT_LOGIT_STD = 2.0
"""Spread of a fresh draft's logits at a random state."""


class RMSNorm(nn.Module):
    """x / rms(x) · weight, the mean square taken in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, x.shape[-1:], self.weight, self.eps)


class Attention(nn.Module):
    """The projections of the layer's attention; q, k and v take [embedding, hidden]."""

    def __init__(self, config: DraftConfig, hidden_size: int) -> None:
        super().__init__()
        self.config = config
        q_size = config.num_attention_heads * config.head_dim
        kv_size = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(2 * hidden_size, q_size, bias=False)
        self.k_proj = nn.Linear(2 * hidden_size, kv_size, bias=False)
        self.v_proj = nn.Linear(2 * hidden_size, kv_size, bias=False)
        self.o_proj = nn.Linear(q_size, hidden_size, bias=False)

    def stacked(self) -> torch.Tensor:
        """`[E, 2H]`: the weights of q, k and v above one another, E = (A + 2G) · D."""
        return torch.cat((self.q_proj.weight, self.k_proj.weight, self.v_proj.weight))

    def heads(
        self, qkv_NE: torch.Tensor, positions_N: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Split into q `[N, A, D]`, k and v `[N, G, D]`, with q and k rotated to their positions."""
        queries, keys = self.config.num_attention_heads, self.config.num_key_value_heads
        heads = qkv_NE.view(len(qkv_NE), queries + 2 * keys, self.config.head_dim)
        turning, v_NGD = torch.split(heads, [queries + keys, keys], dim=1)
        config = self.config
        tables = rotary_tables(
            positions_N, config.head_dim, config.rope_theta, config.rope_scaling, qkv_NE.dtype
        )
        q_NAD, k_NGD = torch.split(rotate(turning, *tables), [queries, keys], dim=1)
        return q_NAD, k_NGD, v_NGD


class Mlp(nn.Module):
    """down(silu(gate(x)) · up(x))."""

    def __init__(self, config: DraftConfig, hidden_size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        down: torch.Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return down


class Layer(nn.Module):
    """The decoder layer's parameters, and the half of it that follows attention."""

    def __init__(self, config: DraftConfig, hidden_size: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(hidden_size, config.rms_norm_eps)
        self.hidden_norm = RMSNorm(hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, hidden_size)
        self.post_attention_layernorm = RMSNorm(hidden_size, config.rms_norm_eps)
        self.mlp = Mlp(config, hidden_size)

    def finish(self, attended: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """From the heads' output to the layer's, before the final norm."""
        residual = residual + self.self_attn.o_proj(attended)
        out: torch.Tensor = residual + self.mlp(self.post_attention_layernorm(residual))
        return out


class Draft(nn.Module):
    """The draft's parameters and the unrolled training-time test."""

    def __init__(self, config: DraftConfig, hidden_size: int, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(3 * hidden_size, hidden_size, bias=False)
        norms = [RMSNorm(hidden_size, config.rms_norm_eps) for _ in range(3 if config.fc_norm else 0)]
        self.fc_norm = nn.ModuleList(norms)
        self.midlayer = Layer(config, hidden_size)
        self.norm = RMSNorm(hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(hidden_size, vocab_size, bias=False)

    def forward(
        self,
        aux_T3H: torch.Tensor,
        embeddings_TH: torch.Tensor,
        slots_N: torch.Tensor,
        starts: Starts,
        steps: int,
    ) -> torch.Tensor:
        """Unroll `steps` steps of the training-time test; return the head's inputs `[S, N, H]`.

        `embeddings_TH[t]` is token t's own; step s gives slot t the one of token t + 1 + s. A slot near
        the end of its document may be given another document's token: such a slot has no target at that
        step, and nothing but itself sees what it makes of it.
        """
        attention = self.midlayer.self_attn
        embedding_EH, hidden_EH = attention.stacked().chunk(2, dim=1)
        embedded_TE = F.linear(self.midlayer.input_layernorm(embeddings_TH), embedding_EH)
        positions_T = positions_of(starts, aux_T3H.device)
        pieces = pieces_of(slots_N, starts, self.config.num_attention_heads, aux_T3H.device)
        slots_N = slots_N.to(aux_T3H.device)
        last = len(aux_T3H) - 1

        rows, hidden = torch.arange(last + 1, device=aux_T3H.device), self.combine(aux_T3H)
        later_k: list[torch.Tensor] = []
        later_v: list[torch.Tensor] = []
        outputs: list[torch.Tensor] = []
        for step in range(steps):
            normed = self.midlayer.hidden_norm(hidden)
            residual = normed if self.config.norm_before_residual else hidden
            qkv = F.linear(normed, hidden_EH) + embedded_TE[(rows + 1 + step).clamp(max=last)]
            q, k, v = attention.heads(qkv, positions_T[rows] + step)
            if step == 0:  # every token is a key, only the active slots go on
                block_k, block_v = k, v
                rows, q, residual = slots_N, q[slots_N], residual[slots_N]
            else:
                later_k.append(k)
                later_v.append(v)
            keys, values = _stack(later_k, block_k, len(rows)), _stack(later_v, block_v, len(rows))
            attended = ttt_attention(q, block_k, block_v, keys, values, slots_N, pieces)
            hidden = self.midlayer.finish(attended.flatten(1), residual)
            outputs.append(self.norm(hidden))
            if self.config.norm_output:
                hidden = outputs[-1]
        return torch.stack(outputs)

    def combine(self, aux_T3H: torch.Tensor) -> torch.Tensor:
        """`[T, H]`: the three aux states, each normed when there is an `fc_norm`, through `fc`."""
        states = aux_T3H.unbind(1)
        if self.config.fc_norm:
            states = tuple(norm(x) for norm, x in zip(self.fc_norm, states, strict=True))
        combined: torch.Tensor = self.fc(torch.cat(states, dim=-1))
        return combined


def unroll(
    draft: Draft,
    dtype: torch.dtype,
    aux_T3H: torch.Tensor,
    embeddings_TH: torch.Tensor,
    slots_N: torch.Tensor,
    starts: Starts,
    steps: int,
) -> torch.Tensor:
    """`draft.forward` computed in `dtype`: each float32 master weight is cast once for all steps."""
    cast = {name: weight.to(dtype) for name, weight in draft.named_parameters() if name != HEAD}
    inputs = (aux_T3H.to(dtype), embeddings_TH.to(dtype), slots_N, starts, steps)
    outputs: torch.Tensor = torch.func.functional_call(draft, cast, inputs)
    return outputs


def empty_draft(config: DraftConfig, hidden_size: int, vocab_size: int) -> Draft:
    """A draft whose float32 weights on the CPU are yet to be written."""
    with torch.device("meta"):
        draft = Draft(config, hidden_size, vocab_size)
    return draft.to_empty(device="cpu")


def build_draft(config: DraftConfig, verifier: VerifierWeights, vocab: VocabMap, seed: int) -> Draft:
    """A fresh draft with float32 weights on the CPU: the same `seed` gives the same weights.

    It begins as a plain reading of the verifier: `fc` passes the last aux state through, attention and
    MLP add nothing yet, and head and final norm are the verifier's own. The norm is scaled until a random
    state gives logits with a spread of INIT_LOGIT_STD: a draft that begins confidently wrong spends its
    first hundred steps on unlearning that (SmolLM2: loss 8.5 after 40 steps, 5.8 with the scale).
    """
    draft = empty_draft(config, len(verifier.norm_H), vocab.size)
    generator = torch.Generator().manual_seed(seed)
    norm_H = verifier.norm_H.float()
    with torch.no_grad():
        for weight in draft.parameters():
            if weight.ndim == 1:
                weight.fill_(1.0)
            else:
                weight.normal_(std=INIT_STD, generator=generator)
        draft.fc.weight.zero_()[:, -len(norm_H) :].fill_diagonal_(1.0)
        draft.midlayer.self_attn.o_proj.weight.zero_()
        draft.midlayer.mlp.down_proj.weight.zero_()
        norms_K = copy_head(draft.lm_head.weight, verifier.head_VH, vocab.target_ids_K, norm_H)
        draft.norm.weight.copy_(norm_H * (INIT_LOGIT_STD / norms_K.mean()))
    return draft


def copy_head(
    into_KH: torch.Tensor, head_VH: torch.Tensor, target_ids_K: torch.Tensor, norm_H: torch.Tensor
) -> torch.Tensor:
    """Copy the target ids' rows of the verifier's head, a few at a time; return each row's length, `[K]`.

    The length is that of the row times `norm_H`: the spread of its logit at a random state.
    """
    norms_K = torch.empty(len(target_ids_K))  # made first: between the pieces it would keep each one's room
    pieces = (torch.split(x, HEAD_ROWS_AT_ONCE) for x in (into_KH, target_ids_K, norms_K))
    for rows_RH, ids_R, norms_R in zip(*pieces, strict=True):
        rows_RH.copy_(head_VH[ids_R])
        norms_R.copy_((rows_RH * norm_H).norm(dim=1))
    return norms_K


def positions_of(starts: Starts, device: torch.device) -> torch.Tensor:
    """`[T]`: each token's index within its own document."""
    starts_S = torch.tensor(starts)
    return (torch.arange(starts[-1]) - starts_S[:-1].repeat_interleave(starts_S.diff())).to(device)


def _stack(later: list[torch.Tensor], like_TGD: torch.Tensor, slots: int) -> torch.Tensor:
    return torch.stack(later) if later else like_TGD.new_zeros((0, slots, *like_TGD.shape[1:]))

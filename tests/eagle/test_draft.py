"""The draft against vLLM's equations written out slot by slot."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
import torch
import torch.nn.functional as F

from eagle.draft import Draft, build_draft, positions_of, unroll
from eagle.verifier import VerifierWeights
from eagle.vocab import build_vocab
from synthgen.corpus.draft_sections import DraftConfig
from synthgen.corpus.settings import load_config
from synthgen.plan.stages import trained_parameters

HIDDEN, VOCAB, DRAFT_VOCAB = 12, 10, 6
CONFIG = DraftConfig(
    intermediate_size=20,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=6,
    rope_theta=100.0,
    rope_scaling=None,
    max_position_embeddings=64,
    rms_norm_eps=1e-5,
    norm_before_residual=False,
    fc_norm=False,
    norm_output=False,
)
EAGLE_3_1 = msgspec.structs.replace(CONFIG, norm_before_residual=True, fc_norm=True, norm_output=True)
STARTS, STEPS = (0, 5, 6, 13), 3


def tiny_draft(config: DraftConfig = CONFIG, seed: int = 0) -> Draft:
    """A float64 draft whose norms aren't ones and whose attention is far from flat."""
    generator = torch.Generator().manual_seed(seed)
    verifier = VerifierWeights(
        embedding_VH=torch.randn(VOCAB, HIDDEN, generator=generator),
        norm_H=torch.rand(HIDDEN, generator=generator) + 0.5,
        head_VH=torch.randn(VOCAB, HIDDEN, generator=generator),
    )
    draft = build_draft(config, verifier, build_vocab(torch.arange(VOCAB), DRAFT_VOCAB), seed).double()
    with torch.no_grad():
        for weight in draft.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator) * 0.3)
    return draft


def tiny_inputs() -> tuple[torch.Tensor, torch.Tensor]:
    """Aux states `[13, 3, H]` and embeddings `[13, H]`."""
    generator = torch.Generator().manual_seed(7)
    aux_T3H = torch.randn(13, 3, HIDDEN, generator=generator, dtype=torch.float64)
    return aux_T3H, torch.randn(13, HIDDEN, generator=generator, dtype=torch.float64)


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x / (x.pow(2).mean() + eps).sqrt() * weight


def turned(heads: torch.Tensor, position: int, theta: float) -> torch.Tensor:
    """Neox rotary embedding of `[heads, D]` as a multiplication of complex numbers."""
    half = heads.shape[-1] // 2
    angles = position / theta ** (torch.arange(half, dtype=torch.float64) / half)
    numbers = torch.complex(heads[:, :half], heads[:, half:]) * torch.polar(torch.ones(half).double(), angles)
    return torch.cat((numbers.real, numbers.imag), dim=-1)


def by_definition(
    draft: Draft, aux_T3H: torch.Tensor, embeddings_TH: torch.Tensor
) -> dict[tuple[int, int], torch.Tensor]:
    """The head's input of every (step, slot) that serving would have, one slot at a time."""
    config, w = draft.config, dict(draft.named_parameters())
    eps, size = config.rms_norm_eps, config.head_dim
    outputs = {}
    for start, end in itertools.pairwise(STARTS):
        block: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        for t in range(start, end - 1):
            parts = list(aux_T3H[t])
            if config.fc_norm:
                parts = [norm(x, w[f"fc_norm.{i}.weight"], eps) for i, x in enumerate(parts)]
            hidden = w["fc.weight"] @ torch.cat(parts)
            own: list[tuple[torch.Tensor, torch.Tensor]] = []
            for step in range(STEPS):
                if t + 1 + step >= end:
                    break
                embedding = norm(embeddings_TH[t + 1 + step], w["midlayer.input_layernorm.weight"], eps)
                normed = norm(hidden, w["midlayer.hidden_norm.weight"], eps)
                residual = normed if config.norm_before_residual else hidden
                x = torch.cat((embedding, normed))
                q, k, v = (
                    (w[f"midlayer.self_attn.{n}_proj.weight"] @ x).view(-1, size) for n in ("q", "k", "v")
                )
                position = t - start + step
                q, k = turned(q, position, config.rope_theta), turned(k, position, config.rope_theta)
                if step == 0:
                    block[t] = (k, v)
                else:
                    own.append((k, v))
                seen = [block[i] for i in range(start, t + 1)] + own
                attended = []
                for a in range(config.num_attention_heads):
                    g = a * config.num_key_value_heads // config.num_attention_heads
                    scores = torch.stack([q[a] @ keys[g] for keys, _ in seen]) / size**0.5
                    attended.append(scores.softmax(0) @ torch.stack([values[g] for _, values in seen]))
                residual = residual + w["midlayer.self_attn.o_proj.weight"] @ torch.cat(attended)
                y = norm(residual, w["midlayer.post_attention_layernorm.weight"], eps)
                gate = F.silu(w["midlayer.mlp.gate_proj.weight"] @ y)
                up = w["midlayer.mlp.up_proj.weight"] @ y
                prenorm = residual + w["midlayer.mlp.down_proj.weight"] @ (gate * up)
                out = norm(prenorm, w["norm.weight"], eps)
                outputs[step, t] = out
                hidden = out if config.norm_output else prenorm
    return outputs


@pytest.mark.parametrize("config", [CONFIG, EAGLE_3_1], ids=["eagle 3", "eagle 3.1"])
@pytest.mark.parametrize("slots", [[*range(12)], [1, 2, 8, 9, 10]], ids=["all slots", "some slots"])
def test_equals_the_equations(config: DraftConfig, slots: list[int]) -> None:
    """At every step every active slot gets what serving would compute for it."""
    draft, (aux_T3H, embeddings_TH) = tiny_draft(config), tiny_inputs()
    found_SNH = draft(aux_T3H, embeddings_TH, torch.tensor(slots), STARTS, STEPS)
    assert found_SNH.shape == (STEPS, len(slots), HIDDEN)
    expected = by_definition(draft, aux_T3H, embeddings_TH)
    compared = [(step, n) for step in range(STEPS) for n, t in enumerate(slots) if (step, t) in expected]
    assert len(compared) >= 12
    for step, n in compared:
        torch.testing.assert_close(found_SNH[step, n], expected[step, slots[n]], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("config", [CONFIG, EAGLE_3_1], ids=["eagle 3", "eagle 3.1"])
@pytest.mark.parametrize("changed", [3, 5, 9])
def test_later_tokens_and_other_documents_are_not_seen(config: DraftConfig, changed: int) -> None:
    """A change at one token changes no slot before it and none of another document, at any step.

    Slot t of step s may know the states up to t and the embeddings up to t + 1 + s, of its own document.
    """
    draft, (aux_T3H, embeddings_TH) = tiny_draft(config), tiny_inputs()
    slots_N = torch.arange(13)
    before = draft(aux_T3H, embeddings_TH, slots_N, STARTS, STEPS)
    start = max(s for s in STARTS if s <= changed)
    end = min(s for s in STARTS if s > changed)
    for tensor, reach in ((aux_T3H, 0), (embeddings_TH, 1)):
        kept = tensor.clone()
        tensor[changed] += 1.0
        after = draft(aux_T3H, embeddings_TH, slots_N, STARTS, STEPS)
        tensor.copy_(kept)
        for step in range(STEPS):
            first = changed - (reach + step if reach else 0)
            for t in range(12):
                inside = t + 1 + step < end and max(first, start) <= t
                has_input = any(s <= t and t + 1 + step < e for s, e in itertools.pairwise(STARTS))
                if has_input and not inside:
                    assert torch.equal(before[step, t], after[step, t]), (step, t)
        assert not torch.equal(before[0, changed], after[0, changed]) or changed == 5


def test_computes_in_the_dtype_asked_for_and_trains_float32_masters() -> None:
    """In bfloat16 outputs are bfloat16 and near float32's; the gradients are float32."""
    draft, (aux_T3H, embeddings_TH) = tiny_draft(EAGLE_3_1).float(), tiny_inputs()
    slots_N = torch.tensor([1, 2, 8])
    exact = unroll(draft, torch.float32, aux_T3H, embeddings_TH, slots_N, STARTS, STEPS)
    found = unroll(draft, torch.bfloat16, aux_T3H, embeddings_TH, slots_N, STARTS, STEPS)
    assert (exact.dtype, found.dtype) == (torch.float32, torch.bfloat16)
    torch.testing.assert_close(found.float(), exact, rtol=0.1, atol=0.1)
    found.float().sum().backward()  # type: ignore[no-untyped-call]
    assert {p.grad.dtype for p in draft.parameters() if p.grad is not None} == {torch.float32}
    assert draft.lm_head.weight.grad is None


def test_a_fresh_draft_reads_the_last_aux_state_with_the_verifiers_head() -> None:
    """Before training the head's input is the last aux state under norms alone, at every step, and the
    final norm is the verifier's, scaled to logits of spread 2: rows times norm have length 9 and 36."""
    verifier = VerifierWeights(
        embedding_VH=torch.zeros(4, 2),
        norm_H=torch.tensor([3.0, 4.0]),
        head_VH=torch.tensor([[0.0, 1.0], [3.0, 0.0], [4.0, 5.0], [0.0, 9.0]]),
    )
    config = msgspec.structs.replace(EAGLE_3_1, head_dim=2)
    draft = build_draft(config, verifier, build_vocab(torch.tensor([0, 9, 0, 8]), 2), 0)
    assert draft.lm_head.weight.tolist() == [[3.0, 0.0], [0.0, 9.0]]
    torch.testing.assert_close(draft.norm.weight, torch.tensor([3.0, 4.0]) * 2 / 22.5)
    aux_T3H = torch.tensor([[[7.0, 7.0], [8.0, 8.0], [3.0, -4.0]]] * 3)
    outputs_SNH = draft(aux_T3H, torch.ones(3, 2), torch.tensor([0]), (0, 3), 1)
    normed = torch.tensor([3.0, -4.0]) / 12.5**0.5
    torch.testing.assert_close(outputs_SNH[0, 0], normed * draft.norm.weight, rtol=1e-4, atol=1e-5)


def test_the_seed_decides_the_fresh_weights() -> None:
    """The same seed gives the same draft, another seed another, whatever the global random state is."""
    first = tiny_draft(seed=1).state_dict()
    torch.randn(3)
    again, other = tiny_draft(seed=1).state_dict(), tiny_draft(seed=2).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["fc.weight"], other["fc.weight"])


def test_positions_start_anew_in_each_document() -> None:
    """Documents of 5, 1 and 7 tokens: 0 1 2 3 4 | 0 | 0 1 2 3 4 5 6."""
    assert positions_of(STARTS, torch.device("cpu")).tolist() == [0, 1, 2, 3, 4, 0, 0, 1, 2, 3, 4, 5, 6]


def test_has_the_published_shapes_at_kimi_size() -> None:
    """The shapes of the published Kimi draft, name by name."""
    kimi = msgspec.structs.replace(
        CONFIG, intermediate_size=18432, num_attention_heads=64, num_key_value_heads=64, head_dim=128
    )
    with torch.device("meta"):
        shapes = {name: list(p.shape) for name, p in Draft(kimi, 7168, 32000).named_parameters()}
    assert shapes == {
        "fc.weight": [7168, 21504],
        "midlayer.input_layernorm.weight": [7168],
        "midlayer.hidden_norm.weight": [7168],
        "midlayer.self_attn.q_proj.weight": [8192, 14336],
        "midlayer.self_attn.k_proj.weight": [8192, 14336],
        "midlayer.self_attn.v_proj.weight": [8192, 14336],
        "midlayer.self_attn.o_proj.weight": [7168, 8192],
        "midlayer.post_attention_layernorm.weight": [7168],
        "midlayer.mlp.gate_proj.weight": [18432, 7168],
        "midlayer.mlp.up_proj.weight": [18432, 7168],
        "midlayer.mlp.down_proj.weight": [7168, 18432],
        "norm.weight": [7168],
        "lm_head.weight": [32000, 7168],
    }


@pytest.mark.parametrize("fc_norm", [True, False])
def test_the_plan_counts_the_parameters_that_are_trained(
    demo_values: dict[str, Any], write_config: Any, fc_norm: bool
) -> None:
    """What `synthgen plan` sizes checkpoints by is what is there."""
    demo_values["draft"]["fc_norm"] = fc_norm
    config = load_config(write_config(demo_values))
    with torch.device("meta"):
        draft = Draft(config.draft, 128, config.vocab.size)
    assert trained_parameters(config, 128) == sum(weight.numel() for weight in draft.parameters())

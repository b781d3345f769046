"""What a step takes, from shapes alone: Kimi's draft by arithmetic, a small one by torch's counter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

from eagle.__main__ import app
from eagle.batches import Targets
from eagle.draft import Draft, build_draft, unroll
from eagle.dry_run import dry_run, loss_flops, optimizer_flops, sizes_of, starts_of, unroll_costs
from eagle.loss import step_losses, target_logits, verifier_head
from eagle.optim import build_optimizers
from eagle.verifier import VerifierWeights
from eagle.vocab import build_vocab
from synthgen.corpus.settings import load_config
from synthgen.errors import ConfigError
from tests.eagle.tiny import HIDDEN, VOCAB, counting_weights, tiny_config, write_verifier

ROOT = Path(__file__).parents[2]
KIMI = ROOT / "configs/kimi-k2.5.yaml"
GIB = 1 << 30


def test_the_draft_of_kimi_has_the_parameters_of_its_arithmetic(tmp_path: Path) -> None:
    """The checkpoint isn't here: plan.hidden_size and plan.vocab_size stand in for its config.json."""
    found = dry_run(load_config(KIMI, (f"run_dir={tmp_path}", f"verifier.model={tmp_path}/none")))
    assert found.parameters == {
        "fc": 7168 * 21504,
        "fc_norm.0": 7168,
        "fc_norm.1": 7168,
        "fc_norm.2": 7168,
        "midlayer.input_layernorm": 7168,
        "midlayer.hidden_norm": 7168,
        "midlayer.self_attn.q_proj": 8192 * 14336,
        "midlayer.self_attn.k_proj": 8192 * 14336,
        "midlayer.self_attn.v_proj": 8192 * 14336,
        "midlayer.self_attn.o_proj": 7168 * 8192,
        "midlayer.post_attention_layernorm": 7168,
        "midlayer.mlp.gate_proj": 18432 * 7168,
        "midlayer.mlp.up_proj": 18432 * 7168,
        "midlayer.mlp.down_proj": 7168 * 18432,
        "norm": 7168,
        "lm_head": 32000 * 7168,
    }
    assert (found.trained, found.frozen) == (1_190_970_368, 0)
    head, norms = 229_376_000, 7 * 7168
    assert found.memory_bytes | {"activations": 0, "loss": 0} == {
        "master weights": 4 * 1_190_970_368,
        "gradients": 4 * 1_190_970_368,
        "optimizer state": 4 * (1_190_970_368 + head + norms),  # Muon has one moment, AdamW a second
        "bfloat16 casts": 2 * 1_190_970_368,
        "verifier embedding and head": 2 * 163_840 * 7168 * 2,
        "activations": 0,
        "attention": 2 * 4 * 64 * 1024 * 2048,
        "loss": 0,
        "batch": 8192 * 4 * 7168 * 2,
    }
    assert 8 * GIB < found.memory_bytes["activations"] < 16 * GIB
    assert found.states_bytes == 8192 * 57_344
    assert found.flops["verifier logits"] == 2 * 8192 * 7168 * 163_840
    assert found.flops["draft logits and gradients"] == 3 * 2 * 3 * 8192 * 7168 * 32_000
    assert found.flops["unroll forward"] == kimi_forward()
    # scores are computed anew for the gradients: a fifth product beside two for each of the forward's two
    assert found.flops["unroll backward"] == 2 * kimi_forward() + KIMI_SCORES


KIMI_SCORES = 2 * 3 * 4 * (1024 * 1024 + 1024 * 2048) * 8192
"""Products of a query and a key, in three steps: four documents of 2,048 in halves, over 64 heads of 128."""


def kimi_forward() -> int:
    """Multiply-adds times two: `fc`, the embedding's half once, and each step's half, layer and attention."""
    tokens, hidden, heads = 8192, 7168, 8192
    once = 3 * hidden * hidden + 3 * heads * hidden
    step = 3 * heads * hidden + heads * hidden + 3 * hidden * 18_432
    return 2 * tokens * (once + 3 * step) + 2 * KIMI_SCORES


@pytest.mark.parametrize("fc_norm", ["true", "false"])
def test_the_unroll_on_meta_takes_what_a_real_one_takes(tmp_path: Path, fc_norm: str) -> None:
    """Each product, attention's included: it goes the same way on every device."""
    config = tiny_config(tmp_path, draft__fc_norm=fc_norm)
    write_verifier(tmp_path / "verifier")
    vocab = build_vocab(torch.ones(VOCAB, dtype=torch.int64), config.vocab.size)
    draft = build_draft(config.draft, counting_weights(), vocab, seed=1)
    starts = starts_of(config)
    assert starts == (0, 48, 64)
    with FlopCounterMode(display=False) as counter:
        aux, embeddings = torch.randn(64, 3, HIDDEN), torch.randn(64, HIDDEN)
        unroll(draft, torch.float32, aux, embeddings, torch.arange(64), starts, 3).sum().backward()  # type: ignore[no-untyped-call]
    with torch.device("meta"):
        shape = Draft(config.draft, HIDDEN, config.vocab.size)
    flops, activation_bytes = unroll_costs(shape, starts, torch.float32, 3)
    assert sum(flops.values()) == counter.get_total_flops()
    assert activation_bytes > 0


@pytest.mark.parametrize("head", ["trained", "frozen"])
def test_the_loss_takes_what_its_formula_says(tmp_path: Path, head: str) -> None:
    """Every token a target that carries loss."""
    config = tiny_config(tmp_path, train__head=head, vocab__size=str(VOCAB))
    write_verifier(tmp_path / "verifier")
    weights: VerifierWeights = counting_weights()
    vocab = build_vocab(torch.ones(VOCAB, dtype=torch.int64), VOCAB)
    verifier = verifier_head(weights, 1e-6, vocab, torch.float32, torch.device("cpu"))
    tokens, steps = config.train.batch_tokens, config.train.ttt_steps
    rows_SP = torch.arange(tokens).expand(steps, -1)
    targets = Targets(
        slots_N=torch.arange(tokens),
        targets_P=torch.arange(tokens),
        row_SP=rows_SP,
        valid_SP=torch.ones_like(rows_SP, dtype=torch.bool),
    )
    draft = build_draft(config.draft, weights, vocab, seed=1)
    draft.lm_head.weight.requires_grad_(head == "trained")
    with FlopCounterMode(display=False) as counter:
        says = target_logits(verifier, torch.randn(tokens, HIDDEN))
        asked = counter.get_total_flops()
        outputs = torch.randn(steps, tokens, HIDDEN, requires_grad=True)
        share_SP = torch.full((steps, tokens), 1 / tokens)
        losses = step_losses(outputs, draft.lm_head.weight, says, targets, share_SP, 1.0)
        losses.total.backward()  # type: ignore[no-untyped-call]
    assert loss_flops(config, sizes_of(config)) == {
        "verifier logits": asked,
        "draft logits and gradients": counter.get_total_flops() - asked,
    }


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_the_optimizer_takes_what_its_formula_says(tmp_path: Path, optimizer: str) -> None:
    """Muon's products, and none for AdamW."""
    config = tiny_config(tmp_path, train__optimizer=optimizer)
    vocab = build_vocab(torch.ones(VOCAB, dtype=torch.int64), config.vocab.size)
    draft = build_draft(config.draft, counting_weights(), vocab, seed=1)
    optimizers = build_optimizers(draft, config.train)
    for parameter in draft.parameters():
        parameter.grad = torch.randn_like(parameter)
    with FlopCounterMode(display=False) as counter:
        optimizers.step(1.0)
    assert optimizer_flops(optimizers) == counter.get_total_flops()
    state_bytes = sum(tensor.nbytes for tensor in optimizers.state().values() if tensor.ndim)
    write_verifier(tmp_path / "verifier")
    assert dry_run(config).memory_bytes["optimizer state"] == state_bytes


def test_a_frozen_head_and_float32_take_less(tmp_path: Path) -> None:
    """No gradient, no moments, no casts."""
    config = tiny_config(tmp_path, train__head="frozen")
    write_verifier(tmp_path / "verifier")
    found = dry_run(config)
    assert (found.frozen, found.parameters["lm_head"]) == (20 * HIDDEN, 20 * HIDDEN)
    assert found.memory_bytes["gradients"] == 4 * found.trained
    assert found.memory_bytes["float32 casts"] == 0


def test_the_command_prints_the_same_in_both_forms_and_writes_nothing(tmp_path: Path) -> None:
    """Without checkpoint, states or vocabulary; what plan leaves open is told."""
    run: Any = CliRunner()
    arguments = ["train", str(KIMI), "--dry-run", "--set", f"run_dir={tmp_path / 'run'}"]
    arguments += ["--set", "train.batch_tokens=2048", "--set", "plan.vocab_size=null"]
    shown = run.invoke(app, arguments).stdout
    assert "parameters: 1,190,970,368, 1,190,970,368 trained, 0 frozen\n" in shown
    assert "a step of 2,048 tokens, ttt_steps 3: at most " in shown
    assert "112.0 MiB of states read\n" in shown
    assert "the verifier's embedding, head and logits are not counted" in shown
    assert max(map(len, shown.splitlines())) <= 100
    told = msgspec.json.decode(run.invoke(app, [*arguments, "--json"]).stdout)
    assert (told["trained"], told["states_bytes"], told["vocab_size"]) == (1_190_970_368, 117_440_512, None)
    assert list(tmp_path.iterdir()) == []


def test_a_draft_of_unknown_size_is_refused(tmp_path: Path) -> None:
    """Neither a config.json nor plan.hidden_size."""
    config = load_config(KIMI, (f"verifier.model={tmp_path}/none", "plan.hidden_size=null"))
    with pytest.raises(ConfigError, match=r"none isn't here and plan\.hidden_size is null: set one of them"):
        dry_run(config)


def test_json_without_dry_run_is_refused(tmp_path: Path) -> None:
    """Before anything is read."""
    done = CliRunner().invoke(app, ["train", str(KIMI), "--json", "--set", f"run_dir={tmp_path / 'run'}"])
    assert done.exit_code == 2
    assert "--json goes with --dry-run" in done.stderr

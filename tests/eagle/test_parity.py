"""The draft computes what vLLM computes: vLLM's own class on the same weights and states."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file

from eagle.draft import build_draft
from eagle.draft_config import DEFAULT, Make
from eagle.export import write_draft
from eagle.taps import TapPoints
from eagle.tensors import Pieces
from eagle.verifier import read_weights
from eagle.vocab import build_vocab
from synthgen.corpus.draft_sections import DraftConfig, YarnScaling
from synthgen.corpus.verifier_config import read_shape

transformers = pytest.importorskip("transformers")
pytest.importorskip("vllm")

SCRIPT = Path(__file__).with_name("vllm_parity.py")
CONFIG = DraftConfig(
    intermediate_size=80,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    rope_theta=1000.0,
    rope_scaling=None,
    max_position_embeddings=256,
    rms_norm_eps=1e-5,
    norm_before_residual=False,
    fc_norm=False,
    norm_output=False,
)
EAGLE_3_1 = msgspec.structs.replace(CONFIG, norm_before_residual=True, fc_norm=True, norm_output=True)
YARN = msgspec.structs.replace(
    EAGLE_3_1,
    rope_scaling=YarnScaling(
        rope_type="yarn",
        factor=16.0,
        original_max_position_embeddings=16,
        beta_fast=4.0,
        beta_slow=0.25,
        attention_factor=None,
    ),
)


def write_verifier(directory: Path) -> None:
    """A random Llama of six layers with a vocabulary of 128."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        vocab_size=128,
        bos_token_id=0,
        eos_token_id=1,
        max_position_embeddings=256,
        tie_word_embeddings=False,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(directory)


@pytest.mark.vllm
@pytest.mark.parametrize("config", [CONFIG, EAGLE_3_1, YARN], ids=["eagle 3", "eagle 3.1", "yarn"])
def test_equals_vllm_at_every_draft_step(config: DraftConfig, tmp_path: Path) -> None:
    """On one request vLLM's draft and ours give the same head input at every slot of the prompt and at
    both later steps, to float32 rounding, and propose the same tokens; positions advance by one a step."""
    verifier, exported, out = tmp_path / "verifier", tmp_path / "draft", tmp_path / "out.safetensors"
    write_verifier(verifier)
    shape, vocab = read_shape(verifier), build_vocab(torch.arange(128), 100)
    draft = build_draft(config, read_weights(verifier), vocab, seed=3)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in draft.parameters():  # far from flat, and exact in the exported bfloat16
            weight.add_(torch.randn(weight.shape, generator=generator) * 0.1)
            weight.copy_(weight.bfloat16())
    exported.mkdir()
    stored = {name: Pieces.of(weight.detach(), torch.bfloat16) for name, weight in draft.named_parameters()}
    make = Make(draft=config, vocab_size=vocab.size, shape=shape, taps=TapPoints((2, 3, 4), 6))
    write_draft(exported, stored, vocab, make, DEFAULT)
    environment = os.environ | {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, str(SCRIPT), str(verifier), str(exported), str(out)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    recorded = load_file(out)

    prompt = len(recorded["aux"])
    given = [recorded["input_ids0"], recorded["input_ids1"][:1], recorded["input_ids2"][:1]]
    ids_T = torch.cat((torch.zeros(1, dtype=torch.long), *given))
    aux_T3H = torch.zeros(len(ids_T), 3, 64)
    aux_T3H[:prompt] = recorded["aux"].view(prompt, 3, 64)
    embeddings_TH = read_weights(verifier).embedding_VH.float()[ids_T]
    with torch.no_grad():
        found_SNH = draft(aux_T3H, embeddings_TH, torch.arange(prompt), (0, len(ids_T)), 3)
        proposed = draft.lm_head(found_SNH[:, -1]).argmax(-1)
    torch.testing.assert_close(found_SNH[0], recorded["outputs0"], rtol=1e-4, atol=1e-5)
    for step in (1, 2):
        torch.testing.assert_close(found_SNH[step, -1], recorded[f"outputs{step}"][0], rtol=1e-4, atol=1e-5)
    assert vocab.target_ids_K[proposed[:2]].tolist() == ids_T[-2:].tolist()
    assert recorded["positions0"].tolist() == list(range(prompt))
    assert [recorded[f"positions{step}"].tolist() for step in (1, 2)] == [[prompt], [prompt + 1]]

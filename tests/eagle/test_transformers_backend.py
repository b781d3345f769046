"""States without a server: the verifier is loaded into the process, and its states go the same way."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from eagle import transformers_backend
from eagle.collect import StatesFailure
from eagle.extract import extract
from eagle.shards import read_all, read_index
from synthgen.corpus.config import RunConfig
from synthgen.corpus.journal import read_journal
from synthgen.corpus.manifest import manifest_of, write_manifest
from synthgen.errors import ArtifactError, ConfigError
from tests.conftest import ROOT
from tests.eagle.test_extract import captured
from tests.eagle.tiny import HIDDEN, LAYERS, VOCAB, counting_states, tiny_config, trace, write_dataset

transformers = pytest.importorskip("transformers")

TINY_KIMI_TOKENIZER = "b5062beb60990f8f"


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    """A run of a random Llama in float32, whose server could not be started."""
    made = tiny_config(
        tmp_path, extract__backend="transformers", server__dtype="float32", server__start_timeout_s="1"
    )
    torch.manual_seed(0)
    shape = transformers.LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=48,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCAB,
        bos_token_id=0,
        eos_token_id=1,
    )
    transformers.LlamaForCausalLM(shape).save_pretrained(made.verifier.model)
    return made


def layer_by_layer(config: RunConfig, token_ids: tuple[int, ...]) -> torch.Tensor:
    """`[T, 4, H]`: what goes into layers 2, 4 and 5, and what comes out of the last one."""
    model = transformers.AutoModelForCausalLM.from_pretrained(config.verifier.model, dtype=torch.float32)
    seen: dict[int, torch.Tensor] = {}

    def into(layer: int) -> Any:
        return lambda _, inputs: seen.update({layer: inputs[0][0]})

    for layer in (2, 4, 5):
        model.model.layers[layer].register_forward_pre_hook(into(layer))
    model.model.norm.register_forward_pre_hook(into(LAYERS))
    with torch.no_grad():
        model(torch.tensor([token_ids]))
    return torch.stack([seen[layer] for layer in (2, 4, 5, LAYERS)], dim=1)


def test_states_are_what_goes_into_the_layers_and_out_of_the_last(config: RunConfig) -> None:
    """Of all tokens of each sample, those that are held out too; the same again does nothing."""
    traces = [trace(number) for number in range(3)]
    write_dataset(config, traces[:2], traces[2:])
    made = extract(config)
    assert (made.complete, made.figures["samples"], made.figures["failed"]) == (True, 3, 0)
    assert made.speed is not None
    found = {states.sample_id: states for states in read_all(config.states_path)}
    for one in traces:
        states = found[f"{one.seed_id}-0"]
        ids = one.prompt_token_ids + one.output_token_ids
        want_T4H = layer_by_layer(config, ids)
        assert tuple(states.token_ids_T.tolist()) == ids
        assert torch.equal(states.aux.read(), want_T4H[:, :3].bfloat16())
        assert torch.equal(states.final.read(), want_T4H[:, 3].bfloat16())
    assert extract(config) == made


def test_what_came_with_the_replies_is_not_computed_again(config: RunConfig) -> None:
    """It is packed as it is; the other sample's states are the verifier's."""
    write_dataset(config, [captured(config, 0), trace(1)])
    extract(config)
    first, second = read_all(config.states_path)
    assert torch.equal(first.aux.read(), counting_states(tuple(first.token_ids_T.tolist()))[:, :3].bfloat16())
    ids = tuple(second.token_ids_T.tolist())
    assert torch.equal(second.aux.read(), layer_by_layer(config, ids)[:, :3].bfloat16())


def test_states_that_are_not_finite_are_a_record(config: RunConfig) -> None:
    """Of two samples the one with token 20 has them: its embedding is broken."""
    path = Path(config.verifier.model) / "model.safetensors"
    tensors = load_file(path)
    tensors["model.embed_tokens.weight"][20] = float("nan")
    save_file(tensors, path, metadata={"format": "pt"})
    write_dataset(config, [trace(0, output=4), trace(2, output=5)])
    made = extract(config)
    assert (made.figures["samples"], made.figures["failed"]) == (1, 1)
    (failure,) = read_journal(config.states_path / "failures.jsonl", StatesFailure)
    assert failure.sample_id == "seed02-0"
    assert failure.message == "sample seed02-0: the states have values that are not finite"


def test_a_verifier_that_memory_does_not_hold_is_refused_before_it_is_loaded(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both sizes are said; nothing is written but the manifest of an extraction that isn't complete."""
    monkeypatch.setattr(transformers_backend, "memory_bytes", lambda: 200_000)
    write_dataset(config, [trace(0)])
    message = (
        r"extract\.backend: transformers loads all of .*verifier, 2\d\d\.\d KiB of weights, and "
        r"195\.3 KiB of memory are available \(cpu\): set it to vllm"
    )
    with pytest.raises(ConfigError, match=message):
        extract(config)
    assert read_index(config.states_path) == []


@pytest.mark.parametrize("known", [TINY_KIMI_TOKENIZER, "aaaa"])
def test_the_tokenizer_is_that_of_the_corpus_and_on_record(config: RunConfig, known: str) -> None:
    """The digest is that of vLLM's own /tokenize; another is refused before a model is loaded."""
    for file in (ROOT / "models/tiny-kimi").glob("tokenizer*"):
        shutil.copy(file, config.verifier.model)
    write_dataset(config, [trace(0)])
    corpus = manifest_of(
        "generate", settings={}, inputs={}, figures={"server": {"tokenizer": known}}, seconds=0
    )
    write_manifest(config.corpus_path, corpus)
    if known == TINY_KIMI_TOKENIZER:
        assert extract(config).figures["tokenizer"] == known
        return
    with pytest.raises(ArtifactError, match="tokenizer aaaa, what is asked for states has b5062beb60990f8f"):
        extract(config)
    assert read_index(config.states_path) == []


def test_a_model_that_transformers_does_not_know_is_named(config: RunConfig) -> None:
    """With the reason that transformers gives."""
    path = Path(config.verifier.model) / "config.json"
    said = json.loads(path.read_text()) | {"model_type": "unheard-of"}
    path.write_text(json.dumps(said))
    write_dataset(config, [trace(0)])
    with pytest.raises(ArtifactError, match=r"verifier: transformers can't load it: .*unheard-of"):
        extract(config)


def test_a_model_without_a_final_norm_is_named() -> None:
    """GPT-2 calls it otherwise."""
    shape = transformers.GPT2Config(n_embd=8, n_layer=2, n_head=2, vocab_size=16, n_positions=16)
    model = transformers.GPT2LMHeadModel(shape)
    with pytest.raises(ArtifactError, match=r"GPT2LMHeadModel has no final `norm` to take states at"):
        transformers_backend.states_from(model, torch.tensor([1, 2]), (1, 2))

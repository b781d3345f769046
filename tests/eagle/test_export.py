"""The draft as a server reads it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from eagle.draft_check import check_draft
from eagle.draft_config import Form, LayerNames, Target
from eagle.export import export
from eagle.train import train
from eagle.verify_draft import verify_draft
from synthgen.corpus.config import RunConfig
from synthgen.corpus.manifest import read_manifest
from synthgen.corpus.settings import save_config
from synthgen.corpus.verifier_config import read_shape
from synthgen.errors import ArtifactError, ConfigError
from tests.eagle.tiny import tiny_config, write_run


@pytest.fixture
def prepared(tmp_path: Path) -> RunConfig:
    """A run whose draft hasn't been trained yet."""
    config = tiny_config(tmp_path, train__epochs="1")
    write_run(config)
    return config


def test_untrained_export_is_vllms_layout(prepared: RunConfig) -> None:
    """Names, shapes and types of every tensor; the map has offsets; there is no embedding."""
    export(prepared, untrained=True)
    tensors = load_file(prepared.untrained_path / "model.safetensors")
    found = {name: (str(t.dtype).removeprefix("torch."), list(t.shape)) for name, t in tensors.items()}
    assert found == {
        "d2t": ("int64", [20]),
        "t2d": ("bool", [24]),
        "fc.weight": ("bfloat16", [32, 96]),
        "fc_norm.0.weight": ("bfloat16", [32]),
        "fc_norm.1.weight": ("bfloat16", [32]),
        "fc_norm.2.weight": ("bfloat16", [32]),
        "lm_head.weight": ("bfloat16", [20, 32]),
        "midlayer.hidden_norm.weight": ("bfloat16", [32]),
        "midlayer.input_layernorm.weight": ("bfloat16", [32]),
        "midlayer.mlp.down_proj.weight": ("bfloat16", [32, 48]),
        "midlayer.mlp.gate_proj.weight": ("bfloat16", [48, 32]),
        "midlayer.mlp.up_proj.weight": ("bfloat16", [48, 32]),
        "midlayer.post_attention_layernorm.weight": ("bfloat16", [32]),
        "midlayer.self_attn.k_proj.weight": ("bfloat16", [16, 64]),
        "midlayer.self_attn.o_proj.weight": ("bfloat16", [32, 32]),
        "midlayer.self_attn.q_proj.weight": ("bfloat16", [32, 64]),
        "midlayer.self_attn.v_proj.weight": ("bfloat16", [16, 64]),
        "norm.weight": ("bfloat16", [32]),
    }
    known = tensors["t2d"].nonzero().flatten()
    assert torch.equal(tensors["d2t"] + torch.arange(20), known)


def test_config_is_flat_llama_with_the_layer_ids_where_vllm_counts_them(prepared: RunConfig) -> None:
    """Every key that vLLM 0.32 reads, written out."""
    export(prepared, untrained=True)
    assert msgspec.json.decode((prepared.untrained_path / "config.json").read_bytes()) == {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "max_position_embeddings": 256,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "rms_norm_eps": 1e-6,
        "vocab_size": 24,
        "draft_vocab_size": 20,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "dtype": "bfloat16",
        "norm_before_residual": True,
        "fc_norm": True,
        "norm_output": True,
        "eagle_aux_hidden_state_layer_ids": [2, 4, 5],
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 4, 5], "use_aux_hidden_state": True},
    }


def test_yarn_stands_under_the_old_keys_and_the_new(tmp_path: Path) -> None:
    """`rope_parameters` for transformers 5, `rope_scaling` for older servers; a given factor in both ways."""
    yarn = "{rope_type: yarn, factor: 4.0, original_max_position_embeddings: 64, "
    yarn += "beta_fast: 32, beta_slow: 1, "
    config = tiny_config(tmp_path, draft__rope_scaling=yarn + "attention_factor: null}")
    write_run(config)
    export(config, untrained=True)
    content = msgspec.json.decode((config.untrained_path / "config.json").read_bytes())
    expected = {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
    }
    assert content["rope_scaling"] == expected
    assert content["rope_parameters"] == expected | {"rope_theta": 10000.0}
    assert content["rope_theta"] == 10000.0

    config = tiny_config(tmp_path, draft__rope_scaling=yarn + "attention_factor: 1.0}")
    export(config, untrained=True)
    content = msgspec.json.decode((config.untrained_path / "config.json").read_bytes())
    factors = {"attention_factor": 1.0, "attn_factor": pytest.approx(1 / 1.1386294)}
    assert content["rope_scaling"] == expected | factors


def test_a_full_vocabulary_has_no_map(tmp_path: Path) -> None:
    """When the draft knows every token vLLM has no place for d2t, so there is none."""
    config = tiny_config(tmp_path, vocab__size="24")
    write_run(config)
    export(config, untrained=True)
    tensors = load_file(config.untrained_path / "model.safetensors")
    assert not tensors.keys() & {"d2t", "t2d"}


def test_trained_export_holds_the_last_checkpoint(prepared: RunConfig) -> None:
    """Weights are the newest checkpoint's in bfloat16, and differ from the untrained draft's."""
    with pytest.raises(ArtifactError, match="run `eagle train CONFIG` first"):
        export(prepared)
    train(prepared)
    manifest = export(prepared)
    export(prepared, untrained=True)
    last = max(prepared.checkpoints_path.glob("step-*"))
    weights = load_file(last / "weights.safetensors")
    found = load_file(prepared.export_path / "model.safetensors")
    assert manifest.figures["step"] == int(last.name.removeprefix("step-"))
    assert all(torch.equal(found[name], weight.bfloat16()) for name, weight in weights.items())
    fresh = load_file(prepared.untrained_path / "model.safetensors")
    assert not torch.equal(found["fc.weight"], fresh["fc.weight"])
    assert read_manifest(prepared.export_path) == manifest


def test_an_export_of_this_run_passes_the_check(prepared: RunConfig) -> None:
    """`check_draft` has nothing to say about what `export` wrote."""
    export(prepared, untrained=True)
    check_draft(prepared.untrained_path, read_shape(Path(prepared.verifier.model)))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("hidden_size", 64, r"`hidden_size` is 64; expected 32"),
        ("vocab_size", 30, r"`vocab_size` is 30; expected 24"),
        ("architectures", ["Llama"], r'`architectures` is \["Llama"\]'),
        ("eagle_aux_hidden_state_layer_ids", [2, 4, 8], r"is \[2, 4, 8\]; .* 8 layers"),
        ("eagle_config", {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}, r"is \[1, 3, 4\]; .* \[2, 4, 5\]"),
        ("eagle_config", {}, r"`eagle_aux_hidden_state_layer_ids` is \[\]"),
        ("draft_vocab_size", 10, r"tensor `lm_head.weight` is \[20, 32\]; expected \[10, 32\]"),
        ("head_dim", 16, r"tensor `midlayer.self_attn.k_proj.weight` is \[16, 64\]; expected \[32, 64\]"),
        ("intermediate_size", None, "config.json: .*intermediate_size"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(
    prepared: RunConfig, key: str, value: object, message: str
) -> None:
    """The key, what was found and what this verifier needs."""
    export(prepared, untrained=True)
    path = prepared.untrained_path / "config.json"
    content = msgspec.json.decode(path.read_bytes())
    path.write_bytes(msgspec.json.encode(content | {key: value}))
    with pytest.raises(ArtifactError, match=message):
        check_draft(prepared.untrained_path, read_shape(Path(prepared.verifier.model)))


def test_a_missing_or_misshapen_tensor_is_refused(prepared: RunConfig) -> None:
    """The tensor's name, both shapes; a torn file is named too."""
    export(prepared, untrained=True)
    path, shape = prepared.untrained_path / "model.safetensors", read_shape(Path(prepared.verifier.model))
    tensors = load_file(path)
    save_file(tensors | {"fc.weight": torch.zeros(32, 64)}, path)
    with pytest.raises(ArtifactError, match=r"tensor `fc\.weight` is \[32, 64\]; expected \[32, 96\]"):
        check_draft(prepared.untrained_path, shape)
    save_file({name: t for name, t in tensors.items() if name != "norm.weight"}, path)
    with pytest.raises(ArtifactError, match=r"tensor `norm\.weight` is missing"):
        check_draft(prepared.untrained_path, shape)
    path.write_bytes(b"torn")
    with pytest.raises(ArtifactError, match="can't be read"):
        check_draft(prepared.untrained_path, shape)


def test_another_seed_than_was_trained_is_refused(prepared: RunConfig) -> None:
    """A checkpoint is exported under the settings that made it, or not at all."""
    train(prepared)
    with pytest.raises(ArtifactError, match=r"settings\.seed = 7, this run has 8"):
        export(msgspec.structs.replace(prepared, seed=8))


def names(path: Path) -> set[str]:
    return set(load_file(path / "model.safetensors"))


def test_the_layer_may_be_called_as_vllm_itself_calls_it(prepared: RunConfig) -> None:
    """`layers.0.*` on demand, in a directory of its own: the same tensors, and the default stays as it is."""
    export(prepared, untrained=True)
    default = prepared.untrained_path
    form = Form(layer_names=LayerNames.LAYERS_0)
    export(prepared, untrained=True, form=form)
    path = default.with_name("untrained-layers.0")
    expected, found = load_file(default / "model.safetensors"), load_file(path / "model.safetensors")
    renamed = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in expected.items()}
    assert renamed.keys() == found.keys()
    assert all(torch.equal(renamed[name], found[name]) for name in found)
    assert (path / "config.json").read_bytes() == (default / "config.json").read_bytes()


def test_speculators_config_is_nested_and_names_the_verifier(prepared: RunConfig) -> None:
    """Written out as its own 0.9 writes it, with the layer ids of vLLM."""
    form = Form.of(Target.SPECULATORS, None)
    export(prepared, untrained=True, form=form)
    path = prepared.untrained_path.with_name("untrained-speculators")
    assert {name.split(".")[0] for name in names(path)} == {
        "layers", "fc", "fc_norm", "norm", "lm_head", "d2t", "t2d",
    }  # fmt: skip
    assert msgspec.json.decode((path / "config.json").read_bytes()) == {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "draft_vocab_size": 20,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        "norm_before_residual": True,
        "fc_norm": True,
        "norm_output": True,
        "norm_before_fc": False,
        "embed_requires_grad": False,
        "eagle_aux_hidden_state_layer_ids": [2, 4, 5],
        "transformer_layer_config": {
            "model_type": "llama",
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "max_position_embeddings": 256,
            "rms_norm_eps": 1e-6,
            "vocab_size": 24,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": 3,
                    "verifier_accept_k": 1,
                    "accept_tolerance": 0.0,
                }
            ],
            "verifier": {"name_or_path": prepared.verifier.model, "architectures": []},
        },
    }


@pytest.mark.vllm
def test_vllms_own_parser_reads_the_speculators_config(prepared: RunConfig) -> None:
    """The draft's class, its sizes and flags, and the verifier to serve it with."""
    form = Form.of(Target.SPECULATORS, None)
    export(prepared, untrained=True, form=form)
    path = form.place(prepared.untrained_path)
    command = [sys.executable, "-c", READ_BY_VLLM, str(path)]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert msgspec.json.decode(done.stdout.splitlines()[-1]) == {
        "verifier": prepared.verifier.model,
        "speculative": {"method": "eagle3", "num_speculative_tokens": 3, "model": str(path)},
        "architectures": ["Eagle3LlamaForCausalLM"],
        "eagle_aux_hidden_state_layer_ids": [2, 4, 5],
        "draft_vocab_size": 20,
        "norm_before_residual": True,
        "fc_norm": True,
        "norm_output": True,
        "head_dim": 8,
    }


READ_BY_VLLM = """
import json, sys
from vllm.transformers_utils.config import get_config, maybe_override_with_speculators

verifier, _, speculative = maybe_override_with_speculators(sys.argv[1], None, False)
config = get_config(sys.argv[1], trust_remote_code=False)
names = ("architectures", "eagle_aux_hidden_state_layer_ids", "draft_vocab_size", "norm_before_residual",
         "fc_norm", "norm_output", "head_dim")
found = {name: getattr(config, name) for name in names}
print(json.dumps({"verifier": verifier, "speculative": speculative, **found}))
"""


def test_sglangs_layer_ids_are_one_lower_and_stand_where_it_reads_them(tmp_path: Path) -> None:
    """SGLang adds one to each; at the top vLLM would read them, so there they don't stand."""
    config = tiny_config(tmp_path, draft__norm_before_residual="false")
    write_run(config)
    export(config, untrained=True)
    form = Form.of(Target.SGLANG, None)
    export(config, untrained=True, form=form)
    path = config.untrained_path.with_name("untrained-sglang")
    found, vllms = (
        msgspec.json.decode((directory / "config.json").read_bytes())
        for directory in (path, config.untrained_path)
    )
    assert found["eagle_config"] == {
        "eagle_aux_hidden_state_layer_ids": [1, 3, 4],
        "use_aux_hidden_state": True,
    }
    assert vllms.keys() - found.keys() == {"eagle_aux_hidden_state_layer_ids"}
    assert names(path) == names(config.untrained_path)


def test_a_form_that_its_target_would_misread_is_refused(prepared: RunConfig) -> None:
    """SGLang takes the residual before the norm, whatever the config says; and old ones know no layers.0."""
    with pytest.raises(ConfigError, match=r"--target sglang: .* knows no norm_before_residual"):
        export(prepared, untrained=True, form=Form.of(Target.SGLANG, None))
    assert not prepared.untrained_path.with_name("untrained-sglang").exists()
    for target, other, only in (("sglang", "layers.0", "midlayer"), ("speculators", "midlayer", "layers.0")):
        with pytest.raises(
            ConfigError, match=f"--layer-names {other} doesn't go with .*, which reads {only}"
        ):
            Form.of(Target(target), LayerNames(other))


@pytest.mark.parametrize("target", [*Target])
def test_export_verify_go_on_export_again(tmp_path: Path, target: Target) -> None:
    """Whatever the form: the next run's draft, before a step, has the very same tensors."""
    config = tiny_config(tmp_path, train__epochs="1", draft__norm_before_residual="false")
    write_run(config)
    train(config)
    form = Form.of(target, None)
    export(config, form=form)
    path = form.place(config.export_path)
    assert verify_draft(str(path), config=config).mismatches == ()
    again = tiny_config(
        tmp_path,
        run_dir=str(tmp_path / "again"),
        draft__norm_before_residual="false",
        train__init_from=str(path),
    )
    for name in ("dataset", "states", "vocab"):
        shutil.copytree(config.run_path / name, again.run_path / name)
    export(again, untrained=True, form=form)
    expected = load_file(path / "model.safetensors")
    found = load_file(form.place(again.untrained_path) / "model.safetensors")
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert verify_draft(str(form.place(again.untrained_path)), like=str(path)).mismatches == ()


def test_the_command_takes_target_and_names(prepared: RunConfig, tmp_path: Path) -> None:
    """What `eagle export` says of where the draft is."""
    save_config(prepared, tmp_path / "run.yaml")
    command = [sys.executable, "-m", "eagle", "export", str(tmp_path / "run.yaml"), "--untrained"]
    done = subprocess.run(
        [*command, "--target", "vllm", "--layer-names", "layers.0"],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    path = prepared.untrained_path.with_name("untrained-layers.0")
    assert done.returncode == 0, done.stderr
    assert f"the draft is in {path}\n" in done.stderr
    assert {file.name for file in path.iterdir()} == {
        "README.md", "config.json", "manifest.json", "model.safetensors", "run.yaml",
    }  # fmt: skip

"""What `eagle verify draft` says of a draft."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from eagle.draft_config import DEFAULT, Form, Make, Target, config_content
from eagle.draft_standard import published, run_standard
from eagle.draft_view import local_view
from eagle.export import export
from eagle.taps import TapPoints
from eagle.tensors import NAMES
from eagle.verify_commands import verify
from eagle.verify_draft import verify_draft
from synthgen.corpus.config import RunConfig
from synthgen.corpus.settings import load_config, save_config
from synthgen.corpus.verifier_config import VerifierShape
from synthgen.corpus.verifier_files import HubModel, refused
from synthgen.errors import ArtifactError, ConfigError
from tests.eagle.drafts import (
    AQ_MEDAI_CONFIG,
    EAGLE_3,
    MIDLAYER,
    SPECULATORS,
    SPECULATORS_CONFIG,
    weights,
    write_draft,
)
from tests.eagle.model_hub import ModelHub, model_hub
from tests.eagle.tiny import ROOT, tiny_config, write_run

KIMI = VerifierShape(
    hidden_size=7168,
    vocab_size=163_840,
    num_layers=61,
    rms_norm_eps=1e-5,
    bos_token_id=163_584,
    eos_token_id=163_585,
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    """A run whose draft is exported before its first step, with EAGLE-3.1's norms."""
    config = tiny_config(tmp_path_factory.mktemp("run"))
    write_run(config)
    export(config, untrained=True)
    return config


@pytest.fixture
def draft(run: RunConfig, tmp_path: Path) -> Path:
    """A copy of its export, to be broken."""
    return shutil.copytree(run.untrained_path, tmp_path / "draft")


def lines(draft: Path, config: RunConfig | None = None, like: Path | str | None = None) -> list[str]:
    """What is wrong with a draft."""
    report = verify_draft(str(draft), like=None if like is None else str(like), config=config)
    return [one.line for one in report.mismatches]


def changed_tensors(draft: Path, changed: dict[str, torch.Tensor | None]) -> None:
    """Tensors of the file in place of those it has; None takes one away."""
    path = draft / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()} | changed
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)


def changed_config(draft: Path, **keys: Any) -> None:
    path = draft / "config.json"
    path.write_bytes(msgspec.json.encode(msgspec.json.decode(path.read_bytes()) | keys))


@pytest.mark.parametrize("target", [Target.VLLM, Target.SPECULATORS])
def test_an_export_is_what_its_run_says(run: RunConfig, target: Target) -> None:
    """Against the run, against itself as another's draft, and against its own config."""
    form = Form.of(target, None)
    export(run, untrained=True, form=form)
    path = form.place(run.untrained_path)
    assert lines(path, config=run) == []
    assert lines(path, like=run.untrained_path) == []
    assert lines(path) == []
    assert verify_draft(str(path)).tensors == 18


def test_an_export_for_sglang_counts_as_sglang_does(tmp_path: Path) -> None:
    """Its own manifest says so: the ids one lower are right there, and wrong as anybody else's."""
    config = tiny_config(tmp_path, draft__norm_before_residual="false")
    write_run(config)
    form = Form.of(Target.SGLANG, None)
    export(config, untrained=True, form=form)
    path = form.place(config.untrained_path)
    assert lines(path, config=config) == []
    (path / "manifest.json").unlink()
    assert lines(path, config=config) == [
        "config.json: `eagle_aux_hidden_state_layer_ids` is [1, 3, 4]; expected [2, 4, 5]: each is one "
        "lower, as SGLang counts: vLLM would read the states of one layer before"
    ]


def test_one_wrong_shape_is_one_line(run: RunConfig, draft: Path) -> None:
    """The tensor, the shape that was found and the one that is expected."""
    changed_tensors(draft, {"fc.weight": torch.zeros(32, 64).bfloat16()})
    for found in (lines(draft, config=run), lines(draft), lines(draft, like=run.untrained_path)):
        assert found == ["tensor `fc.weight` is [32, 64]; expected [32, 96]"]


def test_a_missing_tensor_is_one_line(run: RunConfig, draft: Path) -> None:
    """With what it should have been."""
    changed_tensors(draft, {"midlayer.mlp.up_proj.weight": None})
    assert lines(draft, config=run) == [
        "tensor `midlayer.mlp.up_proj.weight` is missing; expected BF16 [48, 32]"
    ]


def test_other_dtypes_and_unknown_tensors_are_lines(run: RunConfig, draft: Path) -> None:
    """float32 weights, a t2d of numbers, a second layer and a bias."""
    tensors = load_file(draft / "model.safetensors")
    changed: dict[str, torch.Tensor | None] = {
        "norm.weight": tensors["norm.weight"].float(),
        "t2d": tensors["t2d"].to(torch.uint8),
        "layers.1.mlp.up_proj.weight": torch.zeros(48, 32),
        "midlayer.self_attn.q_proj.bias": torch.zeros(32),
    }
    changed_tensors(draft, changed)
    assert lines(draft, config=run) == [
        "tensor `layers.1.mlp.up_proj.weight` is F32 [48, 32]; expected no such tensor: a second layer, "
        "where this trainer has one",
        "tensor `midlayer.self_attn.q_proj.bias` is F32 [32]; expected no such tensor: a bias, which this "
        "trainer's Llama layer hasn't",
        "tensor `norm.weight` is F32; expected BF16",
        "tensor `t2d` is U8; expected BOOL",
    ]


def test_a_map_of_absolute_ids_is_one_line(run: RunConfig, draft: Path) -> None:
    """Three ids, the offsets they should be, and how to mend it."""
    known = load_file(draft / "model.safetensors")["t2d"].nonzero().flatten()
    changed_tensors(draft, {"d2t": known})
    first = int((known != known - torch.arange(20)).nonzero()[0])
    ids, offsets = known[first : first + 3].tolist(), (known - torch.arange(20))[first : first + 3].tolist()
    for found in (lines(draft, config=run), lines(draft)):
        assert found == [
            f"tensor `d2t` from row {first} on is {ids}…; expected offsets, id - row: {offsets}…: these are "
            f"the verifier's ids; write it anew with d2t - torch.arange(20)"
        ]


def test_maps_that_contradict_each_other_are_one_line(draft: Path) -> None:
    """Another draft's offsets, rows in another order, and a t2d of another size."""
    tensors = load_file(draft / "model.safetensors")
    d2t, rows = tensors["d2t"], torch.arange(20)
    other, swapped = d2t.clone(), (d2t + rows)
    other[19] -= 1
    swapped[[0, 1]] = swapped[[1, 0]]
    changed_tensors(draft, {"d2t": other})
    (line,) = lines(draft)
    assert line.startswith("tensor `d2t` from row 19 on is [")
    assert line.endswith("1 rows stand for other tokens than t2d marks: the maps of two drafts")
    changed_tensors(draft, {"d2t": swapped - rows})
    (line,) = lines(draft)
    assert line.endswith("the tokens that t2d marks, in another order than its")
    fewer = tensors["t2d"].clone()
    fewer[fewer.nonzero()[0]] = False
    changed_tensors(draft, {"d2t": d2t, "t2d": fewer})
    assert lines(draft) == [
        "tensor `t2d` is true at 19 tokens; expected true at 20, the rows of `lm_head.weight`"
    ]


@pytest.mark.parametrize(
    ("ids", "why"),
    [
        ([1, 3, 4], "each is one lower, as SGLang counts: vLLM would read the states of one layer before"),
        ([3, 5, 6], "each is one higher: the states of one layer later would be read"),
    ],
)
def test_ids_shifted_by_one_are_one_line(run: RunConfig, draft: Path, ids: list[int], why: str) -> None:
    """Against the run's, and against another draft's."""
    eagle = {"eagle_aux_hidden_state_layer_ids": ids, "use_aux_hidden_state": True}
    changed_config(draft, eagle_aux_hidden_state_layer_ids=ids, eagle_config=eagle)
    for found in (lines(draft, config=run), lines(draft, like=run.untrained_path)):
        assert found == [
            f"config.json: `eagle_aux_hidden_state_layer_ids` is {ids}; expected [2, 4, 5]: {why}"
        ]
    assert verify_draft(str(draft)).notes == (
        "nothing says which layers' states it needs: --like or --config would",
    )


def test_ids_that_contradict_each_other_are_one_line(draft: Path) -> None:
    """vLLM reads both places."""
    changed_config(draft, eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 3, 4]})
    assert lines(draft) == [
        "config.json: in `eagle_config` `eagle_aux_hidden_state_layer_ids` is [1, 3, 4]; expected [2, 4, 5]: "
        "as at the top"
    ]


def test_ids_that_are_no_layers_are_one_line(draft: Path) -> None:
    """Also where nothing says which they should be, and where another draft has them, too."""
    ids = {"eagle_aux_hidden_state_layer_ids": [99, -1]}
    changed_config(draft, **ids, eagle_config=ids)
    for like in (None, draft):
        assert lines(draft, like=like) == [
            "config.json: `eagle_aux_hidden_state_layer_ids` is [99, -1]; expected three rising ids above 0, "
            "as vLLM counts them"
        ]


def test_a_standard_that_may_count_as_sglang_does_is_a_note(draft: Path, tmp_path: Path) -> None:
    """A flat config of others doesn't say whose count its ids are: ours aren't wrong by it."""
    other = shutil.copytree(draft, tmp_path / "other")
    (other / "manifest.json").unlink()
    for ids, found in (([1, 3, 4], []), ([0, 2, 3], [None]), ([3, 5, 6], [None])):
        keys = {"eagle_aux_hidden_state_layer_ids": ids}
        changed_config(other, **keys, eagle_config=keys)
        assert len(lines(draft, like=other)) == len(found)
    keys = {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}
    changed_config(other, **keys, eagle_config=keys)
    assert verify_draft(str(draft), like=str(other)).notes == (
        f"`eagle_aux_hidden_state_layer_ids` is [2, 4, 5], in {other} it is [1, 3, 4]: the same layers, if "
        f"one of them counts as SGLang does",
    )


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"num_attention_heads": "many"}, r"config\.json: .*got `str` - at `\$\.num_attention_heads`"),
        ({"num_attention_heads": [4]}, r"at `\$\.num_attention_heads`"),
        ({"hidden_size": "big"}, r"at `\$\.hidden_size`"),
        ({"hidden_size": -32}, r"at `\$\.hidden_size`"),
        ({"intermediate_size": 1 << 62}, r"at `\$\.intermediate_size`"),
        ({"vocab_size": "24"}, r"at `\$\.vocab_size`"),
        ({"draft_vocab_size": [20]}, r"at `\$\.draft_vocab_size`"),
        ({"rope_scaling": "yarn"}, r"at `\$\.rope_scaling`"),
        ({"rope_parameters": [1]}, r"at `\$\.rope_parameters`"),
        ({"rope_parameters": None, "rope_theta": "x"}, r"at `\$\.rope_theta`"),
        ({"rope_parameters": {"rope_theta": "x"}}, r"at `\$\.rope_parameters\.rope_theta`"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 0}}, r"at `\$\.rope_scaling\.factor`"),
        ({"eagle_config": "x"}, r"at `\$\.eagle_config`"),
        ({"eagle_aux_hidden_state_layer_ids": 3}, r"at `\$\.eagle_aux_hidden_state_layer_ids`"),
        ({"transformer_layer_config": "x"}, r"at `\$\.transformer_layer_config`"),
        ({"transformer_layer_config": {"layer_types": 3}}, r"at `\$\.layer_types`"),
    ],
)
def test_a_config_that_can_not_be_read_is_refused(draft: Path, keys: dict[str, Any], told: str) -> None:
    """With its file and the key, whatever it is held against."""
    changed_config(draft, **keys)
    for like in (None, "kimi-k2.5", str(draft)):
        with pytest.raises(ArtifactError, match=told):
            verify_draft(str(draft), like=like)


def test_a_config_without_a_size_is_no_drafts(draft: Path) -> None:
    """Held against another it lacks a key; alone nothing can be told of it."""
    changed_config(draft, hidden_size=None, head_dim=None)
    with pytest.raises(ArtifactError, match=r"config\.json has no 'hidden_size': is it a draft's\?"):
        verify_draft(str(draft))
    assert "config.json: `hidden_size` is null; expected 7168" in lines(draft, like="kimi-k2.5")


@pytest.mark.parametrize("weight_map", [[], {"a": 3}, "x"])
def test_an_index_that_can_not_be_read_is_refused(draft: Path, weight_map: Any) -> None:
    """With its file."""
    (draft / "model.safetensors.index.json").write_bytes(msgspec.json.encode({"weight_map": weight_map}))
    with pytest.raises(ArtifactError, match=r"index\.json: not an index with a weight_map"):
        verify_draft(str(draft))


@pytest.mark.parametrize(
    ("name", "shape"), [("d2t", "[20]"), ("t2d", "[24]"), ("lm_head.weight", "[20, 32]")]
)
def test_a_map_without_axes_is_one_line(draft: Path, name: str, shape: str) -> None:
    """Its shape; what it says isn't read."""
    dtype = load_file(draft / "model.safetensors")[name].dtype
    changed_tensors(draft, {name: torch.ones((), dtype=dtype)})
    assert lines(draft) == [f"tensor `{name}` is []; expected {shape}"]


def test_a_map_of_fractions_is_one_line(draft: Path) -> None:
    """It marks nothing that could be compared."""
    changed_tensors(draft, {"t2d": torch.ones(24).to(torch.float8_e4m3fn)})
    assert lines(draft) == ["tensor `t2d` is F8_E4M3; expected BOOL"]


def test_weights_that_no_draft_has_are_one_line(run: RunConfig, draft: Path) -> None:
    """NaN in one of them, infinity, a head of zeros."""
    tensors = load_file(draft / "model.safetensors")
    broken = tensors["fc.weight"].clone()
    broken[31, 95] = torch.nan
    changed_tensors(draft, {"fc.weight": broken})
    why = ": it was never loaded, or training went wrong"
    for found in (lines(draft), lines(draft, config=run), lines(draft, like=run.untrained_path)):
        assert found == ["tensor `fc.weight` is NaN or infinity; expected finite" + why]
    broken[31, 95] = torch.inf
    head = torch.zeros(20, 32).bfloat16()
    changed_tensors(draft, {"fc.weight": broken, "lm_head.weight": head})
    assert lines(draft) == [
        "tensor `fc.weight` is NaN or infinity; expected finite" + why,
        "tensor `lm_head.weight` is all zero; expected weights" + why,
    ]


def test_an_embedding_of_another_verifier_is_one_line_each(run: RunConfig, draft: Path) -> None:
    """It may be left out; when it is there it has a row for each of the verifier's tokens."""
    changed_tensors(draft, {"embed_tokens.weight": torch.ones(3, dtype=torch.int8)})
    for found in (lines(draft), lines(draft, config=run), lines(draft, like=run.untrained_path)):
        assert found == [
            "tensor `embed_tokens.weight` is [3]; expected [24, 32]",
            "tensor `embed_tokens.weight` is I8; expected BF16",
        ]


def test_what_a_draft_is_called_does_nothing_to_the_terminal(draft: Path) -> None:
    """No markup is read in a name, and no control character reaches the terminal."""
    other = shutil.copytree(draft, draft.parent / "y[" / "red]")
    changed_tensors(draft, {"\x1b[2J": torch.ones(1)})
    done = CliRunner().invoke(verify, ["draft", str(draft), "--like", str(other)])
    assert done.exit_code == 1, done.exception
    first, second = done.stdout.splitlines()
    assert first == f"19 tensors, held against {other}"
    assert second == "wrong: tensor `␛[2J` is F32 [1]; expected no such tensor"


def test_another_config_is_a_line_a_key(run: RunConfig, draft: Path) -> None:
    """Norms, rotary base and scaling, against the run and against another draft."""
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    changed_config(draft, norm_output=False, rms_norm_eps=1e-5, rope_scaling=yarn)
    expected = [
        'config.json: `rope_scaling` is {"factor":4.0, "original_max_position_embeddings":64, '
        '"beta_fast":32, "beta_slow":1, "attention_factor":1.138629}; expected null',
        "config.json: `rms_norm_eps` is 0.00001; expected 1e-6",
        "config.json: `norm_output` is false; expected true",
    ]
    assert sorted(lines(draft, config=run)) == sorted(expected)
    assert sorted(lines(draft, like=run.untrained_path)) == sorted(expected)
    (draft / "config.json").unlink()
    assert "config.json is missing; expected the draft's" in lines(draft, like=run.untrained_path)


def test_drafts_of_others_are_like_one_another(tmp_path: Path) -> None:
    """AQ-MedAI's flat one against speculators': the same tensors, other norms and no fc_norm."""
    flat = write_draft(tmp_path / "flat", weights(MIDLAYER), AQ_MEDAI_CONFIG)
    nested = write_draft(tmp_path / "nested", weights(SPECULATORS), SPECULATORS_CONFIG)
    assert lines(flat, like=flat) == lines(nested, like=nested) == lines(nested) == []
    found = lines(flat, like=nested)
    assert [line for line in found if line.startswith("tensor")] == [
        f"tensor `fc_norm.{at}.weight` is missing; expected BF16 [32]" for at in range(3)
    ]
    assert {line.split("`")[1] for line in found if line.startswith("config")} == {
        "max_position_embeddings",
        "norm_before_residual",
        "fc_norm",
        "norm_output",
    }


def write_kimi(path: Path, config: RunConfig, *, shorten: str = "") -> Path:
    """A full-size Kimi draft without its bytes: a header, and a hole as long as the weights."""
    make = Make(
        draft=config.draft,
        vocab_size=32_000,
        shape=KIMI,
        taps=TapPoints(config.extract.aux_layers, KIMI.num_layers),
    )
    path.mkdir()
    (path / "config.json").write_bytes(msgspec.json.encode(config_content(DEFAULT, make)))
    sizes = {name: dtype.itemsize for dtype, name in NAMES.items()}
    header: dict[str, Any] = {}
    at = 0
    for name, stored in sorted(
        run_standard(make, "run").tensors.items(), key=lambda item: -sizes[item[1].dtype]
    ):
        shape = [one - (name == shorten) for one in stored.shape]
        end = at + torch.Size(shape).numel() * sizes[stored.dtype]
        header[name] = {"dtype": stored.dtype, "shape": shape, "data_offsets": [at, end]}
        at = end
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)
    known_V = torch.zeros(163_840, dtype=torch.bool)
    known_V[::5] = True
    known_V[32_000 * 5 :] = False
    d2t_K = known_V.nonzero().flatten() - torch.arange(32_000)
    with (path / "model.safetensors").open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for name, tensor in (("d2t", d2t_K), ("t2d", known_V), ("lm_head.weight", torch.ones(1))):
            out.seek(8 + len(text) + header[name]["data_offsets"][0])
            out.write(tensor.view(torch.uint8).numpy().data)
        out.truncate(8 + len(text) + at)
    return path


def kimi_config(*settings: str) -> RunConfig:
    """The production run's config."""
    return load_config(ROOT / "configs/kimi-k2.5.yaml", settings)


PUBLISHED_NORMS = ("draft.norm_before_residual=false", "draft.fc_norm=false", "draft.norm_output=false")


def test_a_config_without_llamas_defaults_is_like_the_published_ones(tmp_path: Path) -> None:
    """transformers leaves them out when it saves a config."""
    path = write_kimi(tmp_path / "draft", kimi_config(*PUBLISHED_NORMS))
    content = msgspec.json.decode((path / "config.json").read_bytes())
    for key in ("hidden_act", "attention_bias", "mlp_bias", "tie_word_embeddings"):
        del content[key]
    (path / "config.json").write_bytes(msgspec.json.encode(content))
    assert lines(path, like="kimi-k2.5") == []


def test_a_full_size_kimi_draft_is_like_the_published_ones(tmp_path: Path) -> None:
    """Every shape written out in the shipped manifest; EAGLE-3.1's norms are three notes more."""
    plain = verify_draft(str(write_kimi(tmp_path / "plain", kimi_config(*PUBLISHED_NORMS))), like="kimi-k2.5")
    assert (plain.mismatches, plain.notes, plain.tensors) == ((), (), 15)
    assert plain.against == ("the published drafts of moonshotai/Kimi-K2.5",)
    newer = verify_draft(str(write_kimi(tmp_path / "newer", kimi_config())), like="kimi-k2.5")
    assert newer.mismatches == ()
    assert newer.notes == tuple(
        f"`{norm}` is true, the published drafts of moonshotai/Kimi-K2.5 have false"
        for norm in ("norm_before_residual", "fc_norm", "norm_output")
    )


def test_a_kimi_draft_of_other_sizes_is_not(tmp_path: Path) -> None:
    """A shape, another context than K2's, and ids as SGLang counts."""
    config = kimi_config(*PUBLISHED_NORMS, "extract.aux_layers=[1, 29, 57]")
    path = write_kimi(tmp_path / "draft", config, shorten="midlayer.hidden_norm.weight")
    shared = [
        "tensor `midlayer.hidden_norm.weight` is [7167]; expected [7168]",
        "config.json: `eagle_aux_hidden_state_layer_ids` is [1, 29, 57]; expected [2, 30, 58]: each is one "
        "lower, as SGLang counts: vLLM would read the states of one layer before",
    ]
    assert lines(path, like="kimi-k2.5") == shared
    context = "config.json: `max_position_embeddings` is 262144; expected 131072"
    assert lines(path, like="kimi-k2") == [shared[0], context, shared[1]]


def test_the_shipped_manifests_have_the_published_sizes() -> None:
    """1.19 G weights: what the published drafts' files hold beside their map."""
    for name in ("kimi-k2", "kimi-k2.5"):
        tensors = published(name).tensors
        numel = sum(torch.Size(t.shape).numel() for n, t in tensors.items() if n not in ("d2t", "t2d"))
        assert numel == 1_190_948_864
        assert tensors["fc.weight"].shape == (7168, 21504)
        assert tensors["midlayer.self_attn.q_proj.weight"].shape == (8192, 14336)


def test_of_a_hubs_draft_headers_and_map_are_read(run: RunConfig, tmp_path: Path) -> None:
    """`--like` a hub's: config and header; the draft itself on the hub: its map as well, never a weight."""
    with model_hub(shutil.copytree(run.untrained_path, tmp_path / "hub")) as hub:
        done = command(tmp_path, hub, str(run.untrained_path), "--like", "org/model@main")
        assert done.returncode == 0, done.stderr
        assert done.stdout == "18 tensors, held against org/model@main\nnothing wrong\n"
        assert header_bytes(hub) == {(0, 8)}
        hub.asked.clear()
        done = command(tmp_path, hub, "org/model", "--like", "kimi-k2", "--json")
        assert done.returncode == 1
        report = msgspec.json.decode(done.stdout)
        assert report["mismatches"][0] == {
            "what": "tensor `d2t`",
            "found": "[20]",
            "expected": "[32000]",
        }
        assert len(header_bytes(hub)) == 3


def test_an_export_on_the_hub_says_whose_count_its_ids_are(tmp_path: Path) -> None:
    """By the manifest beside it, as it does here."""
    config = tiny_config(tmp_path, draft__norm_before_residual="false")
    write_run(config)
    export(config, untrained=True)
    form = Form.of(Target.SGLANG, None)
    export(config, untrained=True, form=form)
    with model_hub(form.place(config.untrained_path)) as hub:
        done = command(tmp_path, hub, "org/model", "--like", str(config.untrained_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert "note: its weights weren't read: of a hub's draft only headers and maps are\n" in done.stdout


def test_a_hub_that_fails_is_told_of_the_argument(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It wasn't `verifier.model` that named it, and what is wanted is a draft."""
    (tmp_path / "model.safetensors").write_bytes(b"0" * 64)
    with model_hub(tmp_path) as hub:
        hub.ranges = False
        done = command(tmp_path, hub, "org/model")
    assert "drops the Range header: download it and set DRAFT to its directory" in done.stderr
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    error = refused(HubModel("org/model", None, "--like"), "config.json", OSError("no answer"))
    assert str(error).endswith("run the same command again, or set --like to a directory here")


def header_bytes(hub: ModelHub) -> set[tuple[int, int]]:
    """Which ranges of the weights were asked for, but the header itself."""
    spans = {one.span for one in hub.asked if one.file == "model.safetensors" and one.method == "GET"}
    assert None not in spans, "the whole file was asked for"
    return {span for span in spans if span is not None and span[0] != 8}


def test_a_draft_that_the_hub_has_not(tmp_path: Path) -> None:
    """The argument, and what to do."""
    (tmp_path / "hub").mkdir()
    with model_hub(tmp_path / "hub") as hub:
        done = command(tmp_path, hub, "org/nothing")
    assert done.returncode == 2
    assert "error: DRAFT org/nothing: no directory here" in done.stderr
    assert "the hub has no such model, or it is private" in done.stderr


def command(tmp_path: Path, hub: ModelHub | None, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line, in a process whose hub is this machine's."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    clean |= {"HF_HOME": str(tmp_path / "hf"), "PYTHONPATH": str(ROOT), "NO_PROXY": "127.0.0.1"}
    if hub is not None:
        clean["HF_ENDPOINT"] = hub.url
    return subprocess.run(
        [sys.executable, "-m", "eagle", "verify", "draft", *arguments],
        env=clean,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def test_the_command_ends_with_1_and_a_line(run: RunConfig, draft: Path, tmp_path: Path) -> None:
    """On stdout, one line for each thing; 2 for arguments that don't go together."""
    save_config(run, tmp_path / "run.yaml")
    changed_tensors(draft, {"norm.weight": torch.zeros(31).bfloat16()})
    done = command(tmp_path, None, str(draft), "--config", str(tmp_path / "run.yaml"))
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        f"18 tensors, held against the run of {run.run_dir}",
        "wrong: tensor `norm.weight` is [31]; expected [32]",
    ]


def test_without_a_draft_the_runs_own_export_is_meant(run: RunConfig, tmp_path: Path) -> None:
    """Here it isn't exported yet; without a run there is nothing to look at."""
    save_config(run, tmp_path / "run.yaml")
    done = CliRunner().invoke(verify, ["draft", "--config", str(tmp_path / "run.yaml")])
    assert done.exit_code != 0
    assert "eagle export CONFIG" in " ".join(done.stderr.split())
    done = CliRunner().invoke(verify, ["draft"])
    assert done.exit_code == 2
    assert "nothing to verify: name a draft, or with --config the run" in " ".join(done.stderr.split())


def test_arguments_that_do_not_go_together_are_refused(draft: Path) -> None:
    """Each with what to do."""
    with pytest.raises(ConfigError, match=r"--serve needs a verifier, its server and prompts: .* --config"):
        verify_draft(str(draft), serve=True)
    with pytest.raises(ConfigError, match=r"--like kimi: neither a shipped manifest \(kimi-k2, kimi-k2\.5\)"):
        verify_draft(str(draft), like="kimi")
    with pytest.raises(ConfigError, match=r"DRAFT nothing: no directory or file here .*, and no hub id"):
        verify_draft("nothing")
    with pytest.raises(ConfigError, match=r"DRAFT is empty: name a directory"):
        verify_draft("")
    with pytest.raises(ConfigError, match=r"--like is empty: name a directory"):
        verify_draft(str(draft), like="")


def test_a_draft_with_an_embedding_of_its_own_is_no_other_draft(tmp_path: Path) -> None:
    """Whether one is stored is the trainer's choice; its shape is the verifier's."""
    config = tiny_config(tmp_path, **EAGLE_3)
    write_run(config)
    export(config, untrained=True)
    path = config.untrained_path
    changed_tensors(path, {"embed_tokens.weight": torch.zeros(24, 32)})
    assert lines(path, config=config) == []
    assert local_view(str(path)).tensors["embed_tokens.weight"].shape == (24, 32)

"""Training that begins with a previous draft."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from eagle.checkpoint import checkpoints
from eagle.export import export
from eagle.init_from import first_draft, init_inputs, moved_head
from eagle.train import train
from eagle.vocab import load_vocab, make_vocab
from synthgen.corpus.config import RunConfig
from synthgen.corpus.files import sha256_of
from synthgen.corpus.manifest import read_manifest, write_manifest
from synthgen.corpus.settings import save_config
from synthgen.errors import ArtifactError, ConfigError
from tests.eagle.drafts import (
    AQ_MEDAI_CONFIG,
    EAGLE_3,
    KNOWN,
    MIDLAYER,
    SPECFORGE,
    SPECULATORS,
    SPECULATORS_CONFIG,
    UNKNOWN,
    weights,
    write_draft,
    write_sharded,
)
from tests.eagle.tiny import counting_weights, tiny_config, write_run


def begun(config: RunConfig) -> dict[str, torch.Tensor]:
    """The run's draft before its first step."""
    init_inputs(config)
    draft = first_draft(config, counting_weights(), load_vocab(config.vocab_path), fresh=True)
    return {name: weight.detach() for name, weight in draft.named_parameters()}


def exported(config: RunConfig, *, untrained: bool = False) -> dict[str, torch.Tensor]:
    export(config, untrained=untrained)
    path = config.untrained_path if untrained else config.export_path
    return load_file(path / "model.safetensors")


@pytest.fixture
def first(tmp_path: Path) -> RunConfig:
    """A run that is trained and exported."""
    config = tiny_config(tmp_path / "first", train__epochs="1")
    write_run(config)
    train(config)
    export(config)
    return config


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("family", ["midlayer", "specforge", "speculators", "sharded"])
def test_each_family_is_taken_over_as_float32(tmp_path: Path, family: str, dtype: torch.dtype) -> None:
    """Every weight as it was stored, and the head's rows at their tokens."""
    config = tiny_config(tmp_path, **({} if family == "speculators" else EAGLE_3))
    write_run(config)
    shapes = {"specforge": SPECFORGE, "speculators": SPECULATORS}.get(family, MIDLAYER)
    content = SPECULATORS_CONFIG if family == "speculators" else AQ_MEDAI_CONFIG
    tensors = weights(shapes, dtype)
    write = write_sharded if family == "sharded" else write_draft
    path = write(tmp_path / "previous", tensors, content)
    found = begun(with_draft(config, path))
    wanted = load_vocab(config.vocab_path).target_ids_K.tolist()
    compared = 0
    for stored, tensor in tensors.items():
        name = stored.replace("layers.0.", "midlayer.")
        if name in found and name != "lm_head.weight":
            assert found[name].dtype is torch.float32
            assert torch.equal(found[name], tensor.float()), name
            compared += 1
    assert compared == len(found) - 1
    kept = [token for token in wanted if token in KNOWN]
    assert len(kept) >= 16
    for token in kept:
        row = found["lm_head.weight"][wanted.index(token)]
        assert torch.equal(row, tensors["lm_head.weight"][KNOWN.index(token)].float())


def test_an_export_is_gone_on_from_bit_for_bit(first: RunConfig, tmp_path: Path) -> None:
    """train, export, begin with the export, export before a step: the very same tensors."""
    again = tiny_config(tmp_path / "first", run_dir=str(tmp_path / "again"), train__epochs="1")
    copy_inputs(first, again)
    again = with_draft(again, first.export_path)
    expected, found = exported(first), exported(again, untrained=True)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    manifest = read_manifest(again.untrained_path)
    assert manifest is not None
    assert manifest.inputs["init_from"] == sha256_of(first.export_path / "model.safetensors")


def test_what_a_checkpoint_follows_is_not_made(first: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the export of a trained draft nor going on with its training draws any weights."""
    monkeypatch.setattr("eagle.init_from.build_draft", None)
    shutil.rmtree(first.export_path)
    last = load_file(checkpoints(first.checkpoints_path)[-1] / "weights.safetensors")
    found = exported(first)
    assert all(torch.equal(found[name], weight.bfloat16()) for name, weight in last.items())


def test_a_checkpoint_is_gone_on_from_bit_for_bit(first: RunConfig, tmp_path: Path) -> None:
    """Its float32 masters, with the vocabulary and the settings of its run."""
    again = tiny_config(tmp_path / "first", run_dir=str(tmp_path / "again"))
    copy_inputs(first, again)
    last = checkpoints(first.checkpoints_path)[-1]
    found, expected = begun(with_draft(again, last)), load_file(last / "weights.safetensors")
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    other = tiny_config(tmp_path / "first", run_dir=str(tmp_path / "again"), extract__aux_layers="[1, 3, 4]")
    with pytest.raises(ArtifactError, match=r"aux layers \[2, 4, 5\], this run's states are of \[1, 3, 4\]"):
        init_inputs(with_draft(other, last))


def test_training_records_it_and_goes_on_without_it(first: RunConfig, tmp_path: Path) -> None:
    """The manifest has path and sha256; the draft may be gone then, but the setting may not change."""
    settings = {"run_dir": str(tmp_path / "again"), "train__epochs": "1", "train__checkpoint_steps": "2"}
    again = tiny_config(tmp_path / "first", **settings)
    copy_inputs(first, again)
    source = tmp_path / "source"
    shutil.copytree(first.export_path, source)
    config = with_draft(again, source)
    manifest = train(config)
    assert manifest is not None
    assert manifest.settings["train"]["init_from"] == str(source)
    assert manifest.inputs["init_from"] == sha256_of(source / "model.safetensors")
    expected = load_file(checkpoints(config.checkpoints_path)[-1] / "weights.safetensors")

    shutil.rmtree(source)
    shutil.rmtree(checkpoints(config.checkpoints_path)[-1])
    unfinished = msgspec.structs.replace(manifest, complete=False, figures={})
    write_manifest(config.checkpoints_path, unfinished)
    train(config)
    found = load_file(checkpoints(config.checkpoints_path)[-1] / "weights.safetensors")
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    with pytest.raises(ArtifactError, match=r"settings\.train\.init_from = '.*source', this run has None"):
        train(again)


def test_another_draft_in_its_place_is_refused(first: RunConfig, tmp_path: Path) -> None:
    """The untrained export is the draft that training began with, or none."""
    again = tiny_config(tmp_path / "first", run_dir=str(tmp_path / "again"), train__epochs="1")
    copy_inputs(first, again)
    source = tmp_path / "source"
    shutil.copytree(first.export_path, source)
    config = with_draft(again, source)
    train(config)
    path = source / "model.safetensors"
    save_file({name: tensor.clone() for name, tensor in load_file(path).items()}, path, metadata={"a": "b"})
    with pytest.raises(ArtifactError, match=r"has sha256 .*, the training in .* began with"):
        export(config, untrained=True)


def test_nothing_is_written_when_it_does_not_fit(tmp_path: Path) -> None:
    """Every difference at once, before there is a manifest."""
    config = tiny_config(tmp_path)
    write_run(config)
    path = write_draft(tmp_path / "previous", weights(MIDLAYER), AQ_MEDAI_CONFIG)
    with pytest.raises(ArtifactError) as raised:
        train(with_draft(config, path))
    assert str(raised.value).splitlines() == [
        f"train.init_from {path} is no beginning for this run's draft:",
        "  tensor `fc_norm.0.weight` [32] is missing: set draft.fc_norm",
        "  tensor `fc_norm.1.weight` [32] is missing: set draft.fc_norm",
        "  tensor `fc_norm.2.weight` [32] is missing: set draft.fc_norm",
        "  config.json: `norm_before_residual` is false, this run's is true: "
        "set draft.norm_before_residual: false",
        "  config.json: `fc_norm` is false, this run's is true: set draft.fc_norm: false",
        "  config.json: `norm_output` is false, this run's is true: set draft.norm_output: false",
    ]
    assert [path.name for path in config.checkpoints_path.iterdir()] == ["lock"]
    with pytest.raises(ArtifactError, match="is no beginning for this run's draft"):
        export(with_draft(config, path), untrained=True)


def test_the_flag_is_the_setting(tmp_path: Path) -> None:
    """`--init-from` is laid over the YAML, whatever its characters mean there."""
    config = tiny_config(tmp_path)
    write_run(config, samples=2)
    save_config(config, tmp_path / "run.yaml")
    command = [sys.executable, "-m", "eagle", "train", str(tmp_path / "run.yaml"), "--init-from", "a: [b"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 2
    assert "a: [b: no such directory or file" in done.stderr


def test_weights_that_were_never_loaded_are_refused(tmp_path: Path) -> None:
    """NaN in a tensor is found before training."""
    config = tiny_config(tmp_path, **EAGLE_3)
    write_run(config)
    tensors = weights(MIDLAYER) | {"lm_head.weight": torch.full((20, 32), torch.nan)}
    path = write_draft(tmp_path / "previous", tensors, AQ_MEDAI_CONFIG)
    with pytest.raises(ArtifactError, match=r"tensor `lm_head\.weight` holds NaN or infinity"):
        init_inputs(with_draft(config, path))


ROWS_VH = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 1.0], [-1.0, 5.0], [2.0, 2.0]])


def test_rows_go_by_token() -> None:
    """Tokens 1 and 3 were known as rows 0 and 1; of 0, 1 and 3 two are taken over."""
    previous_KH = torch.tensor([[7.0, 8.0], [9.0, 10.0]])
    head_KH, known = moved_head(previous_KH, torch.tensor([1, 3]), ROWS_VH, torch.tensor([0, 1, 3]))
    assert known == 2
    assert head_KH[1:].tolist() == [[7.0, 8.0], [9.0, 10.0]]


@given(st.sets(st.integers(0, 4), min_size=1), st.sets(st.integers(0, 4), min_size=1))
def test_a_shared_token_keeps_its_row(before: set[int], after: set[int]) -> None:
    """Whatever the two vocabularies are, and no row is left unset."""
    ids_K, wanted_K = torch.tensor(sorted(before)), torch.tensor(sorted(after))
    rows_KH = torch.stack((ids_K.float(), ids_K.float() ** 2), dim=1)
    head_KH, known = moved_head(rows_KH, ids_K, ROWS_VH, wanted_K)
    assert known == len(before & after)
    assert head_KH.isfinite().all()
    for token, row in zip(sorted(after), head_KH.tolist(), strict=True):
        assert token not in before or row == [token, token**2]


def test_a_verifiers_head_goes_on_as_the_verifiers() -> None:
    """Rows of new tokens are the verifier's, exactly, when the rows there were its own in bfloat16."""
    ids_K = torch.tensor([0, 2, 3])
    verifier_VH = ROWS_VH + 0.001
    head_KH, known = moved_head(verifier_VH[ids_K].bfloat16().float(), ids_K, verifier_VH, torch.arange(5))
    assert known == 3
    assert torch.equal(head_KH[[1, 4]], verifier_VH[[1, 4]])


def test_a_trained_head_keeps_its_scale_and_shift() -> None:
    """Rows that are 3 times the verifier's plus (1, -2): new ones too."""
    ids_K = torch.tensor([0, 2, 3])
    shift_H = torch.tensor([1.0, -2.0])
    head_KH, _ = moved_head(3 * ROWS_VH[ids_K] + shift_H, ids_K, ROWS_VH, torch.arange(5))
    torch.testing.assert_close(head_KH, 3 * ROWS_VH + shift_H)


def test_a_head_of_its_own_gives_new_tokens_the_mean_row() -> None:
    """Where its rows say nothing of the verifier's, a token begins as likely as the mean."""
    verifier_VH = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [5.0, 5.0]])
    rows_KH = torch.tensor([[2.0, 4.0], [2.0, 8.0]])  # differ across the direction in which its own do
    head_KH, _ = moved_head(rows_KH, torch.tensor([0, 1]), verifier_VH, torch.arange(3))
    assert head_KH[2].tolist() == [2.0, 6.0]


def test_the_vocabulary_of_a_draft_can_be_kept(tmp_path: Path) -> None:
    """Its 20 tokens, so that all rows are taken over; another size is refused with the right one."""
    path = write_draft(tmp_path / "previous", weights(MIDLAYER), AQ_MEDAI_CONFIG)
    write_run(tiny_config(tmp_path))
    shutil.rmtree(tiny_config(tmp_path).vocab_path)
    with pytest.raises(
        ConfigError, match=r"vocab\.size is 12, vocab\.from_draft .* has 20 tokens: set it to that"
    ):
        make_vocab(tiny_config(tmp_path, vocab__from_draft=str(path), vocab__size="12"))
    config = tiny_config(tmp_path, vocab__from_draft=str(path), **EAGLE_3)
    make_vocab(config)
    vocab = load_vocab(config.vocab_path)
    assert vocab.target_ids_K.tolist() == KNOWN
    assert not vocab.t2d_V[list(UNKNOWN)].any()
    found = begun(with_draft(config, path))
    assert torch.equal(found["lm_head.weight"], weights(MIDLAYER)["lm_head.weight"].float())


def with_draft(config: RunConfig, path: Path) -> RunConfig:
    """The same run, begun with the draft at `path`."""
    trained = msgspec.structs.replace(config.train, init_from=str(path))
    return msgspec.structs.replace(config, train=trained)


def copy_inputs(source: RunConfig, target: RunConfig) -> None:
    """Give another run the dataset, the states and the vocabulary of the first."""
    for name in ("dataset", "states", "vocab"):
        shutil.copytree(source.run_path / name, target.run_path / name)

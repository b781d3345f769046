"""Verifier weights by key: plain, sharded, nested and tied layouts; other tensors are never read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from eagle.verifier import read_weights
from eagle.verifier_tensors import INDEX_FILE
from synthgen.errors import ArtifactError

V, H = 6, 4


def weights(prefix: str = "", *, head: bool = True, rows: int = V) -> dict[str, torch.Tensor]:
    """The three tensors under their usual names, and one that doesn't matter."""
    found = {
        f"{prefix}model.embed_tokens.weight": torch.full((rows, H), 1.0).bfloat16(),
        f"{prefix}model.norm.weight": torch.full((H,), 2.0).bfloat16(),
        f"{prefix}model.layers.0.mlp.weight_packed": torch.zeros(3, dtype=torch.int32),
    }
    if head:
        found[f"{prefix}lm_head.weight"] = torch.full((rows, H), 3.0).bfloat16()
    return found


def checkpoint(
    path: Path,
    tensors: dict[str, torch.Tensor],
    *,
    files: int = 1,
    nested: bool = False,
    rows: int = V,
    tied: bool | None = None,
) -> Path:
    """A checkpoint directory in one file, or sharded with an index."""
    path.mkdir()
    text = {"hidden_size": H, "vocab_size": rows, "num_hidden_layers": 2}
    text |= {} if tied is None else {"tie_word_embeddings": tied}
    (path / "config.json").write_text(json.dumps({"text_config": text} if nested else text))
    if files == 1:
        save_file(tensors, path / "model.safetensors")
        return path
    weight_map = {}
    for number, (name, tensor) in enumerate(tensors.items()):
        file = f"model-{number % files:05d}.safetensors"
        weight_map[name] = file
        have = (
            {} if not (path / file).exists() else {n: tensors[n] for n, f in weight_map.items() if f == file}
        )
        save_file({**have, name: tensor}, path / file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return path


@pytest.mark.parametrize(
    ("prefix", "files", "nested"), [("", 1, False), ("", 2, False), ("language_model.", 3, True)]
)
def test_every_layout_reads_alike(tmp_path: Path, prefix: str, files: int, nested: bool) -> None:
    """One file, several with an index, and Kimi-K2.5's nested names."""
    found = read_weights(checkpoint(tmp_path / "m", weights(prefix), files=files, nested=nested))
    assert set(found.embedding_VH.flatten().tolist()) == {1.0}
    assert found.norm_H.tolist() == [2.0] * H
    assert set(found.head_VH.flatten().tolist()) == {3.0}
    assert found.head_VH.dtype == torch.bfloat16


@pytest.mark.parametrize("tied", [None, True])
def test_a_tied_head_is_the_embedding(tmp_path: Path, tied: bool | None) -> None:
    """SmolLM2 stores no head of its own; not every config says so."""
    found = read_weights(checkpoint(tmp_path / "m", weights(head=False), tied=tied))
    assert found.head_VH is found.embedding_VH


@pytest.mark.parametrize("nested", [False, True])
def test_a_head_beside_tied_embeddings_is_passed_over(tmp_path: Path, nested: bool) -> None:
    """As vLLM and transformers do, who look at the config alone."""
    found = read_weights(checkpoint(tmp_path / "m", weights(), tied=True, nested=nested))
    assert set(found.head_VH.flatten().tolist()) == {1.0}


def test_a_head_that_is_missing_and_not_tied_is_named(tmp_path: Path) -> None:
    """An incomplete checkpoint must not pass for a tied one."""
    with pytest.raises(ArtifactError, match=r"no tensor `lm_head\.weight`.* says that it isn't tied"):
        read_weights(checkpoint(tmp_path / "m", weights(head=False), tied=False))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_three_are_read_as_they_are_stored(tmp_path: Path, dtype: torch.dtype) -> None:
    """Whatever the experts beside them are quantised to."""
    stored = {name: tensor.to(dtype) for name, tensor in weights().items() if tensor.is_floating_point()}
    stored["model.layers.0.mlp.experts.0.up_proj.weight"] = torch.zeros(4, 4).to(torch.float8_e4m3fn)
    stored["model.layers.0.mlp.experts.0.up_proj.weight_scale_inv"] = torch.ones(1)
    stored["vision_tower.patch_embed.proj.weight"] = torch.zeros(2, 3)
    found = read_weights(checkpoint(tmp_path / "m", stored, files=4))
    assert {found.embedding_VH.dtype, found.norm_H.dtype, found.head_VH.dtype} == {dtype}


@pytest.mark.parametrize("files", [1, 3])
@pytest.mark.parametrize(
    ("name", "dtype", "stored", "told"),
    [
        ("lm_head.weight", torch.float8_e4m3fn, "lm_head.weight", "F8_E4M3"),
        ("model.embed_tokens.weight", torch.int8, "model.embed_tokens.weight", "I8"),
        ("lm_head.weight", torch.int32, "lm_head.weight_packed", "lm_head.weight_packed"),
        (
            "model.embed_tokens.weight",
            torch.int32,
            "model.embed_tokens.qweight",
            "model.embed_tokens.qweight",
        ),
    ],
)
def test_a_quantised_one_of_the_three_is_refused_by_name(
    tmp_path: Path, files: int, name: str, dtype: torch.dtype, stored: str, told: str
) -> None:
    """A head in fp8 or int4 is no head to train against; it isn't taken for a tied one either."""
    tensors = weights()
    tensors[stored] = tensors.pop(name).to(dtype)
    with pytest.raises(
        ArtifactError, match=rf"`{name}` is quantised \({told}\): embedding, final norm and head"
    ):
        read_weights(checkpoint(tmp_path / "m", tensors, files=files))


def sharded(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A checkpoint in two files, and the map in its index."""
    path = checkpoint(tmp_path / "m", weights(), files=2)
    return path, json.loads((path / INDEX_FILE).read_text())["weight_map"]


def test_a_shard_that_is_not_there_is_named(tmp_path: Path) -> None:
    """A download that ended early."""
    path, weight_map = sharded(tmp_path)
    (path / weight_map["model.norm.weight"]).unlink()
    with pytest.raises(
        ArtifactError, match=r"model-00001\.safetensors: no such file, but model\.safetensors"
    ):
        read_weights(path)


def test_a_tensor_that_its_shard_has_not_is_named(tmp_path: Path) -> None:
    """The index of one version beside the shards of another."""
    path, weight_map = sharded(tmp_path)
    weight_map["lm_head.weight"] = "model-00000.safetensors"
    (path / INDEX_FILE).write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ArtifactError, match=r"says that `lm_head\.weight` is in model-00000\.safetensors"):
        read_weights(path)


@pytest.mark.parametrize("file", ["../x.safetensors", "/etc/x", "a/../../x", "..", "", "a/b", "..\\x"])
def test_an_index_that_leaves_its_directory_is_refused(tmp_path: Path, file: str) -> None:
    """Also for a tensor that nobody reads."""
    path, weight_map = sharded(tmp_path)
    (path / INDEX_FILE).write_text(json.dumps({"weight_map": weight_map | {"model.layers.0.x": file}}))
    with pytest.raises(
        ArtifactError, match=r"weight_map puts `model\.layers\.0\.x` into .*no plain file name"
    ):
        read_weights(path)


@pytest.mark.parametrize("text", ["{", "{}", "[]", '{"weight_map": [1]}', '{"weight_map": {"a": 1}}'])
def test_what_is_no_index_is_named(tmp_path: Path, text: str) -> None:
    """Broken JSON, or JSON of something else."""
    path, _ = sharded(tmp_path)
    (path / INDEX_FILE).write_text(text)
    with pytest.raises(ArtifactError, match=r"index\.json: not an index with a weight_map"):
        read_weights(path)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "not a whole safetensors file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "a Git LFS pointer"),
        ((2).to_bytes(8, "little") + b"[]", "damaged header"),
        ((14).to_bytes(8, "little") + b'{"a":{"b":[]}}', "damaged header"),
    ],
)
def test_what_is_no_safetensors_file_is_named(tmp_path: Path, content: bytes, told: str) -> None:
    """Not a traceback of the library."""
    path = checkpoint(tmp_path / "m", weights())
    (path / "model.safetensors").write_bytes(content)
    with pytest.raises(ArtifactError, match=rf"m/model\.safetensors: .*{told}"):
        read_weights(path)


def test_a_file_that_was_cut_is_named(tmp_path: Path) -> None:
    """Its header is whole, its last tensor isn't."""
    path = checkpoint(tmp_path / "m", weights())
    whole = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(whole[:-4])
    with pytest.raises(ArtifactError, match=r"m/model\.safetensors: damaged: .*download it again"):
        read_weights(path)


MIB = 1 << 20


def test_a_checkpoint_in_the_shape_of_kimi_is_read_in_bounded_memory(tmp_path: Path) -> None:
    """Embedding and head of 112 MiB each are mapped, not read; the draft's head takes itself and a few rows.

    4,096 rows of the head are 112 MiB in float32; the pages of the file that they are on are at most 112.
    Pieces take 42 MiB, up to three of which an allocator may keep; all rows at once would take 168.
    """
    for _ in range(2):  # written, then measured in a process of its own
        done = subprocess.run(
            [sys.executable, "-m", "tests.eagle.kimi_shape", str(tmp_path / "kimi"), "8192", "4096", "5"],
            cwd=Path(__file__).parents[2],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=True,
        )
    found = json.loads(done.stdout)
    assert found["read_weights"][1] < 8 * MIB
    assert found["verifier_head"][1] < 8 * MIB
    assert 112 * MIB < found["copy_head"][1] < (112 + 112 + 3 * 42) * MIB


@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "model.norm.weight"])
def test_a_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    """The key stands in the error."""
    tensors = weights()
    del tensors[name]
    with pytest.raises(ArtifactError, match=f"no tensor `{name}`"):
        read_weights(checkpoint(tmp_path / "m", tensors))


def test_a_shape_that_config_json_contradicts_is_named(tmp_path: Path) -> None:
    """Both shapes stand in the error."""
    tensors = weights() | {"lm_head.weight": torch.zeros(V + 1, H)}
    with pytest.raises(ArtifactError, match=r"`lm_head\.weight` is \(7, 4\), config\.json says \(6, 4\)"):
        read_weights(checkpoint(tmp_path / "m", tensors))


def test_a_directory_without_weights_is_named(tmp_path: Path) -> None:
    """It may hold a config and nothing else."""
    path = checkpoint(tmp_path / "m", weights())
    (path / "model.safetensors").unlink()
    with pytest.raises(
        ArtifactError, match=r"neither model\.safetensors nor model\.safetensors\.index\.json"
    ):
        read_weights(path)

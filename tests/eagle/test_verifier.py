"""Verifier weights by key: plain, sharded, nested and tied layouts; other tensors are never read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from eagle.verifier import read_weights
from synthgen.errors import ArtifactError

V, H = 6, 4


def weights(prefix: str = "", *, head: bool = True) -> dict[str, torch.Tensor]:
    """The three tensors under their usual names, and one that doesn't matter."""
    found = {
        f"{prefix}model.embed_tokens.weight": torch.full((V, H), 1.0).bfloat16(),
        f"{prefix}model.norm.weight": torch.full((H,), 2.0).bfloat16(),
        f"{prefix}model.layers.0.mlp.weight_packed": torch.zeros(3, dtype=torch.int32),
    }
    if head:
        found[f"{prefix}lm_head.weight"] = torch.full((V, H), 3.0).bfloat16()
    return found


def checkpoint(path: Path, tensors: dict[str, torch.Tensor], *, files: int = 1, nested: bool = False) -> Path:
    """A checkpoint directory in one file, or sharded with an index."""
    path.mkdir()
    text = {"hidden_size": H, "vocab_size": V, "num_hidden_layers": 2}
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


def test_a_tied_head_is_the_embedding(tmp_path: Path) -> None:
    """SmolLM2 stores no head of its own."""
    found = read_weights(checkpoint(tmp_path / "m", weights(head=False)))
    assert torch.equal(found.head_VH, found.embedding_VH)


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

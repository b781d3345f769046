"""A checkpoint directory in the shape of Kimi-K2.5's: its names, its nested config, its packed neighbours.

Embedding, norm and head have the full hidden size, and as many rows as are asked for; the 61 layers of
experts and the vision tower are a few small tensors. By hand, 4.7 GB, then what each reader takes:

    python -m tests.eagle.kimi_shape DIRECTORY
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from eagle.draft import copy_head
from eagle.loss import verifier_head
from eagle.verifier import read_weights
from eagle.vocab import VocabMap

HIDDEN, VOCAB, DRAFT_VOCAB, SHARDS = 7168, 163_840, 32_000, 64
LAYERS = 61
BLOCK_ROWS = 1024
"""Rows written at a time."""
ITEM_BYTES = {"BF16": 2, "I32": 4, "F32": 4}
Tensors = dict[str, tuple[str, tuple[int, ...]]]
"""Data type and shape of each tensor of a file."""


def neighbours(shard: int) -> Tensors:
    """What a shard has beside the three: experts in int4, packed by eights, with their scales."""
    stem = f"language_model.model.layers.{min(shard, LAYERS - 1)}.mlp.experts.{shard}.down_proj"
    return {
        f"{stem}.weight_packed": ("I32", (16, 8)),
        f"{stem}.weight_scale": ("BF16", (16, 2)),
        f"{stem}.weight_shape": ("I32", (2,)),
        f"vision_tower.encoder.blocks.{shard}.norm0.weight": ("BF16", (16,)),
    }


def write_kimi_shape(directory: Path, rows: int = VOCAB, shards: int = SHARDS) -> None:
    """Write the directory; value 0 of row i of embedding and head is i % 256, the rest is noise."""
    directory.mkdir(parents=True)
    text = {
        "model_type": "kimi_k2",
        "hidden_size": HIDDEN,
        "vocab_size": rows,
        "num_hidden_layers": LAYERS,
        "rms_norm_eps": 1e-5,
        "bos_token_id": 163584,
        "eos_token_id": 163585,
        "tie_word_embeddings": False,
        "quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized"},
    }
    outer = {"model_type": "kimi_k25", "text_config": text, "vision_config": {"vt_hidden_size": 1152}}
    (directory / "config.json").write_text(json.dumps(outer))
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:06d}.safetensors"
        tensors = neighbours(shard)
        if shard == 0:
            tensors["language_model.model.embed_tokens.weight"] = ("BF16", (rows, HIDDEN))
        if shard == shards - 1:
            tensors["language_model.model.norm.weight"] = ("BF16", (HIDDEN,))
            tensors["language_model.lm_head.weight"] = ("BF16", (rows, HIDDEN))
        _write_file(directory / file, tensors)
        weight_map |= dict.fromkeys(tensors, file)
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def _write_file(path: Path, tensors: Tensors) -> None:
    header: dict[str, Any] = {}
    at = 0
    for name, (dtype, shape) in tensors.items():
        end = at + torch.Size(shape).numel() * ITEM_BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for dtype, shape in tensors.values():
            for piece in _content(dtype, shape):
                out.write(piece)


def _content(dtype: str, shape: tuple[int, ...]) -> Iterator[bytes]:
    if shape[-1] != HIDDEN or len(shape) == 1:
        yield bytes(torch.Size(shape).numel() * ITEM_BYTES[dtype])
        return
    block = torch.randn(BLOCK_ROWS, HIDDEN, generator=torch.Generator().manual_seed(0)).bfloat16()
    block[:, 0] = torch.arange(BLOCK_ROWS) % 256
    for low in range(0, shape[0], BLOCK_ROWS):
        yield block[: shape[0] - low].view(torch.int16).numpy().tobytes()


def peak_bytes(kind: str = "VmHWM") -> int:
    """The most memory this process has had so far, pages of mapped files included."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(kind))
    return int(line.split()[1]) * 1024


def first_tokens(count: int, rows: int) -> VocabMap:
    """A draft vocabulary spread evenly over the verifier's."""
    t2d_V = torch.zeros(rows, dtype=torch.bool)
    t2d_V[torch.arange(count) * rows // count] = True
    return VocabMap(t2d_V, t2d_V.nonzero().flatten() - torch.arange(count))


def measure(directory: Path, rows: int, draft_rows: int) -> dict[str, tuple[float, int]]:
    """Seconds, and bytes by which the peak rose, of each reader in turn."""
    found: dict[str, tuple[float, int]] = {}
    vocab = first_tokens(draft_rows, rows)
    norm_H = torch.ones(HIDDEN)
    torch.randn(64, HIDDEN).bfloat16().float().norm(dim=1)  # what torch itself takes at first use

    began, before = time.monotonic(), peak_bytes()
    weights = read_weights(directory)
    found["read_weights"] = (time.monotonic() - began, peak_bytes() - before)

    began, before = time.monotonic(), peak_bytes()
    head = verifier_head(weights, 1e-5, vocab, torch.bfloat16, torch.device("cpu"))
    found["verifier_head"] = (time.monotonic() - began, peak_bytes() - before)
    assert head.head_VH.data_ptr() == weights.head_VH.data_ptr()

    into_KH = torch.empty(draft_rows, HIDDEN)
    began, before = time.monotonic(), peak_bytes()
    copy_head(into_KH, weights.head_VH, vocab.target_ids_K, norm_H)
    found["copy_head"] = (time.monotonic() - began, peak_bytes() - before)
    assert torch.equal(into_KH[:, 0], (vocab.target_ids_K % BLOCK_ROWS % 256).float())
    return found


def main(directory: Path, rows: int, draft_rows: int, shards: int) -> None:
    """Write the directory unless it is there, measure, print one JSON object."""
    if not directory.exists():
        write_kimi_shape(directory, rows, shards)
    else:
        found = measure(directory, rows, draft_rows)
        sys.stdout.write(
            json.dumps({"peak": peak_bytes(), "anonymous": peak_bytes("RssAnon"), **found}) + "\n"
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]), *(map(int, sys.argv[2:]) if sys.argv[2:] else (VOCAB, DRAFT_VOCAB, SHARDS)))

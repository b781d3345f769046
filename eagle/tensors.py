"""Tensors in safetensors files that are complete or absent, and tensors that are shared by processes."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from synthgen.errors import DiskError

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
"""What train.compute_dtype may be."""
ARGMAX_BLOCK = 128
PIECE_BYTES = 64 << 20
"""What is read and written at a time of a tensor that need not be whole in memory."""
NAMES = {
    torch.int64: "I64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""What safetensors calls them, in the order in which it writes them: each is aligned then."""


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


UMASK = _umask()
"""The process' own, read once: to read it is to set it, and files that other threads make meanwhile are
open to everybody."""


def save_tensors(
    tensors: dict[str, torch.Tensor], path: Path, metadata: dict[str, str] | None = None
) -> None:
    """Write tensors to `path`, readable as other files are (safetensors itself makes them private).

    Raises DiskError when they can't be written: a full disk reaches safetensors as an error of its own.
    """
    try:
        save_file(tensors, path, metadata=metadata)
    except SafetensorError as error:
        raise DiskError(
            f"{path} can't be written: {error}. What was finished is kept: free some space"
        ) from error
    path.chmod(0o666 & ~UMASK)


def argmax_last(x: torch.Tensor) -> torch.Tensor:
    """`x.argmax(-1)`, of equal ones the first: by blocks, as the CPU's argmax is slow and its amax fast."""
    if x.device.type != "cpu" or x.shape[-1] % ARGMAX_BLOCK:
        return x.argmax(-1)
    blocks = x.view(*x.shape[:-1], x.shape[-1] // ARGMAX_BLOCK, ARGMAX_BLOCK)
    block = blocks.amax(-1).argmax(-1, keepdim=True)
    inside = blocks.gather(-2, block[..., None].expand(*block.shape, ARGMAX_BLOCK)).squeeze(-2)
    first: torch.Tensor = block.squeeze(-1) * ARGMAX_BLOCK + inside.argmax(-1)
    return first


def all_finite(x: torch.Tensor) -> bool:
    """Whether no element is NaN or infinite: by the two ends, twenty times as fast as looking at each."""
    if not x.numel():
        return True
    return bool(torch.stack(x.aminmax()).isfinite().all())


@dataclass(frozen=True, slots=True)
class Pieces:
    """A tensor that needn't be in memory: `read(low, high)` gives some of its rows, written as `dtype`."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[int, int], torch.Tensor]

    @classmethod
    def of(cls, tensor: torch.Tensor, dtype: torch.dtype | None = None) -> Pieces:
        """Those of a tensor that is there."""
        return cls(tuple(tensor.shape), dtype or tensor.dtype, lambda low, high: tensor[low:high])

    @property
    def num_bytes(self) -> int:
        """What it takes in a file."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize

    def __iter__(self) -> Iterator[torch.Tensor]:
        """Its rows in order, PIECE_BYTES at a time."""
        rows = self.shape[0]
        step = max(1, PIECE_BYTES * rows // max(self.num_bytes, 1))
        for low in range(0, rows, step):
            yield self.read(low, min(low + step, rows)).to(self.dtype).contiguous()


def save_in_pieces(tensors: Mapping[str, Pieces], path: Path, metadata: dict[str, str]) -> None:
    """Write the file that safetensors itself would, with no more than a piece of a tensor in memory.

    Raises DiskError when the disk is too small.
    """
    order = sorted(tensors, key=lambda name: ([*NAMES].index(tensors[name].dtype), name))
    header: dict[str, Any] = {"__metadata__": metadata}
    at = 0
    for name in order:
        end = at + tensors[name].num_bytes
        header[name] = {
            "dtype": NAMES[tensors[name].dtype],
            "shape": tensors[name].shape,
            "data_offsets": (at, end),
        }
        at = end
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)
    try:
        with path.open("wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            for name in order:
                for piece in tensors[name]:
                    out.write(piece.view(torch.uint8).numpy().data)
    except OSError as error:
        raise DiskError(
            f"{path} can't be written: {error}. What was finished is kept: free some space"
        ) from error


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """All of a tensor of which processes may each keep a part: then all of them must call this."""
    gather = getattr(tensor, "full_tensor", None)
    full: torch.Tensor = tensor if gather is None else gather()
    return full


def part_like(like: torch.Tensor, full: torch.Tensor) -> torch.Tensor:
    """Of `full`, which every process has, the part that it keeps of `like`; all of it where that is whole."""
    if not hasattr(like, "full_tensor"):
        return full
    sharding = importlib.import_module("torch.distributed.tensor")  # a second of CPU time, for FSDP2 only
    mesh, placements = getattr(like, "device_mesh"), getattr(like, "placements")  # noqa: B009
    part: torch.Tensor = sharding.distribute_tensor(full, mesh, placements, src_data_rank=None)
    return part

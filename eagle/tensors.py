"""Tensors in safetensors files that are complete or absent, and tensors that are shared by processes."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from synthgen.errors import DiskError

ARGMAX_BLOCK = 128


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
    blocks = x.view(*x.shape[:-1], -1, ARGMAX_BLOCK)
    block = blocks.amax(-1).argmax(-1, keepdim=True)
    inside = blocks.gather(-2, block[..., None].expand(*block.shape, ARGMAX_BLOCK)).squeeze(-2)
    first: torch.Tensor = block.squeeze(-1) * ARGMAX_BLOCK + inside.argmax(-1)
    return first


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

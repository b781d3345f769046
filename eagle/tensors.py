"""Tensors in safetensors files that are complete or absent, and tensors that are shared by processes."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch.distributed.tensor import DTensor, distribute_tensor

from synthgen.errors import DiskError


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


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """All of a tensor of which processes may each keep a part: then all of them must call this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def part_like(like: torch.Tensor, full: torch.Tensor) -> torch.Tensor:
    """Of `full`, which every process has, the part that it keeps of `like`; all of it where that is whole."""
    if not isinstance(like, DTensor):
        return full
    return distribute_tensor(full, like.device_mesh, like.placements, src_data_rank=None)

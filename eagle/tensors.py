"""Safetensors files that are complete or absent, with errors of the house's tree."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

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

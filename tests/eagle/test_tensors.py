"""Tensor files: readable as other files are, without touching what other threads rely on."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import torch

from eagle.tensors import UMASK, save_tensors


def test_a_file_has_the_mode_of_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the umask stays as it is: between two settings another thread's files would be open to all."""

    def forbidden(mask: int) -> int:
        raise AssertionError(f"umask set to {mask}")

    (tmp_path / "plain").touch()
    monkeypatch.setattr(os, "umask", forbidden)
    save_tensors({"a": torch.zeros(1)}, tmp_path / "a.safetensors")
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "a.safetensors")}
    assert modes == {0o666 & ~UMASK}

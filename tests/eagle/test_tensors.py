"""Tensor files: readable as other files are, without touching what other threads rely on."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import torch

from eagle.tensors import UMASK, argmax_last, save_tensors


def test_a_file_has_the_mode_of_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the umask stays as it is: between two settings another thread's files would be open to all."""

    def forbidden(mask: int) -> int:
        raise AssertionError(f"umask set to {mask}")

    (tmp_path / "plain").touch()
    monkeypatch.setattr(os, "umask", forbidden)
    save_tensors({"a": torch.zeros(1)}, tmp_path / "a.safetensors")
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "a.safetensors")}
    assert modes == {0o666 & ~UMASK}


@pytest.mark.parametrize("columns", [256, 130, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_last_dimensions_argmax_is_the_first_of_equal_ones(dtype: torch.dtype, columns: int) -> None:
    """With five different values there are ties in every row; a NaN counts as the greatest, as torch says."""
    x = torch.randint(5, (3, 7, columns), generator=torch.Generator().manual_seed(1)).to(dtype)
    x[1, 2, columns // 2] = float("nan")
    first = [[int(row.argmax()) for row in rows] for rows in x.double()]
    assert argmax_last(x).tolist() == first

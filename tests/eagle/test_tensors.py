"""Tensor files: readable as other files are, without touching what other threads rely on."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from eagle.tensors import UMASK, Pieces, all_finite, argmax_last, save_in_pieces, save_tensors
from synthgen.errors import DiskError


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
    assert argmax_last(x[:, :0]).shape == (3, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_one_element_that_is_not_finite_is_found_wherever_it_stands(dtype: torch.dtype, value: float) -> None:
    """In rows that are not contiguous too; the largest finite ones are no infinity, and nothing is finite."""
    largest = torch.finfo(dtype).max
    x = torch.tensor([largest, -largest]).to(dtype).repeat(5, 40)[:, 3:70]
    assert all_finite(x)
    for at in ((0, 0), (2, 33), (4, 66)):
        wrong = x.clone()
        wrong[at] = value
        assert not all_finite(wrong)
    assert all_finite(x[:0])


def test_what_is_written_in_pieces_is_the_file_that_safetensors_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Byte for byte, whatever the pieces; each is cast when it is written, and none is too large."""
    monkeypatch.setattr("eagle.tensors.PIECE_BYTES", 64)
    generator = torch.Generator().manual_seed(0)
    tensors = {
        "w": torch.randn(37, 6, generator=generator),
        "d2t": torch.arange(20),
        "t2d": torch.arange(24) % 3 == 0,
        "a.norm": torch.ones(5),
    }
    written = {
        name: tensor.bfloat16() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()
    }
    save_file(written, tmp_path / "whole", metadata={"format": "pt"})
    pieces = {name: Pieces.of(tensor, written[name].dtype) for name, tensor in tensors.items()}
    save_in_pieces(pieces, tmp_path / "pieces", {"format": "pt"})
    assert (tmp_path / "pieces").read_bytes() == (tmp_path / "whole").read_bytes()
    assert all(torch.equal(written[name], found) for name, found in load_file(tmp_path / "pieces").items())
    sizes = [piece.nbytes for one in pieces.values() for piece in one]
    assert max(sizes) <= 64
    assert sum(sizes) == sum(one.num_bytes for one in pieces.values()) == 37 * 6 * 2 + 20 * 8 + 24 + 5 * 2


def test_a_full_disk_is_a_disk_error() -> None:
    """As it is where safetensors itself writes."""
    with pytest.raises(DiskError, match=r"/dev/full can't be written: .*No space left"):
        save_in_pieces({"a": Pieces.of(torch.zeros(1 << 16))}, Path("/dev/full"), {})

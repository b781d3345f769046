"""Spool files: whole or absent, confined to their directory, and refused when they were damaged."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from eagle.spool import Captured, checksum, file_name, read_states, write_states
from synthgen.errors import ArtifactError, DiskError

LAYERS = (2, 4, 5, 8)


def captured(states_T4H: torch.Tensor, layers: tuple[int, ...] = LAYERS) -> Captured:
    """States of tokens 4, 5, …"""
    return Captured(
        token_ids_T=torch.arange(4, 4 + len(states_T4H)),
        states_T4H=states_T4H,
        layer_ids=layers,
        dtype=str(states_T4H.dtype).removeprefix("torch."),
    )


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_a_file_appears_whole(tmp_path: Path, dtype: torch.dtype, durable: bool) -> None:
    """Written aside and renamed, in a directory that may be gone; what is read is what was written."""
    path = tmp_path / "spool" / "a.safetensors"
    states_T4H = torch.arange(2 * 4 * 3.0).view(2, 4, 3).to(dtype)
    write_states(path, captured(states_T4H), durable=durable)
    found = read_states(path)
    assert found.token_ids_T.tolist() == [4, 5]
    assert torch.equal(found.states_T4H.float(), states_T4H.float())
    assert (found.layer_ids, found.dtype) == ((2, 4, 5, 8), str(dtype).removeprefix("torch."))
    assert [p.name for p in path.parent.iterdir()] == ["a.safetensors"]


def test_the_checksum_is_of_all_that_a_file_holds() -> None:
    """Token ids, states, their shape, dtype and layers; zlib's crc32 of all of it in a row."""
    one = captured(torch.zeros(2, 4, 3))
    assert checksum(one) == "7404b3ec"
    others = [
        captured(torch.zeros(2, 4, 3), (2, 4, 6, 8)),
        captured(torch.zeros(2, 4, 6, dtype=torch.bfloat16)),
        captured(torch.zeros(3, 4, 2)),
        captured(torch.eye(3).expand(2, 3, 3).reshape(2, 3, 3)),
        Captured(
            token_ids_T=torch.tensor([5, 4]), states_T4H=one.states_T4H, layer_ids=LAYERS, dtype="float32"
        ),
    ]
    assert len({checksum(other) for other in (one, *others)}) == 6


@settings(max_examples=200, deadline=None)
@given(position=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_no_changed_byte_goes_unseen(
    position: float, flip: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Wherever it is, in the header or in the states: the file is refused, or says the same as before."""
    path = tmp_path_factory.getbasetemp() / "flipped.safetensors"
    whole = captured(torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(1)))
    write_states(path, whole, durable=False)
    content = bytearray(path.read_bytes())
    content[int(position * len(content))] ^= flip
    path.write_bytes(content)
    try:
        found = read_states(path)
    except ArtifactError:
        return
    assert torch.equal(found.states_T4H, whole.states_T4H)
    assert torch.equal(found.token_ids_T, whole.token_ids_T)
    assert (found.layer_ids, found.dtype) == (whole.layer_ids, whole.dtype)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    """Both checksums; it can't be a half-written one, those have another name."""
    path = tmp_path / "f.safetensors"
    path.write_bytes(b"12345678901234567890")
    with pytest.raises(ArtifactError, match=r"f\.safetensors: damaged"):
        read_states(path)
    save_file({"token_ids": torch.tensor([1])}, path)
    with pytest.raises(ArtifactError, match=r"f\.safetensors: damaged: .*states"):
        read_states(path)
    write_states(path, captured(torch.zeros(2, 4, 3)), durable=False)
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"\1")
    with pytest.raises(
        ArtifactError,
        match=r"f\.safetensors: damaged: the crc32 of what it holds is [0-9a-f]{8}, that of what was written "
        r"7404b3ec$",
    ):
        read_states(path)
    path.write_bytes(content.replace(b"[2, 4", b"[2, x"))
    with pytest.raises(ArtifactError, match=r"f\.safetensors: damaged: "):
        read_states(path)


def test_a_file_without_a_checksum_is_refused(tmp_path: Path) -> None:
    """As older versions wrote them."""
    path = tmp_path / "f.safetensors"
    save_file({"token_ids": torch.tensor([1]), "states": torch.zeros(1, 4, 2)}, path)
    with pytest.raises(ArtifactError, match=r"is [0-9a-f]{8}, that of what was written absent$"):
        read_states(path)


def test_what_is_no_file_is_named_too(tmp_path: Path) -> None:
    """A directory, or nothing, under the name of a spool file."""
    with pytest.raises(ArtifactError, match=r"can't be read: "):
        read_states(tmp_path)
    with pytest.raises(ArtifactError, match=r"f\.safetensors: can't be read: No such file"):
        read_states(tmp_path / "f.safetensors")


@pytest.mark.parametrize("request_id", ["cmpl-1", "../../etc/passwd", "a/b", "\0"])
def test_a_request_id_cannot_lead_out_of_the_spool(request_id: str) -> None:
    """A client may choose its id; the file's name is a digest of it."""
    name = file_name(request_id)
    assert Path(name).name == name
    assert name.removesuffix(".safetensors").isalnum()


def test_only_a_durable_file_is_flushed_and_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First the file, then, once it is renamed, its directory."""
    seen: list[tuple[str, bool]] = []
    path = tmp_path / "f.safetensors"

    def fsync(handle: int) -> None:
        seen.append((Path(os.readlink(f"/proc/self/fd/{handle}")).name, path.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    write_states(path, captured(torch.zeros(2, 4, 3)), durable=False)
    assert seen == []
    path.unlink()
    write_states(path, captured(torch.zeros(2, 4, 3)), durable=True)
    assert seen == [("f.tmp", False), (tmp_path.name, True)]


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """Neither a rename that fails nor a disk without room; the error is passed on."""
    (tmp_path / "a.safetensors").mkdir()
    with pytest.raises(IsADirectoryError):
        write_states(tmp_path / "a.safetensors", captured(torch.ones(2, 4, 3)), durable=True)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        with pytest.raises(DiskError, match="File too large"):
            write_states(tmp_path / "b.safetensors", captured(torch.ones(2, 4, 1 << 16)), durable=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [p.name for p in tmp_path.iterdir()] == ["a.safetensors"]


def test_a_prefix_marks_whose_a_file_is_and_leads_nowhere_else() -> None:
    """A short plain name stands before the digest; anything else is passed over."""
    plain = file_name("cmpl-1")
    assert file_name("cmpl-1", "stream-0") == f"stream-0-{plain}"
    for prefix in ("../up", "a/b", "", "x" * 41, None, 3, ["a"]):
        assert file_name("cmpl-1", prefix) == plain

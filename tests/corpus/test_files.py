"""Files are complete or absent; the disk is asked before it is filled."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from synthgen.corpus.files import (
    directory_written_aside,
    in_units,
    remove_asides,
    require_free_disk,
    sha256_of,
    written_aside,
)
from synthgen.errors import DiskError


def test_a_file_appears_only_when_its_block_succeeds(tmp_path: Path) -> None:
    """An error leaves the old file and no rest."""
    path = tmp_path / "f"
    with written_aside(path) as aside:
        aside.write_text("one")
        assert not path.exists()
    with pytest.raises(ZeroDivisionError), written_aside(path) as aside:
        aside.write_text(f"two {1 // 0}")
    assert path.read_text() == "one"
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_what_killed_writers_left_goes_and_nothing_else(tmp_path: Path) -> None:
    """Of the names that are given, and in that directory alone."""
    for name in ("a-0", "b"):
        with contextlib.suppress(KeyboardInterrupt), written_aside(tmp_path / name) as aside:
            aside.with_name(aside.name.replace(".tmp", "0.tmp")).touch()  # as kill -9 would leave it
            raise KeyboardInterrupt
    (tmp_path / "a-0").touch()
    remove_asides(tmp_path, "a-*")
    assert sorted(path.name[:3] for path in tmp_path.iterdir()) == [".b.", "a-0"]
    remove_asides(tmp_path, "b")
    remove_asides(tmp_path / "nowhere", "b")
    assert [path.name for path in tmp_path.iterdir()] == ["a-0"]


def test_a_directory_appears_only_when_its_block_succeeds(tmp_path: Path) -> None:
    """A finished directory replaces the old one whole; a failed one changes nothing."""
    path = tmp_path / "d"
    with directory_written_aside(path) as aside:
        (aside / "a").write_text("1")
    with pytest.raises(ZeroDivisionError), directory_written_aside(path) as aside:
        (aside / "b").write_text(f"2 {1 // 0}")
    assert [p.name for p in path.iterdir()] == ["a"]
    with directory_written_aside(path) as aside:
        (aside / "c").write_text("3")
    assert [p.name for p in path.iterdir()] == ["c"]
    assert [p.name for p in tmp_path.iterdir()] == ["d"]


def test_an_interrupt_while_the_old_directory_goes_leaves_the_new_one_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing half-removed passes for an artifact."""
    path = tmp_path / "d"
    for text in ("old", "new"):
        with (
            contextlib.suppress(KeyboardInterrupt),
            monkeypatch.context() as patched,
            directory_written_aside(path) as aside,
        ):
            (aside / "a").write_text(text)
            if text == "new":
                patched.setattr("synthgen.corpus.files.sync_directory", interrupted)
    assert [file.read_text() for file in path.iterdir()] == ["new"]
    assert [p.name for p in tmp_path.iterdir()] == ["d"]


def interrupted(*_: object) -> None:
    """A Ctrl-C in this very call."""
    raise KeyboardInterrupt


def test_too_little_disk_is_refused_with_both_sizes(tmp_path: Path) -> None:
    """A petabyte doesn't fit; the message says what is needed and what to lower."""
    with pytest.raises(
        DiskError, match=r"the hidden states need 1024\.0 TiB and a tenth to spare.* free: free some"
    ):
        require_free_disk(tmp_path / "not" / "yet", 1 << 50, "the hidden states")
    with pytest.raises(DiskError, match=r"to a larger disk, or lower train\.stream_spool_mib$"):
        require_free_disk(tmp_path, 1 << 50, "streamed states", "train.stream_spool_mib")
    require_free_disk(tmp_path, 1, "one byte")


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (29_360_128, "28.0 MiB"), (117_440_512_000, "109.4 GiB")],
)
def test_sizes_read_as_people_write_them(num_bytes: int, text: str) -> None:
    """512 tokens of Kimi-K2.5 are 28 MiB; 1,000 samples of 2,048 are 109.4 GiB."""
    assert in_units(num_bytes) == text


def test_sha256_is_the_known_one(tmp_path: Path) -> None:
    """Against the published digest of "abc"."""
    (tmp_path / "f").write_bytes(b"abc")
    assert sha256_of(tmp_path / "f") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"

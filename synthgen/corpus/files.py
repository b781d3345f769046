"""Files that are complete or absent, and the disk they need."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from synthgen.errors import DiskError

SPARE = 1.1
"""A tenth more than is needed must be free."""


@contextlib.contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; fsync and rename it there when the block succeeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = _aside(path)
    try:
        yield aside
        with aside.open("rb") as file:
            os.fsync(file.fileno())
        aside.replace(path)
        sync_directory(path.parent)
    finally:
        aside.unlink(missing_ok=True)


def remove_asides(directory: Path, *names: str) -> None:
    """Remove what killed processes left of these names (patterns); nobody may be writing them now."""
    for name in names:
        for aside in directory.glob(f".{name}.*.tmp"):
            aside.unlink(missing_ok=True)


@contextlib.contextmanager
def directory_written_aside(path: Path) -> Iterator[Path]:
    """Yield a new directory beside `path`; rename it there when the block succeeds, in place of an old one.

    An interrupt leaves the old one or the new one whole.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside, old = _aside(path), _aside(path)
    aside.mkdir()
    try:
        yield aside
        for file in sorted(aside.rglob("*")):
            if file.is_file():
                with file.open("rb") as handle:
                    os.fsync(handle.fileno())
        if path.exists():
            path.rename(old)
        aside.rename(path)
        sync_directory(path.parent)
    finally:
        if old.exists() and not path.exists():
            old.rename(path)
        shutil.rmtree(aside, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _aside(path: Path) -> Path:
    """A name that no other process takes, on whatever machine that shares the disk."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.tmp")


def sync_directory(path: Path) -> None:
    """Make a rename in `path` durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256_of(path: Path) -> str:
    """The sha256 of a file, in hex, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def require_free_disk(
    directory: Path, needed_bytes: int, what: str, lower: str = "prompts.limit or generate.max_tokens"
) -> None:
    """Raise DiskError unless `directory`'s disk holds `needed_bytes` more, with a tenth to spare.

    lower: settings that it takes less with.
    """
    free = free_bytes(directory)
    if needed_bytes * SPARE > free:
        raise DiskError(
            f"{what} need {in_units(needed_bytes)} and a tenth to spare, but the disk of {directory} has "
            f"{in_units(free)} free: free some space, set run_dir to a larger disk, or lower {lower}"
        )


def free_bytes(directory: Path) -> int:
    """Free space on the disk where `directory` is, or will be."""
    probe = directory.absolute()
    while not probe.exists():
        probe = probe.parent
    return shutil.disk_usage(probe).free


def in_units(num_bytes: float) -> str:
    """A size as people read it: 29360128 is '28.0 MiB'."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(num_bytes) < 1024:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} TiB"

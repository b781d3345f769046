"""Who may write what: locks that end with the process that holds them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from synthgen.errors import ArtifactError

PATIENCE_S = 1.0
"""Parts that start together may find the lock in the middle of being taken."""
REMEDY = "or choose another run_dir"


def lock(file: int, path: Path) -> None:
    """Lock an open file. Raises ArtifactError when another process holds it, or the disk has no locks."""
    if not _flocked(file, path, fcntl.LOCK_EX | fcntl.LOCK_NB):
        raise ArtifactError(f"{path}: another process is writing it: wait until it ends, {REMEDY}")


@contextlib.contextmanager
def claimed(directory: Path, parts: int) -> Iterator[None]:
    """Hold a corpus as one of `parts`: a whole one excludes all others, a part those of another division.

    Raises ArtifactError saying who holds it.
    """
    with _opened(directory / "lock") as (file, path):
        give_up = time.monotonic() + PATIENCE_S
        while (held := _claim(file, path, parts)) is not None:
            if time.monotonic() > give_up:
                said = f"another process is writing {held}: wait until it ends, {REMEDY}"
                raise ArtifactError(f"{path}: {said}")
            time.sleep(0.05)
        yield


def is_claimed(directory: Path) -> bool:
    """Whether a process holds the corpus, or a part of it."""
    with _opened(directory / "lock") as (file, path):
        return not _flocked(file, path, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextlib.contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Wait until no other process is in such a block for `directory`."""
    with _opened(directory / "manifest.lock") as (file, path):
        _flocked(file, path, fcntl.LOCK_EX)
        yield


def _claim(file: int, path: Path, parts: int) -> str | None:
    """Try once; return what somebody else holds. The first of several parts writes down their number."""
    if _flocked(file, path, fcntl.LOCK_EX | fcntl.LOCK_NB):
        os.pwrite(file, f"{parts:<10}".encode(), 0)
        if parts == 1 or _flocked(file, path, fcntl.LOCK_SH | fcntl.LOCK_NB):
            return None
    found = int(os.pread(file, 10, 0) or b"1")
    if parts > 1 and found == parts and _flocked(file, path, fcntl.LOCK_SH | fcntl.LOCK_NB):
        return None
    return "the whole corpus" if found == 1 else f"part of the corpus, as --shard i/{found}"


def _flocked(file: int, path: Path, kind: int) -> bool:
    try:
        fcntl.flock(file, kind)
    except BlockingIOError:
        return False
    except OSError as error:
        raise ArtifactError(
            f"{path}: can't be locked: {error.strerror}. Two processes could write it: set run_dir to a disk "
            f"with file locks"
        ) from error
    return True


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[int, Path]]:
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        yield file, path
    finally:
        os.close(file)

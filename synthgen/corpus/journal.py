"""Append-only JSONL journals: nothing that was paid for is lost, nothing torn is read.

One writer a journal, held by a lock. Records are written by *group commit*: whatever is waiting goes out in one
write and one `fdatasync`, and only then are its callers told, so a request's slot is freed after
its record is durable. On opening, a torn tail is cut back to the last newline. Lines are split on
`b"\\n"` only: U+2028 is legal inside JSON.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import msgspec

from synthgen.corpus.files import written_aside
from synthgen.corpus.records import Record
from synthgen.errors import ArtifactError, DiskError

R = TypeVar("R", bound=Record)


class Journal:
    """The writer of one journal, used as `async with Journal(path) as journal`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._waiting: list[tuple[bytes, asyncio.Future[None]]] = []
        self._wake = asyncio.Event()
        self._closing = False
        self._encoder = msgspec.json.Encoder()

    async def __aenter__(self) -> Self:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._file)
            raise ArtifactError(
                f"{self.path}: another process is writing it: wait until it ends, or choose another run_dir"
            ) from error
        repair(self.path)
        self._writer = asyncio.create_task(self._write_groups())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing = True
        self._wake.set()
        try:
            await self._writer
        finally:
            os.close(self._file)

    async def append(self, record: Record) -> None:
        """Return once `record` is on disk. Raises DiskError when it can't be."""
        if self._writer.done():
            self._writer.result()
            raise AssertionError("append after close")
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((self._encoder.encode(record) + b"\n", done))
        self._wake.set()
        await done

    async def _write_groups(self) -> None:
        while not self._closing or self._waiting:
            await self._wake.wait()
            self._wake.clear()
            group, self._waiting = self._waiting, []
            if not group:
                continue
            data = b"".join(line for line, _ in group)
            try:
                await asyncio.to_thread(_write_durably, self._file, data)
            except OSError as error:
                self._fail(group, error)
                raise self._disk_error(error) from error
            for _, done in group:
                if not done.done():
                    done.set_result(None)

    def _fail(self, group: list[tuple[bytes, asyncio.Future[None]]], error: OSError) -> None:
        for _, done in group + self._waiting:
            if not done.done():
                done.set_exception(self._disk_error(error))
                done.exception()  # marks it as seen: the caller may be gone already

    def _disk_error(self, error: OSError) -> DiskError:
        return DiskError(
            f"{self.path}: {error.strerror}. All records before are safe: free some space, "
            f"then run the same command again to go on"
        )


def write_journal(path: Path, records: Iterable[Record]) -> None:
    """Write a whole journal at once, in place of an older one."""
    with written_aside(path) as aside:
        aside.write_bytes(b"".join(msgspec.json.encode(record) + b"\n" for record in records))


def _write_durably(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
    os.fdatasync(file)


def repair(path: Path) -> int:
    """Cut a torn last line off a journal; return how many bytes were cut."""
    if not path.exists():
        return 0
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        end = _after_last_newline(file.fileno(), size)
        if end < size:
            file.truncate(end)
            os.fsync(file.fileno())
    return size - end


def _after_last_newline(file: int, size: int, block_bytes: int = 1 << 16) -> int:
    while size > 0:
        start = max(0, size - block_bytes)
        found = os.pread(file, size - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        size = start
    return 0


def read_journal(path: Path, kind: type[R]) -> Iterator[R]:
    """Yield the records of a journal; a torn last line is passed over. A missing file is empty.

    Raises ArtifactError naming file and line when a complete line isn't a record of `kind`.
    """
    if not path.exists():
        return
    decoder = msgspec.json.Decoder(kind)
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                yield decoder.decode(line)
            except (msgspec.DecodeError, msgspec.ValidationError) as error:
                raise ArtifactError(
                    f"{path}:{number}: not a {kind.__name__}: {error}. The file was changed by hand or by "
                    f"another release: restore it, or move it away to start anew"
                ) from error

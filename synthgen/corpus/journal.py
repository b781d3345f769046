"""Append-only JSONL journals: nothing that was paid for is lost, nothing torn is read.

One writer a journal, held by a lock. Records are written by *group commit*: whatever is waiting goes
out in one write and one `fdatasync`, and only then are its callers told, so a request's slot is freed
after its record is durable. On opening, a torn tail is cut back to the last newline. Lines are split
on `b"\\n"` only: U+2028 is legal inside JSON.

A long journal goes on in segments: `traces.jsonl`, `traces.00001.jsonl` and so on; the shards of a job
array write `traces-1of4.jsonl` beside each other. Reading `traces.jsonl` reads them all.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self, TypeVar

import msgspec

from synthgen.corpus.files import sync_directory, written_aside
from synthgen.corpus.lock import lock
from synthgen.corpus.records import Record
from synthgen.errors import ArtifactError, DiskError

S = TypeVar("S", bound=msgspec.Struct)
K = TypeVar("K", bound=msgspec.Struct)
DIGITS = "[0-9]" * 5
LINES_AT_ONCE = 64
"""Lines joined for one write; a thousand long replies at once would be held twice."""


class Journal:
    """The writer of one journal: `with Journal(path) as journal`, and in it `async with journal.writing()`.

    The outer block locks the file and cuts a torn tail; what is read inside it, nobody else changes. After
    `segment_bytes` the journal goes on in a new file. Raises ArtifactError when another process writes it.
    """

    def __init__(self, path: Path, segment_bytes: int | None = None) -> None:
        self.path = path
        self._segment_bytes = segment_bytes
        self._waiting: list[tuple[bytes, asyncio.Future[None]]] = []
        self._encoder = msgspec.json.Encoder()

    def __enter__(self) -> Self:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = _open(self.path)
        try:
            lock(self._lock, self.path)
        except ArtifactError:
            os.close(self._lock)
            raise
        segment = _own_segments(self.path)[-1]
        repair(segment)
        self._file = _open(segment)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)
        os.close(self._lock)

    @contextlib.asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """Write what is appended in the block; at its end everything appended is on disk."""
        self._wake = asyncio.Event()
        self._closing = False
        self._writer = asyncio.create_task(self._write_groups())
        try:
            yield
        finally:
            self._closing = True
            self._wake.set()
            await _to_its_end(self._writer)

    async def append(self, record: Record) -> None:
        """Return once `record` is on disk. Raises DiskError when it can't be."""
        await self.put(record)

    def put(self, record: Record) -> asyncio.Future[None]:
        """Queue `record`, whose memory is then free; the future is done once it is on disk.

        It ends with DiskError when that can't be.
        """
        if self._writer.done():
            self._writer.result()
            raise AssertionError("put after close")
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((self._encoder.encode(record) + b"\n", done))
        self._wake.set()
        return done

    async def _write_groups(self) -> None:
        while not self._closing or self._waiting:
            await self._wake.wait()
            self._wake.clear()
            group, self._waiting = self._waiting, []
            if not group:
                continue
            try:
                await asyncio.to_thread(_write_durably, self._file, [line for line, _ in group])
                self._rotate()
            except OSError as error:
                self._fail(group, error)
                raise self._disk_error(error) from error
            for _, done in group:
                if not done.done():
                    done.set_result(None)

    def _rotate(self) -> None:
        if self._segment_bytes is None or os.fstat(self._file).st_size < self._segment_bytes:
            return
        number = _number(_own_segments(self.path)[-1]) + 1
        before, self._file = self._file, _open(self.path.with_suffix(f".{number:05d}{self.path.suffix}"))
        os.close(before)

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


async def _to_its_end(task: asyncio.Task[None]) -> None:
    """Wait for a task also while the waiting is cancelled; the cancellation is passed on afterwards."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
        except DiskError:
            break
    task.result()
    if cancelled is not None:
        raise cancelled


def write_journal(path: Path, records: Iterable[Record]) -> None:
    """Write a whole journal at once, in place of an older one."""
    with written_aside(path) as aside:
        aside.write_bytes(b"".join(msgspec.json.encode(record) + b"\n" for record in records))


def _open(path: Path) -> int:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    if not os.fstat(file).st_size:
        sync_directory(path.parent)  # a file whose name is lost in a crash takes its records with it
    return file


def _own_segments(path: Path) -> list[Path]:
    """A journal's files in the order of writing, the first whether it is there or not."""
    return [path, *sorted(path.parent.glob(f"{path.stem}.{DIGITS}{path.suffix}"))]


def _number(segment: Path) -> int:
    _, dot, digits = segment.stem.rpartition(".")
    return int(digits) if dot else 0


def segments(path: Path) -> list[Path]:
    """All files of a journal, those of the shards of a job array included, and no others that lie beside."""
    own = re.compile(rf"{re.escape(path.stem)}(-\d+of\d+)?(\.\d{{5}})?")
    found = (other for other in path.parent.glob(f"{path.stem}*{path.suffix}") if own.fullmatch(other.stem))
    return sorted(found, key=lambda segment: segment.stem)


def _write_durably(file: int, lines: list[bytes]) -> None:
    for start in range(0, len(lines), LINES_AT_ONCE):
        _write_all(file, b"".join(lines[start : start + LINES_AT_ONCE]))
    os.fdatasync(file)


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


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


def read_journal(path: Path, kind: type[S], name: str | None = None) -> Iterator[S]:
    """Yield the records of a journal; a torn last line is passed over. A missing file is empty.

    `kind` is the record's own type, or a struct with the fields that are wanted: skipping the others
    takes a tenth of the time. Raises ArtifactError naming file and line when a complete line isn't a
    record of that `kind` (called `name`).
    """
    decoder = msgspec.json.Decoder(kind)
    name = name or kind.__name__
    for line in _lines(path):
        yield _decode(decoder, line, name)


def find_records(path: Path, key: type[K], wanted: Callable[[K], bool], kind: type[S]) -> Iterator[S]:
    """Yield the records whose `key` is wanted; of the others only the fields of `key` are decoded.

    Raises ArtifactError as `read_journal`.
    """
    keys, records = msgspec.json.Decoder(key), msgspec.json.Decoder(kind)
    for line in _lines(path):
        if wanted(_decode(keys, line, f"{kind.__name__} with a key")):
            yield _decode(records, line, kind.__name__)


def count_records(path: Path, block_bytes: int = 1 << 20) -> int:
    """How many records a journal has, without decoding any."""
    count = 0
    for segment in segments(path):
        with segment.open("rb") as file:
            count += sum(block.count(b"\n") for block in iter(lambda: file.read(block_bytes), b""))
    return count


class _Line(NamedTuple):
    segment: Path
    number: int
    text: bytes


def _lines(path: Path) -> Iterator[_Line]:
    """The complete lines of a journal's files."""
    for segment in segments(path):
        with segment.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    break
                yield _Line(segment, number, line)


def _decode(decoder: msgspec.json.Decoder[S], line: _Line, name: str) -> S:
    try:
        return decoder.decode(line.text)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ArtifactError(
            f"{line.segment}:{line.number}: not a {name}: {error}. The file was changed by hand or by "
            f"another release: restore it, or move it away to start anew"
        ) from error

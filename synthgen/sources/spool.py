"""Prompts put aside on disk while it isn't known yet which of them will be used."""

from __future__ import annotations

import contextlib
import errno
import tempfile
from array import array
from types import TracebackType
from typing import Self

import msgspec

from synthgen.corpus.records import SeedPrompt
from synthgen.errors import DiskError


class Spool:
    """A list of prompts in a temporary file that goes with the block; memory holds 8 bytes of each.

    Raises DiskError when the file can't be written.
    """

    def __init__(self) -> None:
        self._starts = array("Q", [0])
        self._encoder = msgspec.json.Encoder()
        self._decoder = msgspec.json.Decoder(SeedPrompt)

    def __enter__(self) -> Self:
        self._file = tempfile.TemporaryFile()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):  # what could not be written isn't needed any more
            self._file.close()

    def __len__(self) -> int:
        return len(self._starts) - 1

    def append(self, prompt: SeedPrompt) -> None:
        """Put a prompt behind the others; all are appended before any is read."""
        line = self._encoder.encode(prompt)
        try:
            self._file.write(line)
        except OSError as error:
            raise _disk_error(error) from error
        self._starts.append(self._starts[-1] + len(line))

    def __getitem__(self, index: int) -> SeedPrompt:
        start, end = self._starts[index], self._starts[index + 1]
        try:
            self._file.seek(start)
            line = self._file.read(end - start)
        except OSError as error:
            raise _disk_error(error) from error
        return self._decoder.decode(line)


def _disk_error(error: OSError) -> DiskError:
    remedy = "free some space, or set TMPDIR to a larger disk" if error.errno == errno.ENOSPC else "mend it"
    return DiskError(
        f"{tempfile.gettempdir()}: {error.strerror}: prompts are put aside there while they are chosen: "
        f"{remedy}"
    )

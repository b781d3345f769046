"""JSONL to rows, one bounded line at a time.

Lines end at `b"\\n"` only: U+2028 is legal inside JSON.
"""

from __future__ import annotations

import codecs
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from synthgen.corpus.files import in_units
from synthgen.sources.rows import BadRow, Row

LINE_LIMIT_BYTES = 64 << 20
"""The longest line that is held in memory."""
PIECE_BYTES = 1 << 20
"""Of a longer one, as it is passed over."""


def read_lines(path: Path) -> Iterator[Row | BadRow]:
    """Yield a row for each line that isn't blank. Raises OSError."""
    with path.open("rb") as file:
        for number in itertools.count(1):
            line = file.readline(LINE_LIMIT_BYTES + 1)
            if not line:
                return
            if len(line) > LINE_LIMIT_BYTES and not line.endswith(b"\n"):
                _pass_over_rest(file)
                limit = in_units(LINE_LIMIT_BYTES)
                yield BadRow(number, f"the line is longer than {limit}, the limit of a line")
            elif line.strip():
                yield _row(number, line.removeprefix(codecs.BOM_UTF8) if number == 1 else line)


def _pass_over_rest(file: BinaryIO) -> None:
    while (rest := file.readline(PIECE_BYTES)) and not rest.endswith(b"\n"):
        pass


def _row(number: int, line: bytes) -> Row | BadRow:
    line = line.removesuffix(b"\n")
    try:
        values: Any = msgspec.json.decode(line)
    except msgspec.DecodeError as error:
        return _broken(number, line, str(error))
    except RecursionError:
        return BadRow(number, "not JSON that can be read: it is nested too deeply", 1)
    if not isinstance(values, dict):
        return BadRow(number, f"a line is a JSON object, this is {type(values).__name__}", 1)
    return Row(number, values)


def _broken(number: int, line: bytes, message: str) -> BadRow:
    try:
        line.decode()
    except UnicodeDecodeError as error:
        return BadRow(number, f"not UTF-8: {error.reason}", error.start + 1)
    return BadRow(number, f"not JSON: {message}", _column(message, line))


def _column(message: str, line: bytes) -> int:
    """The 1-based column of a JSON error: msgspec names the byte, or the line ends too early."""
    _, found, byte = message.rpartition("(byte ")
    return int(byte.rstrip(")")) + 1 if found else len(line) + 1

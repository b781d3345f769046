"""Parquet and CSV to rows, in batches, so that memory stays flat however large the file is.

Both are read by pyarrow, which is imported when the first such file is. Values come out as plain Python:
text, numbers, lists, dicts. A struct has all fields that any row of the file has, so nulls in one are
fields that this row hasn't. Where a table can't nest, or doesn't, the columns of `NESTED` may hold JSON text.
"""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from synthgen.corpus.files import in_units
from synthgen.errors import InputError
from synthgen.sources.rows import BadRow, Row

NESTED = {"messages", "conversations", "turns", "body", "instances", "tools", "sampling"}
"""Columns whose text may be JSON."""
UNREADABLE = (OSError, ValueError, NotImplementedError)
"""What pyarrow raises, in classes of its own, for a file it can't read."""
ROWS_AT_ONCE = 256
BLOCK_BYTES = 4 << 20
"""Of a CSV, parsed at once, and some dozens of them read ahead; no row can be longer."""
BUFFER_BYTES = 1 << 20
"""Of each column of a Parquet file. Without it, or with pre_buffer, whole row groups are held."""


def read_parquet(path: Path, prompts: frozenset[str], others: frozenset[str]) -> Iterator[Row | BadRow]:
    """Yield the rows of a Parquet file: of its columns those that may hold prompts, and the `others`.

    Without any of `prompts` all columns are read, to be named. Raises InputError when the file isn't Parquet
    or pyarrow isn't installed.
    """
    parquet = _pyarrow(path, "parquet")
    number = 0
    try:
        with parquet.ParquetFile(path, buffer_size=BUFFER_BYTES, pre_buffer=False) as file:
            columns = wanted_columns(_distinct(path, file.schema_arrow.names), prompts, others)
            for row in rows_of(file.iter_batches(batch_size=ROWS_AT_ONCE, columns=columns)):
                number = row.number
                yield row
    except UNREADABLE as error:
        raise _unreadable(path, "Parquet", number, error) from error


def wanted_columns(names: list[str], prompts: frozenset[str], others: frozenset[str]) -> list[str]:
    """Those of `names` that are among `prompts` and `others`; without any of `prompts` all, to be named."""
    read = prompts | others if prompts & set(names) else frozenset(names)
    return [name for name in names if name in read]


def rows_of(batches: Iterable[Any]) -> Iterator[Row | BadRow]:
    """Yield the rows of Arrow batches or tables, numbered from 1, without the nulls of their structs."""
    for number, values in enumerate(_plain(batches), 1):
        yield BadRow(number, values) if isinstance(values, str) else _row(number, _pruned(values))


def read_csv(path: Path) -> Iterator[Row | BadRow]:
    """Yield the rows of a CSV in UTF-8 with a header; an empty cell is null, everything else is text.

    Raises InputError when the file can't be parsed or pyarrow isn't installed.
    """
    ragged: deque[BadRow] = deque()
    number = 0
    try:
        with _open_csv(path, ragged) as batches:
            for cells in _plain(batches):
                number += 1
                while ragged and ragged[0].number == number:
                    yield ragged.popleft()
                    number += 1
                yield BadRow(number, cells) if isinstance(cells, str) else _cells_row(number, cells)
    except UNREADABLE as error:
        raise _unreadable(path, "CSV", number, error) from error
    yield from ragged


def _open_csv(path: Path, ragged: deque[BadRow]) -> Any:
    """A reader whose columns are all bytes: guessed types would make numbers of texts like 007."""
    csv = _pyarrow(path, "csv")
    binary = importlib.import_module("pyarrow").binary()

    def leave_out(row: Any) -> str:
        reason = f"{row.actual_columns} cells, but the header has {row.expected_columns}"
        ragged.append(BadRow(row.number - 1, reason))
        return "skip"

    def opened(types: dict[str, Any] | None) -> Any:
        return csv.open_csv(
            path,
            read_options=csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES),
            parse_options=csv.ParseOptions(newlines_in_values=True, invalid_row_handler=leave_out),
            convert_options=csv.ConvertOptions(column_types=types, check_utf8=False),
        )

    with opened(None) as header:
        names = _distinct(path, header.schema.names)
    ragged.clear()
    return opened(dict.fromkeys(names, binary))


def _pyarrow(path: Path, name: str) -> Any:
    try:
        return importlib.import_module(f"pyarrow.{name}")
    except ImportError as error:
        raise InputError(
            f"{path}: pyarrow, which reads such a file, isn't installed: pip install 'synthgen[train]'"
        ) from error


def _unreadable(path: Path, name: str, number: int, error: Exception) -> InputError:
    """An error of pyarrow in one line that says how far it went."""
    reason = str(error).splitlines()[0]
    if "straddl" in reason:
        reason = f"a row is longer than {in_units(BLOCK_BYTES)}, or a quote is never closed"
    after = f" after row {number}" if number else ""
    return InputError(f"{path}: can't be read as {name}{after}: {reason}")


def _distinct(path: Path, names: list[str]) -> list[str]:
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InputError(f"{path}: column `{twice[0]}` is there {names.count(twice[0])} times: rename one")
    return names


def _plain(batches: Iterable[Any]) -> Iterator[dict[str, Any] | str]:
    """Each row as a dict of plain values, or what is wrong with it."""
    for batch in batches:
        for start in range(0, batch.num_rows, ROWS_AT_ONCE):
            part = batch.slice(start, ROWS_AT_ONCE)
            try:
                yield from part.to_pylist()
            except UnicodeDecodeError:
                for index in range(part.num_rows):
                    yield _plain_row(part.slice(index, 1))


def _plain_row(batch: Any) -> dict[str, Any] | str:
    try:
        values: dict[str, Any] = batch.to_pylist()[0]
    except UnicodeDecodeError as error:
        return f"not UTF-8: {error.reason}"
    return values


def _pruned(row: dict[str, Any]) -> dict[str, Any]:
    """A row without the nulls of its structs."""
    return {name: _without_nulls(value) for name, value in row.items()}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


def _cells_row(number: int, cells: dict[str, bytes | None]) -> Row | BadRow:
    values = {}
    for name, cell in cells.items():
        try:
            values[name] = cell.decode() if cell else None
        except UnicodeDecodeError as error:
            return BadRow(number, f"not UTF-8: {error.reason}", name)
    return _row(number, values)


def _row(number: int, values: dict[str, Any]) -> Row | BadRow:
    for name in NESTED & values.keys():
        value = values[name]
        if isinstance(value, str) and value.lstrip().startswith(("[", "{")):
            try:
                values[name] = msgspec.json.decode(value)
            except (msgspec.DecodeError, RecursionError) as error:
                return BadRow(number, f"not JSON: {error}", name)
        elif not value:
            values[name] = None
    return Row(number, values)

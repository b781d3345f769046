"""Parquet and CSV: plain values, numbered rows, and files that are neither."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from synthgen.errors import InputError
from synthgen.sources import tables
from synthgen.sources.rows import BadRow, Row
from synthgen.sources.tables import read_csv, read_parquet

PROMPTS, OTHERS = frozenset({"messages", "prompt"}), frozenset({"tools", "sampling", "source"})


def parquet(path: Path, *rows: dict[str, Any]) -> list[Row | BadRow]:
    """Rows that were through a Parquet file."""
    pq.write_table(pa.Table.from_pylist(list(rows)), path)
    return list(read_parquet(path, PROMPTS, OTHERS))


def csv(path: Path, content: bytes) -> list[Row | BadRow]:
    """The rows of a CSV of `content`."""
    path.write_bytes(content)
    return list(read_csv(path))


def test_parquet_gives_plain_values_of_the_columns_that_count(tmp_path: Path) -> None:
    """An embedding beside the prompt isn't even read."""
    row = {"prompt": "a", "source": None, "embedding": [0.5, 0.25]}
    assert parquet(tmp_path / "p.parquet", row) == [Row(1, {"prompt": "a", "source": None})]


def test_a_parquet_file_without_prompts_is_read_with_all_its_columns(tmp_path: Path) -> None:
    """So that they can be named."""
    rows = parquet(tmp_path / "p.parquet", {"text": "a", "source": "s"})
    assert rows == [Row(1, {"text": "a", "source": "s"})]


def test_a_struct_has_only_the_fields_of_its_own_row(tmp_path: Path) -> None:
    """Parquet gives each tool the parameters of all tools, as nulls."""
    tools = [
        [{"name": "f", "properties": {"a": {"type": "string"}}}],
        [{"name": "g", "properties": {"b": 1}}],
    ]
    rows = parquet(
        tmp_path / "p.parquet",
        {"prompt": "1", "tools": tools[0], "sampling": {"top_p": 0.5, "max_tokens": None}},
        {"prompt": "2", "tools": tools[1], "sampling": {"top_p": None, "max_tokens": None}},
    )
    assert rows == [
        Row(1, {"prompt": "1", "tools": tools[0], "sampling": {"top_p": 0.5}}),
        Row(2, {"prompt": "2", "tools": tools[1], "sampling": None}),
    ]


def test_text_that_is_no_utf8_is_a_bad_row_of_a_parquet_file(tmp_path: Path) -> None:
    """The rows beside it are read."""
    binary = pa.array([b"a", b"caf\xe9", b"c"], pa.binary())
    table = pa.table({"prompt": pa.Array.from_buffers(pa.string(), 3, binary.buffers())})
    pq.write_table(table, tmp_path / "p.parquet")
    assert list(read_parquet(tmp_path / "p.parquet", PROMPTS, OTHERS)) == [
        Row(1, {"prompt": "a"}),
        BadRow(2, "not UTF-8: unexpected end of data"),
        Row(3, {"prompt": "c"}),
    ]


def test_csv_cells_stay_the_text_they_are(tmp_path: Path) -> None:
    """No number, date or missing value is guessed; an empty cell is null, a cell may have several lines."""
    content = '\ufeffprompt,domain\n007,NA\n"a, ""b""\nc",\n'.encode()
    assert csv(tmp_path / "p.csv", content) == [
        Row(1, {"prompt": "007", "domain": "NA"}),
        Row(2, {"prompt": 'a, "b"\nc', "domain": None}),
    ]


def test_nested_columns_are_json_in_a_csv(tmp_path: Path) -> None:
    """Broken JSON is named with its column; text that isn't meant as JSON stays text."""
    content = b'prompt,tools,body\na,"[{""x"": 1}]",Dear all\nb,[1,\nc,[1\n'
    assert csv(tmp_path / "p.csv", content) == [
        Row(1, {"prompt": "a", "tools": [{"x": 1}], "body": "Dear all"}),
        BadRow(2, "not JSON: Input data was truncated", "tools"),
        BadRow(3, "2 cells, but the header has 3"),
    ]


def test_bad_rows_of_a_csv_keep_their_numbers_across_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every seventh row has a cell too many, every eleventh is Latin-1."""
    monkeypatch.setattr(tables, "BLOCK_BYTES", 256)
    kinds = [b"q,x,y" if i % 7 == 0 else b"caf\xe9,x" if i % 11 == 0 else b'"q\nr",x' for i in range(1, 401)]
    rows = csv(tmp_path / "p.csv", b"prompt,domain\n" + b"\n".join(kinds) + b"\n")
    assert [row.number for row in rows] == list(range(1, 401))
    bad = {row.number: row.where for row in rows if isinstance(row, BadRow)}
    expected = {
        i: f"{i}" if i % 7 == 0 else f"{i}:prompt" for i in range(1, 401) if i % 7 == 0 or i % 11 == 0
    }
    assert bad == expected


def test_a_quote_that_is_never_closed_is_named_with_the_row_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would swallow the rest of the file."""
    monkeypatch.setattr(tables, "BLOCK_BYTES", 256)
    with pytest.raises(
        InputError, match=r"p\.csv: can't be read as CSV after row 1: a row is longer than 256 B"
    ):
        csv(tmp_path / "p.csv", b'prompt\nok\n"' + b"x" * 1000)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.parquet", b"PAR1", r"p\.parquet: can't be read as Parquet: "),
        ("p.csv", b"\n\n", r"p\.csv: can't be read as CSV: CSV parse error: Empty CSV file"),
        ("p.csv", b"a,a\n1,2\n", r"p\.csv: column `a` is there 2 times: rename one"),
        ("p.csv", b"\xff\xfea,b\n1,2\n", r"p\.csv: can't be read as CSV: 'utf-8' codec can't decode"),
    ],
)
def test_a_file_that_is_no_table_is_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    """One line, from a library that has many."""
    (tmp_path / name).write_bytes(content)
    path = tmp_path / name
    with pytest.raises(InputError, match=message):
        list(read_csv(path) if name == "p.csv" else read_parquet(path, PROMPTS, OTHERS))


def test_without_pyarrow_the_extra_that_brings_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The harness installs without it."""
    monkeypatch.setitem(sys.modules, "pyarrow.csv", None)
    with pytest.raises(InputError, match=r"p\.csv: pyarrow, .* pip install 'synthgen\[train\]'"):
        csv(tmp_path / "p.csv", b"prompt\na\n")

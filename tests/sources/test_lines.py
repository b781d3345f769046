"""JSONL: numbered rows, bounded lines, and what is wrong with a line."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from synthgen.sources import lines
from synthgen.sources.lines import read_lines
from synthgen.sources.rows import BadRow, Row


def read(path: Path, content: bytes) -> list[Row | BadRow]:
    """The rows of a file of `content`."""
    path.write_bytes(content)
    return list(read_lines(path))


def test_rows_are_numbered_as_an_editor_numbers_lines(tmp_path: Path) -> None:
    """Blank lines count, Windows line ends, a byte-order mark and U+2028 are no matter."""
    content = '\ufeff{"a": 1}\r\n\r\n{"a": "x\u2028y"}'.encode()
    assert read(tmp_path / "p.jsonl", content) == [Row(1, {"a": 1}), Row(3, {"a": "x\u2028y"})]


def test_a_line_over_the_limit_is_named_and_the_next_one_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is passed over in pieces; a line of just the limit is read."""
    monkeypatch.setattr(lines, "LINE_LIMIT_BYTES", 10)
    content = b'{"a":1234}\n{"a": "' + b"x" * 95 + b'"}\n{"b":5678}\n{"c":56789}'
    assert read(tmp_path / "p.jsonl", content) == [
        Row(1, {"a": 1234}),
        BadRow(2, "the line is longer than 10 B, the limit of a line"),
        Row(3, {"b": 5678}),
        BadRow(4, "the line is longer than 10 B, the limit of a line"),
    ]


@pytest.mark.parametrize(
    ("line", "where", "reason"),
    [
        (b'{"a": "caf\xe9"}', "1:11", "not UTF-8: invalid continuation byte"),
        (b'{"a": b}', "1:7", "not JSON: JSON is malformed: invalid character (byte 6)"),
        (b'{"a": 1', "1:8", "not JSON: Input data was truncated"),
        (b"3", "1:1", "a line is a JSON object, this is int"),
        (b"[" * 100_000, "1:1", "not JSON that can be read: it is nested too deeply"),
    ],
)
def test_what_is_no_json_object_is_named_with_its_column(
    tmp_path: Path, line: bytes, where: str, reason: str
) -> None:
    """Columns are bytes, from 1; the line after it is read all the same."""
    bad, good = read(tmp_path / "p.jsonl", line + b'\n{"a": 1}\n')
    assert isinstance(bad, BadRow)
    assert (bad.where, bad.reason) == (where, reason)
    assert good == Row(2, {"a": 1})


def test_a_line_of_a_gibibyte_is_passed_over_in_little_memory(tmp_path: Path) -> None:
    """A sparse file: zeros that take no disk. What is held is one line of the limit and a piece."""
    path = tmp_path / "p.jsonl"
    with path.open("wb") as file:
        file.write(b'{"a": 1}\n')
        file.seek(1 << 30)
        file.write(b'\n{"b": 2}\n')
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rows = list(read_lines(path))
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert rows == [
        Row(1, {"a": 1}),
        BadRow(2, "the line is longer than 64.0 MiB, the limit of a line"),
        Row(3, {"b": 2}),
    ]
    assert grown_kib < 300 << 10

"""A source of prompts, a file or a dataset of the hub: its format by its name, its shape by its first row.

`domain` names the kind of prompt; without it `category` is taken, then `source`, else the file's name.
`tools` are OpenAI function tools. `sampling` overrides the run's temperature, top_p, max_tokens or thinking
for this prompt.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from synthgen.corpus.records import SamplingOverride, SeedPrompt, seed_id
from synthgen.corpus.sections import OnBadRow
from synthgen.errors import InputError
from synthgen.sources.batch import require_honoured, sampling_of
from synthgen.sources.hub import PREFIX, HubDataset, read_hub, resolved
from synthgen.sources.lines import read_lines
from synthgen.sources.rows import BadRow, Row
from synthgen.sources.shapes import COLUMNS, OTHER_COLUMNS, Kind, Shape, detect
from synthgen.sources.tables import read_csv, read_parquet
from synthgen.sources.turns import conversation_of


class Format(enum.StrEnum):
    """How rows are written."""

    JSONL = "JSONL"
    PARQUET = "Parquet"
    CSV = "CSV"
    HUB = "hub"


FORMATS = {".parquet": Format.PARQUET, ".csv": Format.CSV}
"""By the end of a file's name; any other is JSONL."""


T = TypeVar("T")


class RowFile(abc.ABC, Generic[T]):
    """A source to iterate over once; what it was is known at the end, its shape from the first good row on.

    Text that begins with `hub:` is a dataset, a path and any other text a file. Raises ConfigError for a
    dataset in another form, InputError when the source can't be read or is empty and, unless bad rows are
    skipped, at the first of them, with its row and the column where that is known.

    `field_must_be` false takes a row without `field` as if none were named.
    """

    other_columns: ClassVar[frozenset[str]] = frozenset(OTHER_COLUMNS)
    """What is read beside the column of the prompt."""

    def __init__(
        self,
        source: Path | str,
        field: str | None = None,
        on_bad_row: OnBadRow = "refuse",
        *,
        field_must_be: bool = True,
    ) -> None:
        is_hub = isinstance(source, str) and source.startswith(PREFIX)
        self.path = str(source)
        self.place: Path | HubDataset = HubDataset.parse(self.path) if is_hub else Path(source)
        self.format = Format.HUB if is_hub else FORMATS.get(Path(source).suffix.lower(), Format.JSONL)
        self.shape: Shape | None = None
        self.rows = 0
        self.left_out = 0
        self.first_left_out: BadRow | None = None
        self._field = field
        self._field_must_be = field_must_be
        self._on_bad_row = on_bad_row
        self._first_row = 0

    @abc.abstractmethod
    def _make(self, row: dict[str, Any], shape: Shape) -> T:
        """What a row gives. Raises ValueError."""

    def __iter__(self) -> Iterator[T]:
        for row in self._read():
            self.rows += 1
            made = row if isinstance(row, BadRow) else self._made(row)
            if isinstance(made, BadRow):
                self._leave_out(made)
            else:
                yield made
        if not self.rows:
            raise InputError(f"{self.path}: is empty: it has no row")

    @property
    def note(self) -> str:
        """What was left out, in one line; empty when nothing was."""
        if self.first_left_out is None:
            return ""
        first = f"first at row {self.first_left_out.number}: {self.first_left_out.reason}"
        return f"{self.place.name}: {self.left_out:,} of {self.rows:,} rows left out, {first}"

    def _read(self) -> Iterator[Row | BadRow]:
        prompts = frozenset(COLUMNS if self._field is None else (self._field,))
        if isinstance(self.place, HubDataset):
            self.place = resolved(self.place)
            yield from read_hub(self.place, prompts, self.other_columns)
        else:
            yield from self._read_file(self.place, prompts)

    def _read_file(self, path: Path, prompts: frozenset[str]) -> Iterator[Row | BadRow]:
        try:
            if self.format is Format.JSONL:
                yield from read_lines(path)
            elif not _is_empty(path):
                csv = self.format is Format.CSV
                yield from read_csv(path) if csv else read_parquet(path, prompts, self.other_columns)
        except OSError as error:
            known = "a source is a JSONL, Parquet or CSV file"
            raise InputError(f"{self.path}: {error.strerror}: {known}") from error

    def _leave_out(self, row: BadRow) -> None:
        if self._on_bad_row == "refuse":
            raise InputError(f"{self.path}:{row.where}: {row.reason}")
        self.left_out += 1
        self.first_left_out = self.first_left_out or row

    def _made(self, row: Row) -> T | BadRow:
        try:
            return self._make(row.values, self._shape_of(row))
        except (msgspec.ValidationError, ValueError) as error:
            return BadRow(row.number, str(error), 1 if self.format is Format.JSONL else None)

    def _shape_of(self, row: Row) -> Shape:
        """The row's shape, which is that of the whole file."""
        named = self._field_must_be or self._field in row.values
        shape = detect(row.values, self._field if named else None)
        if self.shape is None:
            self.shape, self._first_row = shape, row.number
        elif shape != self.shape:
            raise ValueError(
                f"{shape}, but row {self._first_row} has {self.shape}: one file has one shape; split it, or "
                f"name the column with prompts.field"
            )
        return self.shape


class PromptFile(RowFile[SeedPrompt]):
    """The prompts of a source."""

    def _make(self, row: dict[str, Any], shape: Shape) -> SeedPrompt:
        return _prompt(row, shape, self.place)


def _is_empty(path: Path) -> bool:
    with path.open("rb") as file:
        return not file.read(1)


def _prompt(row: dict[str, Any], shape: Shape, path: Path | HubDataset) -> SeedPrompt:
    asked_tools, asked_sampling = row.get("tools"), row.get("sampling")
    if shape.kind is Kind.BATCH:
        body = row[shape.column]
        require_honoured(row, body)
        asked_tools, asked_sampling = body.get("tools"), sampling_of(body)
    messages, turns = conversation_of(row, shape)
    tools = msgspec.convert(asked_tools or (), tuple[dict[str, Any], ...])
    sampling = msgspec.convert(asked_sampling, SamplingOverride | None)
    if sampling == SamplingOverride():  # says nothing, as a column of nulls in a table does
        sampling = None
    if messages and messages[-1].role == "user" and not (messages[-1].content or "").strip():
        raise ValueError("the prompt is empty")
    return SeedPrompt(
        id=seed_id(messages, tools, sampling, turns),
        source=path.name,
        domain=domain_of(row, path),
        messages=messages,
        tools=tools,
        sampling=sampling,
        turns=turns,
    )


def domain_of(row: dict[str, Any], path: Path | HubDataset) -> str:
    """The kind of prompt that a row is, by its own word or the file's name."""
    source = row.get("source")
    named = row.get("domain") or row.get("category") or (source if isinstance(source, str) else "")
    return str(named) or path.stem

"""What is understood of a run's prompt files, before any server is asked.

Of the prompts only ids and the examples are held.
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from pathlib import Path

import msgspec
from rich.table import Table
from rich.text import Text

from synthgen.corpus.console import tables
from synthgen.corpus.records import SeedPrompt
from synthgen.corpus.sections import PromptsConfig
from synthgen.sources.prompt_file import PromptFile

EXAMPLE_CHARACTERS = 300
DOMAINS_SHOWN = 20


class FileReport(msgspec.Struct, frozen=True, kw_only=True):
    """One file."""

    file: str
    format: str
    shape: str | None
    """None when no row gave a prompt."""
    rows: int
    distinct: int
    """Different prompts in this file."""
    left_out: int
    note: str
    """How many rows were left out, and why the first; empty when none was."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All files of a run."""

    files: tuple[FileReport, ...]
    distinct: int
    """Different prompts in all files together."""
    domains: dict[str, int]
    """How many of them each domain has, most first."""
    examples: tuple[SeedPrompt, ...]


def read_report(config: PromptsConfig, count: int) -> Report:
    """Read the files and keep `count` prompts as examples. Raises InputError as a run would."""
    seen: set[str] = set()
    domains: Counter[str] = Counter()
    files, firsts = [], []
    for name in config.sources:
        file = PromptFile(Path(name), config.field, config.on_bad_row)
        first, ids = _count(file, count, seen, domains)
        firsts.append(first)
        files.append(_file_report(name, file, len(ids)))
        seen |= ids
    examples = [prompt for turn in itertools.zip_longest(*firsts) for prompt in turn if prompt is not None]
    return Report(
        files=tuple(files),
        distinct=len(seen),
        domains=dict(domains.most_common()),
        examples=tuple(examples[:count]),
    )


def _count(
    file: PromptFile, count: int, seen: set[str], domains: Counter[str]
) -> tuple[list[SeedPrompt], set[str]]:
    """The first `count` new prompts of a file, and the ids of all; domains of new ones are counted."""
    first: list[SeedPrompt] = []
    ids: set[str] = set()
    for prompt in file:
        if prompt.id not in seen and prompt.id not in ids:
            domains[prompt.domain] += 1
            if len(first) < count:
                first.append(prompt)
        ids.add(prompt.id)
    return first, ids


def _file_report(name: str, file: PromptFile, distinct: int) -> FileReport:
    return FileReport(
        file=name,
        format=str(file.format),
        shape=None if file.shape is None else str(file.shape),
        rows=file.rows,
        distinct=distinct,
        left_out=file.left_out,
        note=file.note,
    )


def print_report(report: Report, *, as_json: bool) -> None:
    """Print to stdout: two tables and the examples, or one JSON object."""
    if as_json:
        sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
        return
    out = tables()
    out.print(_files_table(report))
    for file in report.files:
        if file.note:
            out.print(Text(file.note))
    out.print(_domains_table(report))
    for prompt in report.examples:
        out.print(Text(f"\n{prompt.domain}  {prompt.source}  {prompt.id}{_extras(prompt)}", style="bold"))
        out.print(Text(_excerpt(prompt)))


def _files_table(report: Report) -> Table:
    table = Table(title=f"{report.distinct:,} different prompts", title_justify="left")
    for name in ("file", "format", "shape"):
        table.add_column(name, overflow="fold")
    for name in ("rows", "distinct", "left out"):
        table.add_column(name, justify="right", no_wrap=True)
    for file in report.files:
        counts = (f"{count:,}" for count in (file.rows, file.distinct, file.left_out))
        table.add_row(Text(file.file), file.format, Text(file.shape or "none"), *counts)
    return table


def _domains_table(report: Report) -> Table:
    table = Table()
    table.add_column("domain", overflow="fold")
    table.add_column("prompts", justify="right", no_wrap=True)
    rows = list(report.domains.items())
    for name, count in rows[:DOMAINS_SHOWN]:
        table.add_row(Text(name), f"{count:,}")
    rest = [count for _, count in rows[DOMAINS_SHOWN:]]
    if rest:
        table.add_row(f"{len(rest):,} more", f"{sum(rest):,}")
    return table


def _extras(prompt: SeedPrompt) -> str:
    tools = f"  {len(prompt.tools)} tools" if prompt.tools else ""
    turns = f"  {1 + len(prompt.turns)} turns" if prompt.turns else ""
    return tools + turns + ("  sampling of its own" if prompt.sampling is not None else "")


def _excerpt(prompt: SeedPrompt) -> str:
    """The prompt's beginning: a single message as it is, several with their roles."""
    messages = prompt.messages
    text = "\n".join(f"{message.role}: {message.content or ''}" for message in messages)
    if len(messages) == 1:
        text = messages[0].content or ""
    return text if len(text) <= EXAMPLE_CHARACTERS else text[:EXAMPLE_CHARACTERS] + " …"

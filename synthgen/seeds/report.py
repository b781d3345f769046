"""What is understood of a run's prompt sources and what is chosen from them, before any server is asked."""

from __future__ import annotations

import itertools
import sys

import msgspec
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from synthgen.corpus.config import RunConfig
from synthgen.corpus.console import tables
from synthgen.corpus.records import SeedPrompt
from synthgen.seeds.choose import PromptSplit
from synthgen.seeds.figures import CORPUS, Figures
from synthgen.seeds.selection import chosen

EXAMPLE_CHARACTERS = 300
DOMAINS_SHOWN = 20
WORDS = {
    "left_out": "left out: give no prompt",
    "duplicate": "the same as an earlier one",
    "near_duplicate": "near an earlier one: prompts.near_duplicates",
    "excluded": "excluded: prompts.exclude",
    "near_excluded": "near an excluded one",
    "over_cap": "over the cap of the domain: prompts.caps",
    "not_drawn": "not drawn: prompts.limit",
    "heldout": "held out for the acceptance: prompts.heldout",
    "corpus": "corpus",
}
"""What becomes of a row."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a run's prompts, and some of them."""

    figures: Figures
    examples: tuple[SeedPrompt, ...]


def read_report(config: RunConfig, count: int) -> Report:
    """What was chosen, or would be, with `count` prompts of it as examples. Raises InputError as a run would.

    That there are too few prompts is no error here.
    """
    split = chosen(config)
    return Report(figures=split.figures, examples=_examples(split, count))


def _examples(split: PromptSplit, count: int) -> tuple[SeedPrompt, ...]:
    """The first prompts of each source in turn; of the corpus, as far as it goes."""
    by_source: dict[str, list[SeedPrompt]] = {}
    for prompt in (*split.corpus, *split.heldout):
        of_source = by_source.setdefault(prompt.source, [])
        if len(of_source) < count:
            of_source.append(prompt)
    turns = itertools.zip_longest(*by_source.values())
    return tuple(prompt for turn in turns for prompt in turn if prompt is not None)[:count]


def print_report(report: Report, *, as_json: bool) -> None:
    """Print to stdout: three tables and the examples, or one JSON object."""
    if as_json:
        sys.stdout.write(_as_json(report) + "\n")
        return
    out = tables()
    out.print(_sources_table(report.figures))
    for source in report.figures.sources:
        if source.note:
            out.print(Text(source.note))
    out.print(_ends_table(report.figures))
    out.print(_domains_table(report.figures))
    for prompt in report.examples:
        out.print(Text(f"\n{prompt.domain}  {prompt.source}  {prompt.id}{_extras(prompt)}", style="bold"))
        out.print(Text(_excerpt(prompt)))


def _as_json(report: Report) -> str:
    figures = report.figures
    counts = {"rows": figures.rows, "distinct": figures.distinct, **figures.ends}
    domains = {
        name: {**msgspec.to_builtins(domain), "dropped": domain.dropped}
        for name, domain in figures.domains.items()
    }
    whole = {"sources": figures.sources, "counts": counts, "domains": domains, "examples": report.examples}
    return msgspec.json.encode(whole).decode()


def _sources_table(figures: Figures) -> Table:
    table = _table(f"{figures.rows:,} rows, {figures.distinct:,} different prompts")
    for name in ("source", "format", "shape"):
        table.add_column(name, overflow="fold")
    _add_counts(table, "rows", "left out", "corpus")
    for source in figures.sources:
        counts = (f"{count:,}" for count in (source.rows, source.left_out, source.corpus))
        table.add_row(Text(source.source), source.format, Text(source.shape or "none"), *counts)
    return table


def _ends_table(figures: Figures) -> Table:
    table = _table("what becomes of the rows")
    table.add_column("end")
    _add_counts(table, "rows", "share")
    for end, count in figures.ends.items():
        if count or end == CORPUS:
            table.add_row(WORDS[end], f"{count:,}", f"{count / figures.rows:.1%}")
    return table


def _domains_table(figures: Figures) -> Table:
    table = _table(f"{len(figures.domains):,} domains")
    table.add_column("domain", overflow="fold")
    _add_counts(table, "read", "dropped", "held out", "corpus")
    rows = [(name, (d.read, d.dropped, d.heldout, d.corpus)) for name, d in figures.domains.items()]
    rest = [counts for _, counts in rows[DOMAINS_SHOWN:]]
    if rest:
        sums = [sum(column) for column in zip(*rest, strict=True)]
        rows[DOMAINS_SHOWN:] = [(f"{len(rest):,} more", (sums[0], sums[1], sums[2], sums[3]))]
    for name, counts in rows:
        table.add_row(Text(name), *(f"{count:,}" for count in counts))
    return table


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)


def _add_counts(table: Table, *names: str) -> None:
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)


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

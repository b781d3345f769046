"""What rendering and the audit show on a terminal: tables within 100 columns."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from synthgen.corpus.console import printable, tables


def print_rendered(figures: dict[str, Any]) -> None:
    """One line a part, then why conversations were dropped."""
    out = tables()
    table = Table(title="replies of others", title_justify="left")
    table.add_column("part", overflow="fold")
    for name in ("rows", "supervised tokens", "needed", "read", "left out", "considered", "dropped"):
        table.add_column(name, justify="right")
    for name, part in figures["parts"].items():
        counts = (part["rows"], part["supervised_tokens"], part["needed"], part["read"], part["left_out"])
        dropped = sum(part["drops"].values())
        cells = ("all" if c is None else f"{c:,}" for c in (*counts, part["considered"], dropped))
        table.add_row(_shown(name), *cells)
    out.print(table)
    for name, part in figures["parts"].items():
        for reason, count in part["drops"].items():
            out.print(_shown(f"{name}: {count:,} {reason}"))
        for example in part["examples"]:
            out.print(_shown(f"  {example}"), overflow="ellipsis", no_wrap=True)


def print_audit(figures: dict[str, Any]) -> None:
    """The shares, where replies part, and examples with their tokens."""
    out = tables()
    table = Table(title="texts made tokens again", title_justify="left")
    table.add_column("what", no_wrap=True)
    table.add_column("found")
    traces, tokens = figures["traces"], figures["tokens"]
    table.add_row(
        "traces that differ", f"{figures['differ']:,} of {traces:,} ({figures['differ_share']:.1%})"
    )
    table.add_row(
        "tokens from the first difference on",
        f"{figures['tokens_after']:,} of {tokens:,} ({figures['tokens_after_share']:.1%})",
    )
    table.add_row("where it is", ", ".join(f"{count:,} {name}" for name, count in figures["where"].items()))
    out.print(table)
    for example in figures["examples"]:
        out.print()
        out.print(_shown(f"{example['trace']}, token {example['token']}, {example['where']}", style="bold"))
        for name in ("sampled", "again"):
            out.print(
                _shown(f"  {name:>7}  {'|'.join(example[name])}"),
                overflow="ellipsis",
                no_wrap=True,
            )
            out.print(Text(f"           {example[f'{name}_ids']}"))


def _shown(text: str, style: str = "") -> Text:
    """`text` on one line, without markup and control characters."""
    return Text(printable(text).replace("\n", "\\n").replace("\t", "\\t"), style=style)

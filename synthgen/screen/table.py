"""The report of screening as people read it: a table of the rules, and examples of what they found."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from synthgen.corpus.console import printable, tables
from synthgen.corpus.manifest import Manifest


def print_screening(manifest: Manifest) -> None:
    """Print at most 100 columns wide."""
    out = tables()
    figures = manifest.figures
    out.print(_table(manifest))
    kept, dropped = (sum(figures[name].values()) for name in ("tokens_kept", "tokens_dropped"))
    out.print(
        f"{figures['kept']:,} of {figures['traces']:,} traces kept, "
        f"{kept:,} of {kept + dropped:,} output tokens"
    )
    for rule, examples in figures["examples"].items():
        if examples:
            out.print(f"\n[bold]{rule}")
        for example in examples:
            where, what = printable(example["trace"]), printable(example["excerpt"])
            out.print(Text(f"  {where}  ", style="cyan") + Text(what, style="dim"))


def _table(manifest: Manifest) -> Table:
    figures = manifest.figures
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("rule", no_wrap=True)
    for name in ("found", "dropped", "share"):
        table.add_column(name, justify="right", no_wrap=True)
    drop = manifest.settings["screen"]["drop"]
    for rule, found in figures["tags"].items():
        dropped = figures["by_reason"][rule]
        share = f"{dropped / figures['traces']:.2%}" if figures["traces"] else ""
        table.add_row(
            rule,
            f"{found:,}",
            *((f"{dropped:,}", share) if rule in drop else ("only noted", "")),
        )
    whole = f"{figures['dropped'] / figures['traces']:.2%}" if figures["traces"] else ""
    table.add_section()
    table.add_row("all", "", f"{figures['dropped']:,}", whole)
    return table

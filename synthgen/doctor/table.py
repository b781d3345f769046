"""The examination as people read it: a line a check, and at the end how many are wrong."""

from __future__ import annotations

from itertools import groupby

from rich.table import Table
from rich.text import Text

from synthgen.corpus.console import printable, tables
from synthgen.doctor.findings import Finding, Level

STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.PROBLEM: "bold red"}


def print_findings(findings: list[Finding]) -> None:
    """Print at most 100 columns wide."""
    out = tables()
    for where, group in groupby(findings, key=lambda found: found.where):
        out.print(_table(where, list(group)))
    problems, warnings = (
        sum(found.level is level for found in findings) for level in (Level.PROBLEM, Level.WARNING)
    )
    out.print("nothing is wrong" if not problems else _counted(problems, "problem"), end="")
    out.print(f", {_counted(warnings, 'warning')}" if warnings else "")


def _table(where: str, findings: list[Finding]) -> Table:
    table = Table(title=Text(printable(where), style="bold"), title_justify="left", box=None, pad_edge=False)
    table.show_header = False
    for overflow in (None, None, "fold"):
        table.add_column(no_wrap=overflow is None, overflow=overflow or "ellipsis")
    for found in findings:
        level = Text(found.level, style=STYLES[found.level])
        table.add_row(level, found.check, Text(printable(found.said)))
    return table


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"

"""A training's last validation as people read it."""

from __future__ import annotations

from typing import Any

import msgspec
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from eagle.validate import Acceptance, Validation
from synthgen.corpus.console import tables

LONGEST_NAME = 30


def print_validation(figures: dict[str, Any]) -> None:
    """Print by span and by domain what the manifest of a training states of its validations."""
    last, best = (msgspec.convert(figures[name], Validation) for name in ("last", "best"))
    out = tables()
    out.print(
        f"held out, after step {last.step:,}: loss {last.loss:.3f}; best was step {best.step:,} with "
        f"acceptance length {best.whole.length:.2f}"
    )
    out.print(_table(last))


def _table(last: Validation) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("drafted in", no_wrap=True, max_width=LONGEST_NAME)
    for name in ("slots", "length", *(f"tok {at}" for at in range(1, len(last.losses) + 1))):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_row(*_cells("all", last.whole), end_section=True)
    for groups in (last.by_kind, last.by_domain):
        for name, group in groups.items():
            table.add_row(*_cells(escape(name), group), end_section=name == [*groups][-1])
    return table


def _cells(name: str, group: Acceptance) -> list[str]:
    shares = (f"{share:.1%}" for share in group.accuracy)
    return [name, f"{group.slots:,}", f"{group.length:.2f}", *shares]

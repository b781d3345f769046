"""The comparison as people read it, within 100 columns."""

from __future__ import annotations

from collections.abc import Iterable

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from eagle.accept.bootstrap import Interval
from eagle.compare.report import Compared, Comparison, Draft
from synthgen.corpus.console import tables

LONGEST_NAME = 30
NONE = "-"


def print_comparison(found: Comparison) -> None:
    """Print what the drafts learned from, how they did, and what follows, on stdout."""
    out = tables()
    if any(draft.trained_on for draft in found.drafts):
        out.print(_training(found))
    out.print(_lengths(found))
    out.print(_positions(found))
    out.print(
        f"{found.num_draft_tokens} draft tokens, {found.prompts} held-out prompts, greedy; intervals of 95 % "
        f"by bootstrap over prompts; ratios to {escape(found.drafts[0].name)} on the same prompts"
    )
    for said in found.findings:
        out.print(escape(said))
    for warning in found.warnings:
        out.print(f"[yellow]warning:[/] {escape(warning)}")


def _table(first: str, numbers: Iterable[str]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column(first, no_wrap=True, max_width=LONGEST_NAME)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _training(found: Comparison) -> Table:
    names = ("rows", "supervised tokens", "batch tokens", "updates", "last loss", "seconds")
    table = _table("trained on", names)
    for draft in found.drafts:
        if (on := draft.trained_on) is not None:
            table.add_row(
                escape(draft.name),
                f"{on.rows:,}",
                f"{on.supervised_tokens:,}",
                f"{on.batch_tokens:,}",
                f"{on.updates:,}",
                f"{on.loss_last:.3f}",
                f"{on.seconds:,.0f}",
            )
    return table


def _lengths(found: Comparison) -> Table:
    """Every group of replies, and under its name a line for each draft."""
    names = ("length", "95 % interval", "ratio", "95 % interval", "prompts", "steps")
    table = _table("tokens a step", names)
    for group in dict.fromkeys(name for draft in found.drafts for name in draft.groups):
        table.add_row(escape(group))
        shown = [draft for draft in found.drafts if group in draft.groups]
        for draft in shown:
            cells = _compared(draft.groups[group])
            table.add_row(f"  {escape(draft.name)}", *cells, end_section=draft is shown[-1])
    return table


def _compared(one: Compared) -> tuple[str, ...]:
    ratio = NONE if one.ratio is None else f"{one.ratio:.3f}"
    return (
        f"{one.length:.3f}",
        _interval(one.interval),
        ratio,
        _interval(one.ratio_interval),
        f"{one.prompts:,}",
        f"{one.steps:,}",
    )


def _positions(found: Comparison) -> Table:
    positions = (f"accepted at {at + 1}" for at in range(found.num_draft_tokens))
    table = _table("by the server's counters", ("length", *positions))
    for draft in found.drafts:
        table.add_row(*_counted(draft))
    return table


def _counted(draft: Draft) -> tuple[str, ...]:
    rates = (f"{rate:.1%}" for rate in draft.rate_by_position)
    return (escape(draft.name), f"{draft.counted_length:.3f}", *rates)


def _interval(interval: Interval | None) -> str:
    return NONE if interval is None else f"{interval.low:.3f} to {interval.high:.3f}"

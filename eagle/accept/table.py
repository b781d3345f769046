"""The acceptance report as people read it, within 100 columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from eagle.accept.report import AcceptanceReport, AtConcurrency, Offline, Speed
from eagle.accept.steps import StepFigures
from synthgen.corpus.console import tables

LONGEST_NAME = 30
NONE = "-"
COUNTERS, LIVE = "counters", "live replies"


def print_report(report: AcceptanceReport) -> None:
    """Print the whole report on stdout."""
    out = tables()
    out.print(_headline(report))
    out.print(_lengths(report))
    if report.live is not None:
        out.print(
            "counters: with what was accepted beyond the replies' ends; live replies, offline: up to there",
        )
    out.print(_by_draft_tokens(report))
    out.print(_speeds(report))
    _print_notes(out, report)


def _headline(report: AcceptanceReport) -> str:
    text = (
        f"acceptance length {report.acceptance_length:.3f} with {report.num_draft_tokens} draft tokens, by "
        f"the server's counters on {report.prompts} prompts"
    )
    if report.live is not None and (interval := report.live.interval) is not None:
        text += f" (95 % interval over prompts: {interval.low:.3f} to {interval.high:.3f})"
    if report.acceptance_length_untrained is not None:
        text += f"; untrained {report.acceptance_length_untrained:.3f}"
    if report.gap is not None:
        text += f"; offline on the same replies {report.gap:+.1%}"
    return text


def _table(first: str, columns: Iterable[str]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column(first, no_wrap=True, max_width=LONGEST_NAME)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _lengths(report: AcceptanceReport) -> Table:
    """Tokens a step, and what is accepted at each position, by each of the ways to know it."""
    offline = _offline(report)
    walked = {name: one.walked for name, one in offline.items()}
    columns = {LIVE: report.live, **walked} if report.live else walked
    wholes = [one.whole for one in columns.values()]
    table = _table("tokens a step", (COUNTERS, *columns))
    table.add_row("all", _number(report.acceptance_length), *map(_length, wholes))
    if offline:
        slots = [_number(offline[name].every_slot) if name in offline else NONE for name in columns]
        table.add_row("each slot alike", NONE, *slots)
    table.add_row("steps", NONE, *(f"{one.steps:,}" for one in wholes), end_section=True)
    for position, rate in enumerate(report.rate_by_position):
        last = position == len(report.rate_by_position) - 1
        rates = (f"{one.rate_by_position[position]:.1%}" for one in wholes)
        table.add_row(f"accepted at {position + 1}", f"{rate:.1%}", *rates, end_section=last)
    _add_groups(table, {}, [one.by_span for one in columns.values()])
    _add_groups(table, report.length_by_domain, [one.by_domain for one in columns.values()])
    return table


def _offline(report: AcceptanceReport) -> dict[str, Offline]:
    """Those that were measured, by what their column is called."""
    both = {"offline, same": report.offline, "offline, validation": report.heldout}
    return {name: one for name, one in both.items() if one is not None}


def _add_groups(table: Table, counted: dict[str, float], groups: Sequence[dict[str, StepFigures]]) -> None:
    """A row for each span or domain that any of them has."""
    names = list(dict.fromkeys([*counted, *(name for group in groups for name in group)]))
    for name in names:
        lengths = (_length(group.get(name)) for group in groups)
        table.add_row(escape(name), _number(counted.get(name)), *lengths, end_section=name == names[-1])


def _by_draft_tokens(report: AcceptanceReport) -> Table:
    offline = _offline(report)
    table = _table("draft tokens", (COUNTERS, "", *offline))
    for place, one in enumerate(report.length_by_draft_tokens):
        walked = (_length(_at(side, place)) for side in offline.values())
        source = "served" if one.served else "from more"
        table.add_row(str(one.num_draft_tokens), _number(one.length), source, *walked)
    return table


def _at(offline: Offline, place: int) -> StepFigures | None:
    return offline.by_draft_tokens[place] if place < len(offline.by_draft_tokens) else None


def _speeds(report: AcceptanceReport) -> Table:
    names = ("tokens/s", "without", "ratio", "mean s", "without", "p95 s", "without", "same", "itself")
    table = _table("at once", names)
    for one in report.by_concurrency:
        table.add_row(*_speed(one))
    return table


def _speed(one: AtConcurrency) -> list[str]:
    pairs = [
        (f"{getattr(one.drafted, name):.{digits}f}", _of(one.undrafted, name, digits))
        for name, digits in (("tokens_per_s", 1), ("seconds_mean", 2), ("seconds_p95", 2))
    ]
    spread = one.speedup_by_round
    ratio = f"{one.speedup:.2f} ({min(spread):.2f}-{max(spread):.2f})" if one.speedup else NONE
    same = f"{one.same_replies}/{one.compared_replies}" if one.compared_replies else NONE
    itself = f"{one.same_undrafted}/{one.compared_undrafted}" if one.compared_undrafted else NONE
    return [str(one.concurrency), *pairs[0], ratio, *pairs[1], *pairs[2], same, itself]


def _of(speed: Speed | None, name: str, digits: int) -> str:
    return NONE if speed is None else f"{getattr(speed, name):.{digits}f}"


def _print_notes(out: Console, report: AcceptanceReport) -> None:
    if report.lossless is not None:
        out.print(
            f"one at a time {report.same_replies} of {report.compared_replies} replies are the undrafted "
            f"server's, token for token",
        )
    for warning in report.warnings:
        out.print(f"[yellow]warning:[/] {escape(warning)}")
    for said in report.not_measured:
        out.print(f"not measured: {escape(said)}")


def _number(value: float | None) -> str:
    return NONE if value is None else f"{value:.3f}"


def _length(figures: StepFigures | None) -> str:
    return NONE if figures is None else f"{figures.length:.3f}"

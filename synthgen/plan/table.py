"""A plan as people read it: a table, what is fixed and what grows with the rows, the formulas on demand."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.table import Table

from synthgen.corpus.console import tables
from synthgen.corpus.files import SPARE, in_units
from synthgen.generate.panel import duration
from synthgen.plan.costs import Plan


def print_plan(plan: Plan, *, explain: bool = False, stderr: bool = False) -> None:
    """Print at most 100 columns wide."""
    out = tables(stderr=stderr)
    out.print(_table(plan))
    out.print(_disk(plan))
    out.print(_time(plan))
    if explain:
        for stage in plan.stages:
            for name, formula in stage.formulas.items():
                out.print(f"  {stage.name} {name} = {formula}", soft_wrap=True)


def _table(plan: Plan) -> Table:
    title = f"{plan.run_dir}: at most, stage by stage (* assumed until measured)"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("stage", no_wrap=True)
    for name in ("rows", "tokens", "disk", "starts", "work", "tok/s"):
        table.add_column(name, justify="right", no_wrap=True)
    for stage in plan.stages:
        table.add_row(
            stage.name,
            f"{stage.rows:,}",
            f"{stage.tokens:,}",
            in_units(stage.disk_bytes) if stage.disk_bytes else "",
            f"{stage.starts} × {duration(stage.load_s / stage.starts)}" if stage.load_s else "",
            duration(stage.work_s),
            f"{stage.tokens / stage.work_s:,.0f} {' ' if stage.measured else '*'}" if stage.work_s else "",
        )
    return table


def _disk(plan: Plan) -> str:
    share = plan.disk_bytes / plan.free_bytes if plan.free_bytes else float("inf")
    fits = plan.disk_bytes * SPARE <= plan.free_bytes
    return (
        f"disk: {in_units(plan.disk_bytes)} of {in_units(plan.free_bytes)} free ({share:.0%}), which "
        f"{'fits' if fits else 'does NOT fit: lower prompts.limit or generate.max_tokens'}; the hidden "
        f"states alone are {in_units(plan.stage('extract').disk_bytes)}"
    )


def _time(plan: Plan) -> str:
    measured = "measured" if plan.load_rate.measured else "assumed"
    whole = duration(plan.load_s + plan.work_s)
    if not plan.load_s:
        return f"time: {whole}, all of which grows with the rows"
    return (
        f"time: {whole}, of which {duration(plan.load_s)} go into servers' starts, however many rows there "
        f"are ({measured}: {duration(plan.load_rate.value)} each); from {plan.rows_worth_the_load:,} rows on "
        f"the work takes longer"
    )

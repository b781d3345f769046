"""The whole line: what it costs, and running it."""

from __future__ import annotations

import sys
from typing import Annotated

import msgspec
import typer

from synthgen.commands.options import Config, Overrides
from synthgen.corpus.console import exits
from synthgen.corpus.settings import load_config
from synthgen.generate.stage import Request
from synthgen.generate.stage import generate as generate_corpus
from synthgen.plan.costs import as_figures
from synthgen.plan.stages import plan as plan_run
from synthgen.plan.table import print_plan
from synthgen.run import print_commands, print_summary
from synthgen.run import run as run_stages


def plan(
    config: Config,
    set_: Overrides = [],  # noqa: B006
    explain: Annotated[bool, typer.Option("--explain", help="Show the formula of each figure.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object instead of the table.")] = False,
    probe: Annotated[
        int, typer.Option(help="Generate this many rows first, and plan with what they took; they are kept.")
    ] = 0,
) -> None:
    """What a run costs before it starts: rows, tokens, bytes and hours of each stage.

    Examples: `synthgen plan my.yaml --explain`, `synthgen plan my.yaml --probe 32`
    """
    with exits(resumes=bool(probe)):
        loaded = load_config(config, tuple(set_))
        if probe:
            generate_corpus(loaded, Request(limit=probe))
        made = plan_run(loaded)
        if json:
            sys.stdout.write(msgspec.json.encode(as_figures(made)).decode() + "\n")
        else:
            print_plan(made, explain=explain)


def run(
    config: Config,
    set_: Overrides = [],  # noqa: B006
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print each stage's command and the plan.")
    ] = False,
) -> None:
    """From prompts to a draft that a live vLLM serves, with its gain measured.

    Complete stages are skipped. The last line of stdout is one JSON object.

    Example: `synthgen run configs/demo.yaml --dry-run`
    """
    with exits():
        loaded = load_config(config, tuple(set_))
        if dry_run:
            print_commands(loaded, config, tuple(set_))
            print_plan(plan_run(loaded), stderr=True)
            return
        print_summary(loaded, run_stages(loaded))

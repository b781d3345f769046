"""`eagle compare`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from eagle.compare.report import Comparison
from eagle.compare.stage import PLOT_NAME, compare, given_drafts
from eagle.compare.table import print_comparison
from synthgen.corpus.console import console, exits
from synthgen.corpus.settings import load_config, save_config


def compare_command(
    config: Annotated[Path, typer.Argument(help="The run's YAML: its mix has two parts or more.")],
    set_: Annotated[
        list[str], typer.Option("--set", help="Lay a value over the YAML: --set train.epochs=2")
    ] = [],  # noqa: B006 -- typer makes a new list each time
    draft: Annotated[
        list[str],
        typer.Option("--draft", help="One more draft that is measured, as vLLM loads it: NAME=PATH"),
    ] = [],  # noqa: B006
    tokens: Annotated[
        int | None,
        typer.Option(
            help="Supervised tokens of each arm; as many as the smallest part has, if not given.", min=1
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of tables.")] = False,
) -> None:
    """Train a draft on each part of the mix alone and one on the mix, and measure them side by side.

    All have the same supervised tokens, seed, updates and vocabulary. Ratios are to the first part of the
    mix. What it makes is in RUN/compare; the same command goes on where it stopped.

    Examples: `eagle compare my.yaml`, `eagle compare my.yaml --tokens 100000 --json`,
    `eagle compare my.yaml --draft published=drafts/kimi-k2.5-eagle3`
    """
    with exits():
        loaded = load_config(config, tuple(set_))
        manifest = compare(loaded, given_drafts(loaded, draft), tokens)
        directory = loaded.run_path / "compare"
        save_config(loaded, directory / "run.yaml")
        found = msgspec.convert(manifest.figures, Comparison)
        if as_json:
            sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
        else:
            print_comparison(found)
            console.print(f"the plot is {directory / PLOT_NAME}", soft_wrap=True)

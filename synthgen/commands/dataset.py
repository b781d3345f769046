"""From traces to a dataset."""

from __future__ import annotations

import sys

import msgspec
from rich.table import Table
from rich.text import Text

from synthgen.commands.options import AsJson, Config, Overrides
from synthgen.corpus.config import RunConfig
from synthgen.corpus.console import exits, printable, tables
from synthgen.corpus.manifest import Manifest
from synthgen.corpus.settings import load_config
from synthgen.mix.stage import mix as mix_dataset
from synthgen.screen.stage import screen as screen_corpus
from synthgen.screen.table import print_screening


def screen(
    config: Config,
    set_: Overrides = [],  # noqa: B006 -- typer makes a new list each time
    as_json: AsJson = False,
) -> None:
    """Judge each trace of the corpus by every rule; those in `screen.drop` drop it. No server.

    Verdicts are cheap: with other settings they are made anew. Exit code 0: one verdict a trace is there.
    2: the corpus is missing, not complete or damaged. 130: interrupted, and what was there before stays.

    Examples: `synthgen screen my.yaml`, `synthgen screen my.yaml --set "screen.drop=[duplicate]" --json`
    """
    with exits():
        manifest = screen_corpus(load_config(config, tuple(set_)))
        if as_json:
            sys.stdout.write(msgspec.json.encode(manifest.figures).decode() + "\n")
        else:
            print_screening(manifest)


def mix(
    config: Config,
    set_: Overrides = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Blend kept traces and other replies in the asked shares, split by prompt. No server.

    Exit code 0: the dataset is there. 2: an input is missing, or older than what it was made of.

    Example: `synthgen mix my.yaml --set mix.unit=rows`
    """
    with exits():
        loaded = load_config(config, tuple(set_))
        made = mix_dataset(loaded)
        if as_json:
            sys.stdout.write(msgspec.json.encode(made.figures).decode() + "\n")
        else:
            tables().print(_mix_table(loaded, made))


def _mix_table(config: RunConfig, made: Manifest) -> Table:
    title = Text(f"{config.train_path}, and {made.figures['heldout_rows']:,} rows held out")
    table = Table(title=title, title_justify="left")
    table.add_column("part", overflow="fold")
    for name in ("asked", "got", "rows", "tokens", "thinking", "response", "tool"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, part in made.figures["parts"].items():
        counts = part["train"]
        kinds = (counts.get(f"{kind}_tokens", 0) for kind in ("thinking", "response", "tool"))
        cells = (counts["rows"], counts["tokens"], *kinds)
        table.add_row(
            Text(printable(name)),
            f"{part['asked']:.1%}",
            f"{part['got']:.1%}",
            *(f"{cell:,}" for cell in cells),
        )
    return table

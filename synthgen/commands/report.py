"""Looking at what a run has made: one reply, or all of it."""

from __future__ import annotations

import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from synthgen.commands.options import AsJson, Config, Overrides
from synthgen.corpus.console import console, exits, tables
from synthgen.corpus.settings import load_config
from synthgen.report.figures import run_figures
from synthgen.report.show import as_figures, find, print_reply
from synthgen.report.stage import write_report


def show(
    config: Config,
    trace: Annotated[
        list[str],
        typer.Argument(help="Trace ids (SEED-INDEX, SEED-INDEX.TURN), seed ids, or how one begins."),
    ] = [],  # noqa: B006
    set_: Overrides = [],  # noqa: B006
    count: Annotated[int, typer.Option(help="Without an id: the first so many.", min=1)] = 1,
    ids: Annotated[bool, typer.Option("--ids", help="Show the token ids, span by span.")] = False,
    mask: Annotated[bool, typer.Option("--mask", help="Show for each id whether it is supervised.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line and reply.")] = False,
) -> None:
    """Show replies: the conversation, thinking, response and tool calls, with their places among the tokens.

    Looks in the corpus, then in the dataset. Without colours `--mask` writes id:t for thinking, id:r for
    response, id:c for tool calls and id:. for what is not supervised. Exit code 2: an id isn't there.

    Examples: `synthgen show my.yaml --count 3`, `synthgen show my.yaml 0123456789abcdef-0 --mask`
    """
    with exits(resumes=False):
        found = find(load_config(config, tuple(set_)), tuple(trace), count)
        out = tables()
        for shown in found:
            if as_json:
                line = msgspec.json.encode(as_figures(shown, ids=ids, mask=mask))
                sys.stdout.write(line.decode() + "\n")
            else:
                print_reply(out, shown, ids=ids, mask=mask)


def report(
    config: Config,
    set_: Overrides = [],  # noqa: B006
    out: Annotated[Path | None, typer.Option(help="The page, instead of RUN_DIR/report.html.")] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write one HTML page of what a run directory holds; prints its path, or with `--json` its figures.

    The page fetches nothing and can be sent to others. It shows passages that screening quotes from replies.

    Example: `synthgen report configs/demo.yaml --open`
    """
    with exits():
        loaded = load_config(config, tuple(set_))
        figures = run_figures(loaded)
        path = write_report(loaded, figures, out)
        if as_json:
            sys.stdout.write(msgspec.json.encode(figures).decode() + "\n")
        else:
            sys.stdout.write(f"{path}\n")
        if open_ and not webbrowser.open(path.absolute().as_uri()):
            console.print("no browser could be started here; the page is written", soft_wrap=True)

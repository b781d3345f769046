"""Replies of others as rows, and what texts lose: both by the verifier's own tokenizer."""

from __future__ import annotations

import sys
from typing import Annotated

import msgspec
import typer
from rich.markup import escape

from synthgen.commands.options import AsJson, Config, Overrides
from synthgen.corpus.console import console, exits, printable
from synthgen.corpus.settings import load_config
from synthgen.render.audit import audit as audit_corpus
from synthgen.render.stage import ROWS_FILE
from synthgen.render.stage import render as render_parts
from synthgen.render.tables import print_audit, print_rendered


def render(
    config: Config,
    set_: Overrides = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Give replies that others wrote the verifier's token ids, for the parts of the mix that have `replies`.

    Needs the corpus, but no weights: without server.base_urls a server of tokenizer and template alone is
    started. Exit code 0: the rows are there, or no part has replies. 2: it could not run; nothing is written.

    Example: `synthgen render my.yaml`
    """
    with exits():
        loaded = load_config(config, tuple(set_))
        manifest = render_parts(loaded)
        if manifest is None:
            console.print("render: no part of the mix has replies: there is nothing to render")
        elif not as_json:
            print_rendered(manifest.figures)
            where = escape(printable(str(loaded.rendered_path / ROWS_FILE)))
            console.print(f"rows are in {where}", soft_wrap=True)
        if as_json:
            figures = {"parts": {}} if manifest is None else manifest.figures
            sys.stdout.write(msgspec.json.encode(figures).decode() + "\n")


def audit(
    config: Config,
    set_: Overrides = [],  # noqa: B006
    traces: Annotated[int, typer.Option(help="This many traces, chosen by hash.", min=1)] = 200,
    as_json: AsJson = False,
) -> None:
    """Tokenize the texts of traces again and show where they part from the tokens that were sampled.

    That is what a pipeline would train on that keeps only texts. Needs no weights. Exit code 0: it was
    compared, whatever was found. 2: it could not run.

    Examples: `synthgen audit my.yaml`, `synthgen audit my.yaml --traces 1000 --json`
    """
    with exits():
        figures = audit_corpus(load_config(config, tuple(set_)), traces).figures
        if as_json:
            sys.stdout.write(msgspec.json.encode(figures).decode() + "\n")
        else:
            print_audit(figures)

"""Traces in, a dataset out."""

from __future__ import annotations

import sys

import msgspec

from synthgen.commands.options import AsJson, Config, Overrides
from synthgen.corpus.console import exits
from synthgen.corpus.settings import load_config
from synthgen.screen import screen as screen_corpus
from synthgen.screen_table import print_screening


def screen(
    config: Config,
    set_: Overrides = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Judge each trace of the corpus by the rules in `screen.drop`; nothing is deleted. No server.

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

"""Whether a run can start here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from synthgen.commands.options import AsJson, Overrides
from synthgen.corpus.console import exits
from synthgen.doctor.findings import Level
from synthgen.doctor.stage import as_figures, examine
from synthgen.doctor.table import print_findings
from synthgen.errors import ConfigError


def doctor(
    config: Annotated[Path | None, typer.Argument(help="The run's YAML, to judge by what it needs.")] = None,
    set_: Overrides = [],  # noqa: B006 -- typer makes a new list each time
    url: Annotated[
        str | None, typer.Option(help="A server to look at, such as http://127.0.0.1:8000/v1.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Look at Python, packages, GPU, memory, verifier, disk and servers, and say what to do about each.

    With a config by what that run needs, and at the servers of its `server.base_urls` unless `--url` names
    another. A server is sent two short requests. Exit code 0: nothing is wrong (warnings are none). 1: there
    are problems. 130: interrupted.

    Examples: `synthgen doctor`, `synthgen doctor my.yaml`,
    `synthgen doctor my.yaml --url http://127.0.0.1:8000/v1 --json`
    """
    with exits(resumes=False):
        if set_ and config is None:
            raise ConfigError("--set lays values over a YAML: name that, too")
        findings = list(examine(config, tuple(set_), url))
        if as_json:
            sys.stdout.write(msgspec.json.encode(as_figures(findings)).decode() + "\n")
        else:
            print_findings(findings)
        if any(found.level is Level.PROBLEM for found in findings):
            raise typer.Exit(1)

"""Prompts in, traces out."""

from __future__ import annotations

from typing import Annotated

import typer

from synthgen.commands.options import AsJson, Config, Overrides
from synthgen.corpus.config import RunConfig
from synthgen.corpus.console import console, exits
from synthgen.corpus.manifest import Manifest
from synthgen.corpus.settings import load_config
from synthgen.generate.panel import duration
from synthgen.generate.preview import preview as preview_prompts
from synthgen.generate.stage import Request, Shard
from synthgen.generate.stage import generate as generate_corpus
from synthgen.generate.tally import Tally
from synthgen.seeds.report import print_report, read_report


def prompts(
    config: Config,
    set_: Overrides = [],  # noqa: B006
    count: Annotated[
        int, typer.Option(help="Show this many of the chosen prompts, of each source in turn.", min=0)
    ] = 3,
    as_json: AsJson = False,
) -> None:
    """Show what is understood of the run's prompt sources and what is chosen from them. No server.

    Nothing is written: `synthgen generate` keeps the choice in the run directory.

    Examples: `synthgen prompts my.yaml --set "prompts.sources=[my.parquet]"`,
    `synthgen prompts my.yaml --set "prompts.sources=[hub:mlabonne/open-perfectblend:train]"`,
    `synthgen prompts my.yaml --set prompts.field=text --set prompts.on_bad_row=skip --json`
    """
    with exits(resumes=False):
        report = read_report(load_config(config, tuple(set_)), count)
        print_report(report, as_json=as_json)


def generate(
    config: Config,
    set_: Overrides = [],  # noqa: B006
    limit: Annotated[int | None, typer.Option(help="At most this many rows now.", min=1)] = None,
    shard: Annotated[str, typer.Option(help="Part i of n, for job arrays: 2/4.")] = "1/1",
    preview: Annotated[
        int | None, typer.Option(help="Only show this many prompts and replies; nothing is written.", min=1)
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Send the rows again that ended as failures.")
    ] = False,
    allow_mixed: Annotated[
        bool, typer.Option("--allow-mixed", help="Go on though model, template or sampling changed.")
    ] = False,
) -> None:
    """Send the run's prompts and keep each reply with its exact tokens; goes on where it stopped.

    Exit code 0: all that was asked for is there. 1: some rows of the corpus are failures, --retry-failed
    sends just those again. 2: it could not run. 130: interrupted.

    Examples: `synthgen generate my.yaml --preview 3`, `synthgen generate my.yaml --shard 2/4`
    """
    with exits(resumes=preview is None):
        loaded = load_config(config, tuple(set_))
        if preview is not None:
            preview_prompts(loaded, preview)
            return
        request = Request(
            limit=limit,
            shard=Shard.parse(shard),
            retry_failed=retry_failed,
            allow_mixed=allow_mixed,
        )
        manifest, sent = generate_corpus(loaded, request)
        _print_corpus(loaded, manifest, sent)
        if manifest.figures["failures"]:
            raise typer.Exit(1)


def _print_corpus(config: RunConfig, manifest: Manifest, sent: Tally) -> None:
    figures = manifest.figures
    console.print(
        f"{figures['traces']:,} traces in {config.traces_path}: {figures['thinking_tokens']:,} thinking "
        f"and {figures['response_tokens']:,} response tokens, {figures['truncated']} cut",
        soft_wrap=True,
    )
    if sent.traces:
        console.print(
            f"{duration(sent.seconds_full)} at the limit, {duration(sent.seconds_below)} below it, "
            f"{duration(sent.seconds_down)} without a server; {sent.retried} retries, about "
            f"{sent.tokens_wasted:,} tokens wasted",
            soft_wrap=True,
        )
    if sent.uncaptured:
        console.print(
            f"{sent.uncaptured:,} replies came without their hidden states: `eagle extract` asks for them"
        )
    if figures["failures"]:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(sent.failures.items()))
        console.print(
            f"{figures['failures']} rows failed (now: {kinds or 'none'}), see {config.failures_path}; with "
            f"--retry-failed the same command sends just those again",
            soft_wrap=True,
        )

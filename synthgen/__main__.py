"""`synthgen`: serve a model, generate a corpus from it, run the whole line."""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from synthgen.client.launch import Serving, capturing, drafting, plain, started
from synthgen.corpus.config import RunConfig
from synthgen.corpus.console import console, exits
from synthgen.corpus.manifest import Manifest
from synthgen.corpus.settings import load_config
from synthgen.corpus.verifier_config import read_shape
from synthgen.generate import Request, Shard
from synthgen.generate import generate as generate_corpus
from synthgen.mock_server import MockConfig, Preset, parse_distribution
from synthgen.mock_server import serve as serve_mock
from synthgen.panel import duration
from synthgen.plan import as_figures
from synthgen.plan import plan as plan_run
from synthgen.plan_table import print_plan
from synthgen.preview import preview as preview_prompts
from synthgen.prompts import print_report, read_report
from synthgen.run import print_commands, print_summary
from synthgen.run import run as run_stages
from synthgen.tally import Tally

app = typer.Typer(
    help="Synthetic data from a live inference server, feeding EAGLE-3 draft training.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
Config = Annotated[Path, typer.Argument(help="The run's YAML, for instance configs/demo.yaml.")]
Overrides = Annotated[
    list[str], typer.Option("--set", help="Lay a value over the YAML: --set generate.temperature=1.0")
]


class Role(StrEnum):
    """What a server is for."""

    generate = "generate"
    capture = "capture"
    draft = "draft"


@app.command()
def serve(
    config: Config,
    set_: Overrides = [],  # noqa: B006 -- typer makes a new list each time
    role: Annotated[
        Role, typer.Option(help="The verifier alone, with the hidden-state connector, or with the draft.")
    ] = Role.generate,
) -> None:
    """Start vLLM for a config and keep it until Ctrl-C.

    Example: `synthgen serve configs/demo.yaml`
    """
    with exits():
        loaded = load_config(config, tuple(set_))
        with started(loaded, _serving(loaded, role)) as (process,):
            console.print(f"{loaded.verifier.served_name} is at {process.base_url}, its log in {process.log}")
            console.print("Ctrl-C stops it")
            while True:
                process.require_alive()
                time.sleep(1.0)


@app.command()
def prompts(
    config: Config,
    set_: Overrides = [],  # noqa: B006
    count: Annotated[
        int, typer.Option(help="Show this many prompts, the first of each file in turn.", min=0)
    ] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of tables.")] = False,
) -> None:
    """Show what is understood of the run's prompt files: format, shape, domains, rows left out. No server.

    Examples: `synthgen prompts my.yaml --set "prompts.files=[my.parquet]"`,
    `synthgen prompts my.yaml --set prompts.field=text --set prompts.on_bad_row=skip --json`
    """
    with exits():
        report = read_report(load_config(config, tuple(set_)).prompts, count)
        print_report(report, as_json=as_json)


@app.command()
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
    with exits():
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
    if figures["failures"]:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(sent.failures.items()))
        console.print(
            f"{figures['failures']} rows failed (now: {kinds or 'none'}), see {config.failures_path}; with "
            f"--retry-failed the same command sends just those again",
            soft_wrap=True,
        )


@app.command("mock-server")
def mock_server(
    port: Annotated[int, typer.Option(help="0 takes a free one.")] = 8000,
    model: Annotated[str, typer.Option(help="The name it serves.")] = "mock",
    faults: Annotated[Preset, typer.Option(help="How often, and in which ways, it fails.")] = Preset.none,
    latency_s: Annotated[
        str, typer.Option(help="Seconds before a reply: 0.5, uniform:1,5 or lognormal:2,0.7.")
    ] = "0.1",
    clock_speed: Annotated[float, typer.Option(help="Its seconds in a real one.")] = 1.0,
    max_num_seqs: Annotated[int, typer.Option(help="Requests that run at once; more wait.")] = 256,
    seed: Annotated[int, typer.Option(help="Of replies, latencies and faults.")] = 0,
) -> None:
    """A server in the shape of vLLM's that fails as it is told to: rehearse a run before it costs GPU hours.

    Example: `synthgen mock-server --faults outage --clock-speed 60`
    """
    with exits():
        serve_mock(
            MockConfig(
                port=port,
                model=model,
                faults=faults.rules,
                latency_s=parse_distribution(latency_s),
                clock_speed=clock_speed,
                max_num_seqs=max_num_seqs,
                seed=seed,
            )
        )


@app.command()
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
    with exits():
        loaded = load_config(config, tuple(set_))
        if probe:
            generate_corpus(loaded, Request(limit=probe))
        made = plan_run(loaded)
        if json:
            print(msgspec.json.encode(as_figures(made)).decode())
        else:
            print_plan(made, explain=explain)


@app.command()
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


def _serving(config: RunConfig, role: Role) -> Serving:
    if role is Role.capture:
        shape = read_shape(Path(config.verifier.model))
        return capturing(config, (*config.extract.aux_layers, shape.num_layers), config.states_path / "spool")
    if role is Role.draft:
        return drafting(config, config.export_path)
    return plain(config)


def main() -> None:
    """The console script."""
    app()


if __name__ == "__main__":
    main()

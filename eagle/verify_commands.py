"""`eagle verify`: commands that look at what earlier stages, or others, left."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from eagle.load_gate import LoadReport
from eagle.verify_draft import DraftReport, verify_draft
from eagle.verify_states import Checks, StatesReport, verify_states
from synthgen.corpus.config import RunConfig
from synthgen.corpus.console import exits, shown, tables
from synthgen.corpus.manifest import require_manifest
from synthgen.corpus.settings import load_config
from synthgen.errors import ConfigError

verify = typer.Typer(help="Check what earlier stages left.", no_args_is_help=True)


@verify.command("states")
def verify_states_command(
    config: Annotated[Path, typer.Argument(help="The run's YAML, for instance configs/demo.yaml.")],
    set_: Annotated[
        list[str], typer.Option("--set", help="Lay a value over the YAML: --set extract.concurrency=8")
    ] = [],  # noqa: B006 -- typer makes a new list each time
    samples: Annotated[int, typer.Option(help="Samples that are looked at closely.", min=1)] = 16,
    live: Annotated[
        bool,
        typer.Option("--live", help="Compare with a server's own most likely tokens."),
    ] = False,
    reference: Annotated[
        bool, typer.Option("--reference", help="Compare all states with transformers; for small verifiers.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of tables.")] = False,
) -> None:
    """Check hidden states: checksums, finiteness, token ids, and the tokens that the final states predict.

    Exit code 1: something is wrong with them, named line by line.

    Examples: `eagle verify states my.yaml --live`, `eagle verify states configs/demo.yaml --reference`
    """
    with exits(resumes=False):
        checks = Checks(samples=samples, live=live, reference=reference)
        report = verify_states(load_config(config, tuple(set_)), checks)
        if as_json:
            typer.echo(msgspec.json.encode(report).decode())
        else:
            _print_states(report)
        if report.problems:
            raise typer.Exit(1)


def _print_states(report: StatesReport) -> None:
    out = tables()
    out.print(f"{report.shards} shards, {report.samples:,} samples, {report.tokens:,} tokens")
    if report.probe is not None:
        probe = report.probe
        out.print(
            f"most likely next token: {probe.agreement:.2%} of {probe.tokens:,} "
            f"as the {shown(probe.against)} ({probe.samples} samples)"
        )
    for tap in report.taps:
        out.print(f"{shown(tap.tap)}: median error {tap.median:.2%}, worst token {tap.worst:.2%}")
    for problem in report.problems:
        out.print(f"[red]wrong:[/] {shown(problem)}", soft_wrap=True)
    if not report.problems:
        out.print("nothing wrong" if report.probe else "nothing wrong; --live compares with a server, too")


@verify.command("draft")
def verify_draft_command(
    draft: Annotated[
        str | None,
        typer.Argument(
            help="A directory, a .safetensors file, or a hub id; without one, the export of --config.",
            show_default=False,
        ),
    ] = None,
    like: Annotated[
        str | None,
        typer.Option(help="What it should be like: kimi-k2, kimi-k2.5, a directory here, or a hub id."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="The YAML of the run whose draft it should be, and for --serve.")
    ] = None,
    set_: Annotated[
        list[str], typer.Option("--set", help="Lay a value over the YAML: --set server.port=8200")
    ] = [],  # noqa: B006
    serve: Annotated[
        bool,
        typer.Option(
            "--serve",
            help="Load it in a vLLM, and compare what that accepts with what the trainer's draft predicts.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of lines.")] = False,
) -> None:
    """Check a draft: names, shapes, dtypes, config, layer ids, vocabulary; with --serve how a server drafts.

    Of a hub's draft the headers are read, not the weights. Exit code 1: something is otherwise than it should
    be, and a line each says which tensor or key, what was found and what is expected.

    Examples: `eagle verify draft runs/k2.5/draft/export --like kimi-k2.5`,
    `eagle verify draft --config configs/demo.yaml --serve`
    """
    with exits(resumes=False):
        if set_ and config is None:
            raise ConfigError("--set lays values over a YAML: name it with --config")
        loaded = None if config is None else load_config(config, tuple(set_))
        report = verify_draft(_named(draft, loaded), like=like, config=loaded, serve=serve)
        if as_json:
            typer.echo(msgspec.json.encode(report).decode())
        else:
            _print_draft(report)
        if report.mismatches:
            raise typer.Exit(1)


def _named(draft: str | None, config: RunConfig | None) -> str:
    if draft is not None:
        return draft
    if config is None:
        raise ConfigError("nothing to verify: name a draft, or with --config the run that exported one")
    require_manifest(config.export_path, "eagle export CONFIG")
    return str(config.export_path)


def _print_draft(report: DraftReport) -> None:
    out = tables()
    out.print(f"{report.tensors} tensors, held against {shown(' and '.join(report.against))}", soft_wrap=True)
    if report.served is not None:
        _print_served(report.served)
    for note in report.notes:
        out.print(f"note: {shown(note)}", soft_wrap=True)
    for one in report.mismatches:
        out.print(f"[red]wrong:[/] {shown(one.line)}", soft_wrap=True)
    if not report.mismatches:
        out.print("nothing wrong")


def _print_served(served: LoadReport) -> None:
    out = tables()
    out.print(
        f"served: {served.reply_tokens:,} tokens of {served.prompts} replies in {served.drafts:,} drafts, "
        f"{served.drafts_predicted:,} predicted"
    )
    out.print(
        f"acceptance length {served.length:.3f}; the trainer's draft predicts {served.length_predicted:.3f}"
    )
    bounds = zip(served.rates, served.rates_least, served.rates_most, strict=True)
    for position, (rate, least, most) in enumerate(bounds, 1):
        out.print(f"position {position}: {rate:.1%} accepted; predicted {least:.1%} to {most:.1%}")

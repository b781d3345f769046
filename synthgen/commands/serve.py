"""Servers: a real one for a config, and one that fails as it is told to."""

from __future__ import annotations

import time
from enum import StrEnum
from typing import Annotated

import typer

from synthgen.client.launch import Serving, capturing, drafting, plain, started
from synthgen.commands.options import Config, Overrides
from synthgen.corpus.config import RunConfig
from synthgen.corpus.console import console, exits
from synthgen.corpus.settings import load_config
from synthgen.mock_server import MockConfig, Preset, parse_distribution
from synthgen.mock_server import serve as serve_mock


class Role(StrEnum):
    """What a server is for."""

    generate = "generate"
    capture = "capture"
    draft = "draft"


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
    with exits(resumes=False):
        loaded = load_config(config, tuple(set_))
        with started(loaded, _serving(loaded, role)) as (process,):
            console.print(f"{loaded.verifier.served_name} is at {process.base_url}, its log in {process.log}")
            console.print("Ctrl-C stops it")
            while True:
                process.require_alive()
                time.sleep(1.0)


def _serving(config: RunConfig, role: Role) -> Serving:
    if role is Role.capture:
        return capturing(config)
    if role is Role.draft:
        return drafting(config, config.export_path)
    return plain(config)


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
    with exits(resumes=False):
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

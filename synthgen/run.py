"""The whole line, stage by stage in one run directory: each a command of its own.

A stage that is complete and fits says so and ends at once; so running again goes on where the last
run stopped. What can be refused is refused before the first stage starts.
"""

from __future__ import annotations

import contextlib
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from rich.table import Table

from synthgen.client.launch import undraftable
from synthgen.corpus.config import RunConfig
from synthgen.corpus.console import console, tables
from synthgen.corpus.files import free_bytes, in_units, require_free_disk
from synthgen.corpus.manifest import read_manifest, require_manifest
from synthgen.corpus.settings import save_config
from synthgen.corpus.torchrun import torchrun
from synthgen.corpus.verifier_config import VerifierShape
from synthgen.corpus.verifier_files import shape_at_hand, shape_of
from synthgen.errors import ConfigError, DiskError, SynthgenError
from synthgen.plan.costs import Plan
from synthgen.plan.kept import keep_first
from synthgen.plan.stages import plan

DISK_WATCH_S = 5.0
DISK_RESERVE_BYTES = 1 << 30
"""A stage is stopped when less than this is free: what it has in memory must still find its place."""
WHAT = {"generate": "the traces", "extract": "the hidden states", "train": "the checkpoints"}
ROWS_FAILED = 1
"""What a stage of one process ends with that has made records of some failures; torchrun, for any error."""
MAY_LACK_ROWS = ("synthgen generate", "eagle extract", "eagle train")


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage: the command after `python -m`, where its manifest is, and how many processes it takes."""

    command: tuple[str, ...]
    artifact: Path
    processes: int = 1

    @property
    def name(self) -> str:
        """The command as people write it."""
        return " ".join(self.command)


class StageFailed(SynthgenError):
    """A stage ended with an error, which it has printed itself."""

    def __init__(self, stage: Stage, code: int) -> None:
        super().__init__(f"{stage.name} ended with code {code}; mend it and run the same command again")
        self.exit_code = code


def stages(config: RunConfig) -> list[Stage]:
    """The stages of a run, in order."""
    line = [
        Stage(("synthgen", "generate"), config.corpus_path),
        Stage(("synthgen", "screen"), config.screen_path),
        *([Stage(("synthgen", "render"), config.rendered_path)] if config.mix.replies else []),
        Stage(("synthgen", "mix"), config.dataset_path),
        *([] if config.train.stream else [Stage(("eagle", "extract"), config.states_path)]),
        Stage(("eagle", "vocab"), config.vocab_path),
        Stage(("eagle", "train"), config.checkpoints_path, config.train.processes),
        Stage(("eagle", "export"), config.export_path),
    ]
    if config.accept.untrained:
        line.append(Stage(("eagle", "export", "--untrained"), config.untrained_path))
    return [*line, Stage(("eagle", "accept"), config.accept_path)]


def stage_command(stage: Stage, config_path: Path) -> list[str]:
    """The command line of a stage."""
    package, name, *flags = stage.command
    return [sys.executable, "-m", *torchrun(stage.processes), package, name, str(config_path), *flags]


def print_commands(config: RunConfig, config_path: Path, overrides: tuple[str, ...]) -> None:
    """Print each stage's command; refuse what `run` would refuse."""
    if shape := shape_at_hand(config.verifier):
        require_fitting(config, shape)
    sets = [part for override in overrides for part in ("--set", override)]
    for stage in stages(config):
        package, name, *flags = stage.command
        start = ["python", "-m", *torchrun(stage.processes)] if stage.processes > 1 else []
        sys.stdout.write(shlex.join([*start, package, name, str(config_path), *flags, *sets]) + "\n")


def run(config: RunConfig) -> dict[str, Any]:
    """Run all stages; return the line that sums them up. Raises StageFailed when one fails."""
    require_fitting(config, shape_of(config.verifier))
    planned = plan(config)
    require_disk(config, planned)
    keep_first(config, planned)
    resolved = config.run_path / "run.yaml"
    save_config(config, resolved)
    if reason := undraftable(config):
        console.print(f"eagle accept, the last stage, will refuse this: {reason}", soft_wrap=True)
    for stage in stages(config):
        _run_stage(stage, resolved, config.run_path)
    return summary(config)


def require_fitting(config: RunConfig, shape: VerifierShape) -> None:
    """Raise ConfigError for what a later stage would refuse: layers or a vocabulary the verifier hasn't."""
    if config.extract.aux_layers[-1] >= shape.num_layers:
        raise ConfigError(
            f"extract.aux_layers {list(config.extract.aux_layers)} don't fit {config.verifier.model}, which "
            f"has {shape.num_layers} layers: ids are below that"
        )
    if config.vocab.size > shape.vocab_size:
        raise ConfigError(
            f"vocab.size {config.vocab.size} is more than the vocabulary of {config.verifier.model}, "
            f"{shape.vocab_size}"
        )


def require_disk(config: RunConfig, planned: Plan) -> None:
    """Raise DiskError when what the run still has to write is more than there is room for."""
    artifacts = {stage.command[1]: stage.artifact for stage in reversed(stages(config))}
    needed: dict[str, int] = {}
    for stage in planned.stages:
        artifact = artifacts.get(stage.name, config.spool_path)
        done = artifacts.get(stage.name, config.checkpoints_path)  # streamed states go with the training
        lacking = stage.disk_bytes - _held_bytes(config, artifact)
        if lacking > 0 and not _is_complete(done):
            needed[WHAT[stage.name]] = lacking
    if needed:
        require_free_disk(config.run_path, sum(needed.values()), ", ".join(needed))


def _is_complete(artifact: Path) -> bool:
    made = read_manifest(artifact)
    return made is not None and made.complete


def _held_bytes(config: RunConfig, artifact: Path) -> int:
    """What a stage has on disk already; what it captured counts for the stage that generates."""
    places = [artifact, *([config.spool_path] if artifact == config.corpus_path else [])]
    return sum(file.stat().st_size for place in places for file in place.rglob("*") if file.is_file())


def _run_stage(stage: Stage, config_path: Path, run_path: Path) -> None:
    console.rule(f"[bold]{stage.name}", align="left")
    child = subprocess.Popen(stage_command(stage, config_path))
    asked = _Asked()
    with _terminating(child, asked):
        code = _wait(child, run_path, asked)
    if code == 130 or (asked.to_end and stage.processes > 1 and code != 0):  # torchrun ends with 1
        raise KeyboardInterrupt
    made = read_manifest(stage.artifact)
    may_lack = stage.processes == 1 and stage.name in MAY_LACK_ROWS
    if code == ROWS_FAILED and may_lack and made is not None and made.complete:
        console.print("going on without the rows that failed")
    elif code != 0:
        raise StageFailed(stage, code)


@dataclass(slots=True)
class _Asked:
    """Whether someone asked the run to end."""

    to_end: bool = False


@contextlib.contextmanager
def _terminating(child: subprocess.Popen[bytes], asked: _Asked) -> Iterator[None]:
    """A SIGTERM of ours goes to the stage, which puts away what it has and ends with 130."""

    def pass_on(*_: object) -> None:
        asked.to_end = True
        child.terminate()

    before = signal.signal(signal.SIGTERM, pass_on)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _wait(child: subprocess.Popen[bytes], run_path: Path, asked: _Asked) -> int:
    """Wait for a stage to end by itself, as a Ctrl-C reaches it too, and stop it when the disk fills up.

    Raises DiskError in that case, once the stage has put away what it has.
    """
    full = False
    while True:
        try:
            code = child.wait(DISK_WATCH_S)
            break
        except subprocess.TimeoutExpired:
            if not full and free_bytes(run_path) < DISK_RESERVE_BYTES:
                full = True
                child.terminate()
        except KeyboardInterrupt:
            asked.to_end = True
            time.sleep(0.1)
    if full:
        raise DiskError(
            f"the disk of {run_path} has less than {in_units(DISK_RESERVE_BYTES)} free, so the stage was "
            f"stopped with all it had: free some space and run the same command again to go on"
        )
    return code


def summary(config: RunConfig) -> dict[str, Any]:
    """The figures of a finished run: what `synthgen run` prints as its last line."""
    manifests = [require_manifest(stage.artifact, f"{stage.name} CONFIG") for stage in stages(config)]
    by_path = {stage.artifact: manifest for stage, manifest in zip(stages(config), manifests, strict=True)}
    corpus, accepted = by_path[config.corpus_path].figures, by_path[config.accept_path].figures
    return {
        "traces": corpus["traces"],
        "rows": by_path[config.dataset_path].figures["rows"],
        "thinking_tokens": corpus["thinking_tokens"],
        "response_tokens": corpus["response_tokens"],
        "vocab_coverage": by_path[config.vocab_path].figures["coverage"],
        "acceptance_length": accepted["acceptance_length"],
        "acceptance_length_untrained": accepted.get("acceptance_length_untrained"),
        "lossless": accepted["lossless"],
        "speedup": accepted["speedup"],
        "seconds": round(sum(manifest.seconds for manifest in manifests), 1),
    }


def print_summary(config: RunConfig, line: dict[str, Any]) -> None:
    """One table of the run, then `line` as JSON: the last line of stdout."""
    tables().print(_table(config, line))
    sys.stdout.write(msgspec.json.encode(line).decode() + "\n")


def _table(config: RunConfig, line: dict[str, Any]) -> Table:
    vocab = require_manifest(config.vocab_path, "eagle vocab CONFIG").figures
    trained = require_manifest(config.checkpoints_path, "eagle train CONFIG").figures
    accepted = require_manifest(config.accept_path, "eagle accept CONFIG").figures
    untrained = accepted.get("acceptance_length_untrained")
    positions = ", ".join(f"{rate:.2f}" for rate in accepted["rate_by_position"])
    domains = ", ".join(f"{name} {length:.2f}" for name, length in accepted["length_by_domain"].items())
    table = Table(title=f"{config.run_dir}: {config.verifier.served_name}", title_justify="left")
    table.add_column("what", no_wrap=True)
    table.add_column("measured")
    for name, text in (
        ("traces", f"{line['traces']:,}"),
        ("rows to train on", f"{line['rows']:,}"),
        ("thinking / response tokens", f"{line['thinking_tokens']:,} / {line['response_tokens']:,}"),
        ("draft vocabulary", f"{vocab['size']:,} tokens, {vocab['coverage']:.1%} of the supervised text"),
        ("hidden states", _states(config)),
        ("loss, first and last", f"{trained['loss_first']:.3f}, {trained['loss_last']:.3f}"),
        ("acceptance length", f"{accepted['acceptance_length']:.2f}, " + _untrained(untrained)),
        ("accepted by position", positions),
        ("acceptance by domain", domains),
        ("acceptance by span", _by_span(accepted)),
        ("output tokens/s", _speed(accepted)),
        ("same output as undrafted", f"{accepted['same_replies']} of {accepted['compared_replies']} replies"),
        ("time in all stages", f"{line['seconds']:,.0f} s"),
    ):
        table.add_row(name, text)
    return table


def _states(config: RunConfig) -> str:
    if config.train.stream:
        return f"streamed through {config.train.stream_spool_mib:,} MiB"
    states = require_manifest(config.states_path, "eagle extract CONFIG").figures
    return f"{in_units(states['bytes'])} for {states['tokens']:,} tokens"


def _untrained(length: float | None) -> str:
    return "untrained not measured" if length is None else f"untrained {length:.2f}"


def _by_span(accepted: dict[str, Any]) -> str:
    live = accepted["live"]
    if live is None:
        return "not measured"
    return ", ".join(f"{name} {figures['length']:.2f}" for name, figures in live["by_span"].items())


def _speed(accepted: dict[str, Any]) -> str:
    with_draft, without = accepted["tokens_per_s"], accepted["tokens_per_s_undrafted"]
    spread = accepted["speedup_by_round"]
    return (
        f"{with_draft:,.1f} with the draft, {without:,.1f} without: {accepted['speedup']:.2f} times "
        f"({min(spread):.2f} to {max(spread):.2f})"
    )

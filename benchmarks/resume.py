"""Resuming a corpus of a million traces: time and memory of the one pass over its journal.

Each trace has 64 thinking and 36 response tokens; page cache as writing the file leaves it.

    python -m benchmarks.resume
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from benchmarks.rivals.measured import measured
from benchmarks.scratch import scratch
from synthgen.corpus.config import RunConfig
from synthgen.corpus.records import Finish, Message, Sampling, Timing, Trace
from synthgen.corpus.settings import load_config
from synthgen.corpus.token_ids import encode_ids
from synthgen.generate.resume import held

ROOT = Path(__file__).parent.parent
PLACEHOLDER = "f" * 16
TRACE = Trace(
    seed_id=PLACEHOLDER,
    sample_index=0,
    source="prompts.jsonl",
    domain="math",
    messages=(Message(role="user", content="What is the sum of the first hundred numbers? " * 4),),
    prompt_token_ids=tuple(range(1000, 1050)),
    output=encode_ids(range(150_000, 150_100)),
    think_end=63,
    tool_start=None,
    thinking="word " * 64,
    response="word " * 36,
    finish=Finish.STOP,
    truncated_in=None,
    sampling=Sampling(temperature=0.7, top_p=1.0, max_tokens=384, thinking=True),
    server="0123456789abcdef",
    timing=Timing(started_at=1.0, seconds=2.0),
)


def write(path: Path, rows: int) -> None:
    """Write `rows` traces that differ in their seed."""
    path.parent.mkdir(parents=True)
    before, after = msgspec.json.encode(TRACE).split(PLACEHOLDER.encode())
    with path.open("wb") as file:
        for start in range(0, rows, 1000):
            numbers = range(start, min(start + 1000, rows))
            file.write(b"".join(b"%b%016x%b\n" % (before, number, after) for number in numbers))


def run_in(directory: Path) -> RunConfig:
    """The demo's config with its run directory there."""
    return load_config(ROOT / "configs/demo.yaml", (f"run_dir={directory}",))


def main(
    rows: Annotated[int, typer.Option(help="Traces in the journal.")] = 1_000_000,
    scan: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Write a journal and read it in a process of its own; the last line is JSON."""
    if scan is not None:
        with measured(rows):
            found = held(run_in(scan))
        assert len(found.done) == found.counts.traces == rows
        assert found.counts.thinking_tokens == 64 * rows
        return
    with scratch() as directory:
        path = run_in(Path(directory)).traces_path
        write(path, rows)
        print(f"{rows:,} traces, {path.stat().st_size / 1e9:.2f} GB")
        command = [sys.executable, "-m", "benchmarks.resume", "--scan", directory, "--rows", str(rows)]
        ended = subprocess.run(command, check=True, capture_output=True, text=True)
    figures: dict[str, float] = msgspec.json.decode(ended.stdout.splitlines()[-1])
    print(msgspec.json.encode({name: round(value, 2) for name, value in figures.items()}).decode())


if __name__ == "__main__":
    typer.run(main)

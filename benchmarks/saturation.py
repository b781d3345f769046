"""Whether `concurrency: auto` keeps a live vLLM as busy as the best fixed number, its ramp and tail included.

One vLLM serves tiny-kimi without a prefix cache; the generate stage runs at each concurrency in turn, in
several rounds, each time with all prompts and a corpus of its own.

    python -m benchmarks.saturation
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.scratch import scratch
from synthgen.client.launch import plain, started, uncached
from synthgen.corpus.settings import load_config
from synthgen.generate.stage import generate

ROOT = Path(__file__).parent.parent
AUTO = "auto"
SAMPLES = 3


def tokens_per_s(base_url: str, concurrency: str, rows: int, ceiling: int) -> float:
    """Output tokens a second of one whole generate stage."""
    with scratch() as directory:
        overrides = {
            "run_dir": directory,
            "verifier.model": ROOT / "models/tiny-kimi",
            "prompts.sources": f"[{ROOT / 'prompts/demo.jsonl'}]",
            "prompts.limit": rows // SAMPLES,
            "generate.samples_per_prompt": SAMPLES,
            "prompts.heldout": 1,
            "accept.prompts": 1,
            "accept.single_prompts": 1,
            "server.base_urls": f"[{base_url}]",
            "generate.concurrency": concurrency,
            "generate.max_concurrency": ceiling,
        }
        laid_over = tuple(f"{key}={value}" for key, value in overrides.items())
        config = load_config(ROOT / "configs/demo.yaml", laid_over)
        began = time.perf_counter()
        _, sent = generate(config)
        seconds = time.perf_counter() - began
    assert sent.traces == rows, sent.failures
    return sent.tokens / seconds


def main(
    rows: Annotated[int, typer.Option(help="Replies of each stage.")] = 1440,
    fixed: Annotated[str, typer.Option(help="The concurrencies to sweep.")] = "32,64,128",
    ceiling: Annotated[int, typer.Option(help="generate.max_concurrency of auto.")] = 256,
    seqs: Annotated[int, typer.Option(help="What the server runs at once.")] = 64,
    rounds: Annotated[int, typer.Option(help="Times that each is measured.")] = 2,
) -> None:
    """Sweep and compare; print a table, then JSON."""
    settings = [*fixed.split(","), AUTO]
    measured: dict[str, list[float]] = {name: [] for name in settings}
    with scratch() as directory:
        overrides = (
            f"run_dir={directory}",
            f"verifier.model={ROOT / 'models/tiny-kimi'}",
            f"server.max_num_seqs={seqs}",
        )
        config = load_config(ROOT / "configs/demo.yaml", overrides)
        with started(config, uncached(plain(config))) as (server,):
            tokens_per_s(server.base_url, "16", 30, ceiling)  # the first batches compile
            for number in range(rounds):
                # Each setting follows another one in each round, so that a slow minute hits them alike.
                for name in settings if number % 2 == 0 else reversed(settings):
                    measured[name].append(tokens_per_s(server.base_url, name, rows, ceiling))
    means = {name: statistics.mean(values) for name, values in measured.items()}
    best = max((name for name in settings if name != AUTO), key=means.__getitem__)
    table = Table(title=f"{rows:,} replies, a server of {seqs} at once")
    table.add_column("in flight")
    for column in ("output tokens/s", "by round", "of the best fixed"):
        table.add_column(column, justify="right")
    for name in settings:
        each = ", ".join(f"{value:,.0f}" for value in measured[name])
        table.add_row(name, f"{means[name]:,.0f}", each, f"{means[name] / means[best]:.1%}")
    Console(width=100).print(table)
    figures = {
        "auto_ratio": round(means[AUTO] / means[best], 4),
        "auto_tokens_per_s": round(means[AUTO], 1),
        "best_fixed": int(best),
        "best_tokens_per_s": round(means[best], 1),
    }
    print(msgspec.json.encode(figures).decode())


if __name__ == "__main__":
    typer.run(main)

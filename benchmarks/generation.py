"""The whole generate stage against a canned server: requests/s, CPU and memory, records durable on disk.

Replies of 2,500 token ids at concurrency 64, 256 and 1,024, the client alone on its core; bare aiohttp, which
keeps nothing, beside it as the limit. Rivals are measured in venvs of their own: see `benchmarks/rivals`.

    python -m benchmarks.generation
    python -m benchmarks.generation --rival datatrove_client=/tmp/datatrove/bin/python
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import aiohttp
import msgspec
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.rivals.measured import measured
from benchmarks.scratch import scratch
from benchmarks.stub import MODEL, pin, stub_server
from synthgen.corpus.journal import count_records
from synthgen.corpus.settings import load_config
from synthgen.generate.stage import generate

ROOT = Path(__file__).parent.parent
CONCURRENCIES = (64, 256, 1024)
DELAY_S = 0.05
"""What a server takes at least; 64 requests in flight can then reach 1,280 a second."""
OURS, BARE = "synthgen", "aiohttp (keeps nothing)"
LIMIT_S = 600


def ours(url: str, prompts: Path, rows: int, concurrency: int, directory: Path) -> None:
    """The generate stage, as `synthgen generate` runs it."""
    overrides = {
        "run_dir": directory,
        "verifier.served_name": MODEL,
        "prompts.sources": [str(prompts)],
        "prompts.limit": rows,
        "prompts.heldout": 1,
        "accept.prompts": 1,
        "accept.single_prompts": 1,
        "server.base_urls": [url],
        "generate.concurrency": concurrency,
        "generate.max_concurrency": concurrency,
    }
    config = load_config(
        ROOT / "configs/demo.yaml",
        tuple(
            f"{key}={msgspec.json.encode(value, enc_hook=str).decode()}" for key, value in overrides.items()
        ),
    )
    with measured(rows):
        generate(config)
    assert count_records(config.traces_path) == rows


def bare(url: str, prompts: Path, rows: int, concurrency: int, directory: Path) -> None:
    """aiohttp alone: post, read, decode, forget."""

    async def work() -> None:
        numbers = iter(range(rows))
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:

            async def worker() -> None:
                for number in numbers:
                    body = {"model": MODEL, "messages": [{"role": "user", "content": f"q{number}"}]}
                    async with session.post(
                        f"{url}/chat/completions", data=msgspec.json.encode(body)
                    ) as reply:
                        msgspec.json.decode(await reply.read())

            await asyncio.gather(*(worker() for _ in range(concurrency)))

    with measured(rows):
        asyncio.run(work())


BUILT_IN = {OURS: ours, BARE: bare}


def measure(name: str, python: str | None, url: str, rows: int, concurrency: int) -> dict[str, float] | str:
    """Figures of one client in a process of its own, or why there are none."""
    with scratch() as directory:
        prompts = Path(directory) / "prompts.jsonl"
        prompts.write_bytes(b"".join(b'{"prompt": "q%d"}\n' % number for number in range(rows + 1)))
        script = [str(ROOT / "benchmarks/rivals" / f"{name}.py")] if python else [__file__, "--client", name]
        arguments = ["--url", url, "--prompts", str(prompts), "--directory", directory]
        arguments += ["--rows", str(rows), "--concurrency", str(concurrency)]
        try:
            ended = subprocess.run(
                [python or sys.executable, *script, *arguments],
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                preexec_fn=lambda: pin(1),
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
        except subprocess.TimeoutExpired:
            return f"over {LIMIT_S} s"
        if ended.returncode:
            return (ended.stderr.strip().splitlines() or ["failed"])[-1]
        line = next(line for line in reversed(ended.stdout.splitlines()) if line.startswith('{"rows"'))
        found: dict[str, float] = msgspec.json.decode(line)
    return {
        "req_per_s": found["rows"] / found["seconds"],
        "cpu_s_per_1k": found["cpu_s"] / found["rows"] * 1000,
        "rss_mb": found["rss_mb"],
    }


def main(
    rows: Annotated[int, typer.Option(help="Requests at each concurrency.")] = 10_000,
    rival: Annotated[list[str], typer.Option(help="NAME=PYTHON of a script in benchmarks/rivals.")] = [],  # noqa: B006
    rival_rows: Annotated[int, typer.Option(help="Requests of a rival; most are slow.")] = 1000,
    client: Annotated[str | None, typer.Option(hidden=True)] = None,
    url: Annotated[str, typer.Option(hidden=True)] = "",
    prompts: Annotated[Path, typer.Option(hidden=True)] = Path(),
    directory: Annotated[Path, typer.Option(hidden=True)] = Path(),
    concurrency: Annotated[int, typer.Option(hidden=True)] = 0,
) -> None:
    """Measure each client at each concurrency; print a table, then JSON."""
    if client:
        BUILT_IN[client](url, prompts, rows, concurrency, directory)
        return
    clients: list[tuple[str, str | None]] = [(OURS, None), (BARE, None)]
    for text in rival:
        known, _, interpreter = text.partition("=")
        clients.append((known, interpreter))
    title = f"{rows:,} replies of 2,500 token ids ({rival_rows:,} for peers), a server that takes {DELAY_S} s"
    table = Table(title=title)
    for column in ("client", "in flight", "requests/s", "CPU-s for 1,000", "peak MB"):
        table.add_column(column, justify="left" if column == "client" else "right")
    last: dict[str, dict[str, float]] = {}
    with stub_server(DELAY_S) as at:
        for number in CONCURRENCIES:
            for name, python in clients:
                found = measure(name, python, at, rival_rows if python else rows, number)
                if isinstance(found, str):
                    table.add_row(name, str(number), found)
                    continue
                last[name] = found
                table.add_row(
                    name,
                    str(number),
                    f"{found['req_per_s']:,.0f}",
                    f"{found['cpu_s_per_1k']:.2f}",
                    f"{found['rss_mb']:.0f}",
                )
    Console(width=100).print(table)
    figures: dict[str, Any] = {name: round(value, 3) for name, value in last[OURS].items()}
    figures["aiohttp_cpu_s_per_1k"] = round(last[BARE]["cpu_s_per_1k"], 3)
    print(msgspec.json.encode(figures).decode())


if __name__ == "__main__":
    typer.run(main)

"""speculators' `regenerate-responses`, the command itself: token ids and loss mask of each reply, in JSONL.

The command needs no torch, but its package imports it: two empty packages stand in for those that do. The
tokenizer with which it decodes the ids is the demo verifier's; most ids of the stub are beyond it and decode
to nothing, so decoding is cheaper here than it would be.

    python -m venv /tmp/speculators
    /tmp/speculators/bin/pip install aiohttp openai tqdm typer "datasets<=5.1.0" "transformers<=5.19.0"
    /tmp/speculators/bin/pip install --no-deps speculators
"""

from __future__ import annotations

import importlib
import json
import sys
import types
from importlib.metadata import distribution
from pathlib import Path

from benchmarks.rivals.command_line import read_task
from benchmarks.rivals.measured import measured

TOKENIZER = Path(__file__).parents[2] / "models/tiny-kimi"


def main() -> None:
    """Run and check."""
    task = read_task()
    for name in ("speculators", "speculators.cli"):
        package = types.ModuleType(name)
        package.__path__ = [str(distribution("speculators").locate_file(name.replace(".", "/")))]
        sys.modules[name] = package
    command = importlib.import_module("speculators.cli.regenerate_responses")
    command.build_detokenizer(str(TOKENIZER))  # what it imports, it imports here
    path = task.directory / "replies.jsonl"
    with measured(task.rows):
        command.regenerate_responses(
            endpoint=f"{task.url}/chat/completions",
            model=str(TOKENIZER),
            dataset=str(task.prompts),
            limit=task.rows,
            concurrency=task.concurrency,
            max_retries=0,
            outfile=str(path),
        )
    with path.open() as lines:
        masks = [json.loads(line)["loss_mask"] for line in lines]
    assert len(masks) == task.rows
    assert all(sum(mask) == 2500 for mask in masks)


if __name__ == "__main__":
    main()

"""What `benchmarks/generation.py` passes to a rival's script. Standard library only, as `measured.py`."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Task:
    """A base URL that ends in /v1, how many prompts to send there, how many at a time; where output goes."""

    url: str
    prompts: Path
    directory: Path
    rows: int
    concurrency: int

    def texts(self) -> list[str]:
        """The first `rows` prompts."""
        lines = self.prompts.read_text().splitlines()[: self.rows]
        return [json.loads(line)["prompt"] for line in lines]


def read_task() -> Task:
    """The task on this script's command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--concurrency", type=int, required=True)
    return Task(**vars(parser.parse_args()))

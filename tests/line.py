"""A small run of the whole line on real parts, made once for all tests that look at what comes out."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import yaml

from prompts.problems import problems
from synthgen.corpus.config import RunConfig
from synthgen.corpus.settings import load_config

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A finished run."""

    config: RunConfig
    path: Path
    stdout: str
    stderr: str


def make_line(directory: Path) -> Line:
    """`synthgen run` in `directory` on 64 prompts and 12 held-out ones, states captured with the replies.

    Three tenths of the supervised tokens are replies that others wrote, in open-perfectblend's shape.
    """
    write_blend(directory / "blend.parquet")
    values: dict[str, Any] = yaml.safe_load((ROOT / "configs/demo.yaml").read_text())
    values["run_dir"] = str(directory / "run")
    values["server"]["port"] = 8150
    values["prompts"] |= {"limit": 64, "heldout": 12}
    values["generate"]["capture"] = True
    values["mix"] = {
        "unit": "tokens",
        "parts": [
            {"name": "native", "share": 0.7, "traces": [], "replies": None},
            {"name": "blend", "share": 0.3, "traces": None, "replies": str(directory / "blend.parquet")},
        ],
        "heldout_fraction": 0.1,
    }
    values["extract"]["shard_tokens"] = 2048
    values["train"] |= {"epochs": 14, "batch_tokens": 256, "max_seq_tokens": 256, "checkpoint_steps": 50}
    values["accept"] |= {
        "prompts": 12,
        "single_prompts": 4,
        "concurrencies": [1, 2],
        "rounds": 1,
        "max_tokens": 256,
        "untrained": False,
    }
    path = directory / "small.yaml"
    path.write_text(yaml.safe_dump(values))
    done = run_config(path)
    assert done.returncode == 0, done.stderr[-4000:]
    return Line(config=load_config(path), path=path, stdout=done.stdout, stderr=done.stderr)


def write_blend(path: Path) -> None:
    """Worked problems as open-perfectblend writes conversations."""
    rows = [
        {
            "source": f"problems/{problem.domain}",
            "conversations": [
                {"from": "human", "value": problem.question},
                {"from": "gpt", "value": f"{problem.thinking} The answer is {problem.answer}."},
            ],
        }
        for problem in problems("blend", 300)
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def run_config(path: Path) -> subprocess.CompletedProcess[str]:
    """`synthgen run` as a process of its own."""
    command = [sys.executable, "-m", "synthgen", "run", str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=800, check=False, cwd=ROOT)

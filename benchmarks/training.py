"""Training speed and memory on given traces, beside other trainers.

Each measurement is a process of its own that makes some updates of one epoch and leaves out the first ten.
They take turns, so that a slow spell of the machine falls on all. `matched`: AdamW 1e-3, 7 steps of the
training-time test, decay 0.8, no EAGLE-3.1 norms. `recipe`: what speculators comes with, Muon 1e-3, 3 steps,
decay 1, EAGLE-3.1 norms. Batches are packed to 512 tokens, as in speculators; SpecForge takes one sample.

Without `--peers` only this trainer runs. With it, a directory with `peers/bin/python` that has speculators
0.9.0 and SpecForge 0.2.0, and their copies of the same samples; `--drivers` has a script for each.

    python -m benchmarks.training --traces DIR [--peers DIR --drivers DIR]
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.fixed_traces import prepare, smollm2_config
from eagle.batches import Position
from eagle.feed import Rank, ShardFeed, plans_of, updates
from eagle.parallel import World
from eagle.step import train_step
from eagle.train import trainee_of

CACHE = Path(__file__).parent.parent / ".cache/fixed-traces"
WARM_UP = 10
COMMON = (
    "extract.max_seq_tokens=512",
    "train.max_seq_tokens=512",
    "train.batch_tokens=512",
    "train.epochs=1",
    "draft.num_key_value_heads=3",  # the shape of the draft in the peers' scripts
)
RECIPES = {
    "matched": (
        "train.optimizer=adamw",
        "train.learning_rate=0.001",
        "train.weight_decay=0.0",
        "train.ttt_steps=7",
        "train.ttt_decay=0.8",
        "draft.norm_before_residual=false",
        "draft.fc_norm=false",
        "draft.norm_output=false",
    ),
    "recipe": ("train.learning_rate=0.001", "train.ttt_steps=3", "train.ttt_decay=1.0"),
    "ttt-1": ("train.ttt_steps=1",),
    "ttt-7": ("train.ttt_steps=7",),
}
SPECULATORS_RECIPE = [
    *("--optimizer", "muon", "--weight-decay", "0.01", "--scheduler", "linear", "--warmup", "0.01"),
    *("--ttt", "3", "--decay", "1.0", "--norms"),
]
THREADS = {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "active", "GOMP_SPINCOUNT": "100000"}


def one_training(run_dir: Path, overrides: tuple[str, ...], num_updates: int) -> dict[str, float]:
    """The first updates of an epoch, in this process."""
    torch.set_num_threads(2)
    config = smollm2_config(run_dir, *COMMON, *overrides)
    feed = ShardFeed(config)
    plans = plans_of(config, feed.outlines)
    trainee = trainee_of(config, World(Rank(), torch.device("cpu")), fresh=True)
    steps = len(plans[0])
    found = updates(feed, plans, config.train.batches_per_step, Position(0, 0), Rank())
    seconds, targets, began = [], [], time.perf_counter()
    for step, update in zip(range(num_updates), found, strict=False):
        targets.append(train_step(trainee, update, step, steps).targets[0])
        seconds.append(time.perf_counter() - began)
        began = time.perf_counter()
    found.close()
    return {
        "supervised_tok_s": sum(targets[WARM_UP:]) / sum(seconds[WARM_UP:]),
        "step_median_s": statistics.median(seconds[WARM_UP:]),
        "peak_rss_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def measured(command: list[str], peers: Path | None = None) -> dict[str, Any]:
    """The JSON object that a command's output ends with."""
    env = os.environ | THREADS | ({"PEER_HOME": str(peers)} if peers else {})
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout[("\n" + done.stdout).rindex("\n{") :])
    return found


def commands_of(
    run_dir: Path, num_updates: int, peers: Path | None, drivers: Path | None
) -> dict[str, list[str]]:
    """What is run in each round, by name."""
    own = [
        sys.executable,
        "-m",
        "benchmarks.training",
        "--run-dir",
        str(run_dir),
        "--updates",
        str(num_updates),
    ]
    found = {
        "ours matched": [*own, "--alone", "matched"],
        "ours matched, head frozen": [*own, "--alone", "matched", "--frozen"],
        "ours recipe, head frozen": [*own, "--alone", "recipe", "--frozen"],
        "ours recipe, 1 step": [*own, "--alone", "ttt-1", "--frozen"],
        "ours recipe, 7 steps": [*own, "--alone", "ttt-7", "--frozen"],
    }
    if peers is not None and drivers is not None:
        python, pilot = str(peers / "peers/bin/python"), ["--out", "/dev/null", "--pilot", str(num_updates)]
        speculators = [python, str(drivers / "train_speculators.py"), *pilot]
        found["SpecForge matched"] = [python, str(drivers / "train_specforge.py"), *pilot]
        found["speculators matched"] = speculators
        found["speculators recipe"] = [*speculators, *SPECULATORS_RECIPE]
    return found


def summary(rounds: list[dict[str, dict[str, Any]]]) -> dict[str, float]:
    """Medians over rounds; a ratio is the median of the rounds' own."""

    def median(name: str, key: str) -> float:
        return statistics.median(float(found[name][key]) for found in rounds)

    def ratio(ours: str, theirs: str) -> float:
        key = "supervised_tok_s"
        return statistics.median(float(found[ours][key] / found[theirs][key]) for found in rounds)

    steps = {"1": "ours recipe, 1 step", "3": "ours recipe, head frozen", "7": "ours recipe, 7 steps"}
    figures = {"ours_tok_s": median("ours matched", "supervised_tok_s")}
    figures |= {f"update_s_ttt_{count}": median(name, "step_median_s") for count, name in steps.items()}
    if "SpecForge matched" in rounds[0]:
        figures |= {
            "specforge_tok_s": median("SpecForge matched", "supervised_tok_s"),
            "speculators_tok_s": median("speculators matched", "supervised_tok_s"),
            "ratio_to_best": min(
                ratio("ours matched", "SpecForge matched"), ratio("ours matched", "speculators matched")
            ),
            "ours_recipe_ratio": ratio("ours recipe, head frozen", "speculators recipe"),
            "rss_ratio": median("ours matched", "peak_rss_gib")
            / median("speculators matched", "peak_rss_gib"),
        }
    return {name: round(value, 3) for name, value in figures.items()}


def main(
    traces: Annotated[Path | None, typer.Option(help="Directory of the given traces.")] = None,
    peers: Annotated[Path | None, typer.Option(help="Where the peers' environment and data are.")] = None,
    drivers: Annotated[Path | None, typer.Option(help="Directory of the peers' scripts.")] = None,
    num_updates: Annotated[int, typer.Option("--updates", help="Updates of each measurement.")] = 60,
    rounds: Annotated[int, typer.Option(help="Turns that everyone gets.")] = 2,
    run_dir: Annotated[Path, typer.Option(help="Kept from run to run.")] = CACHE,
    alone: Annotated[str | None, typer.Option(help="One recipe in this process.", hidden=True)] = None,
    frozen: Annotated[bool, typer.Option(help="Whether its head is frozen.", hidden=True)] = False,
) -> None:
    """Measure every trainer in turns; the last line is JSON."""
    if alone is not None:
        head = (f"train.head={'frozen' if frozen else 'trained'}",)
        print(json.dumps(one_training(run_dir, RECIPES[alone] + head, num_updates)))
        return
    if traces is not None:
        prepare(smollm2_config(run_dir, *COMMON), traces)
    commands = commands_of(run_dir, num_updates, peers, drivers)
    found: list[dict[str, dict[str, Any]]] = []
    for number in range(rounds):
        order = list(commands)[:: 1 if number % 2 == 0 else -1]
        found.append({})
        for name in order:
            figures = found[-1][name] = measured(commands[name], peers)
            print(
                f"round {number + 1}: {name}: {figures['supervised_tok_s']:.0f} supervised tok/s, "
                f"{figures['step_median_s']:.3f} s an update, {figures['peak_rss_gib']:.2f} GiB",
                flush=True,
            )
    print(json.dumps(summary(found)))


if __name__ == "__main__":
    typer.run(main)

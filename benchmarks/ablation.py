"""Which choices of the recipe give acceptance: one epoch each on fixed traces, judged on held-out ones.

A variant is `NAME=key=value,key=value`, laid over configs/smollm2-135m.yaml. Each is trained once and judged
by the acceptance length that held-out states predict at the length `--draft-tokens`; the live figure needs a
server: `synthgen run`, or `eagle accept`, with the same overrides.

    python -m benchmarks.ablation --traces DIR --variant base= --variant adamw=train.optimizer=adamw
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import msgspec
import torch
import typer

from benchmarks.fixed_traces import prepare, smollm2_config
from eagle.batches import Document, Position, find_targets, join_all, pack
from eagle.feed import Rank, ShardFeed, plans_of, updates
from eagle.loss import predicted_acceptance, prefix_counts
from eagle.parallel import World
from eagle.shards import read_all
from eagle.step import Objective, Trainee, train_step
from eagle.train import trainee_of
from synthgen.corpus.config import RunConfig
from synthgen.corpus.samples import read_samples

CACHE = Path(__file__).parent.parent / ".cache/fixed-traces"


def judged(objective: Objective, documents: list[Document], draft_tokens: int) -> dict[str, Any]:
    """Predicted acceptance length on held-out documents, and the rate of each position."""
    hits, slots = torch.zeros(draft_tokens), torch.zeros(draft_tokens)
    for number, document in enumerate(documents):
        batch = pack([document], Position(0, number))
        targets = find_targets(batch, draft_tokens)
        with torch.no_grad():
            _, _, hits_SP = objective(batch, targets, torch.ones(draft_tokens))
        hit_S, slot_S = prefix_counts(hits_SP, targets)
        hits += hit_S
        slots += slot_S
    return {"acceptance": predicted_acceptance(hits, slots), "positions": (hits / slots).tolist()}


def trained(config: RunConfig, show: int = 50) -> tuple[Trainee, dict[str, float]]:
    """One training of a config, in memory."""
    feed = ShardFeed(config)
    plans = plans_of(config, feed.outlines)
    trainee = trainee_of(config, World(Rank(), torch.device("cpu")))
    per_step = config.train.batches_per_step
    steps = sum(-(-len(plan) // per_step) for plan in plans)
    began, targets, losses = time.monotonic(), 0, []
    for step, update in enumerate(updates(feed, plans, per_step, Position(0, 0), Rank())):
        metrics = train_step(trainee, update, step, steps)
        targets += metrics.targets[0]
        losses.append(metrics.loss)
        if (step + 1) % show == 0:
            print(f"  {step + 1}/{steps} loss {sum(losses[-show:]) / show:.3f}", flush=True)
    seconds = time.monotonic() - began
    return trainee, {"seconds": seconds, "targets_per_s": targets / seconds, "loss": sum(losses[-50:]) / 50}


def main(
    traces: Annotated[Path, typer.Option(help="Directory of the fixed traces.")],
    variant: Annotated[list[str], typer.Option(help="NAME=overrides, comma between them.")],
    draft_tokens: Annotated[int, typer.Option(help="Positions that are judged.")] = 3,
    run_dir: Annotated[Path, typer.Option(help="Kept from run to run.")] = CACHE,
) -> None:
    """Train and judge every variant; the last line is JSON."""
    torch.set_num_threads(2)
    base = ("extract.max_seq_tokens=512", "train.max_seq_tokens=512", "train.epochs=1")
    prepare(smollm2_config(run_dir, *base), traces)
    heldout = smollm2_config(run_dir / "heldout", *base)
    documents = join_all(
        read_all(heldout.states_path), {s.id: s for s in read_samples(heldout.train_path, 512)}, 512
    )
    results: dict[str, Any] = {}
    for one in variant:
        name, _, overrides = one.partition("=")
        config = smollm2_config(run_dir, *base, *filter(None, overrides.split(",")))
        trainee, figures = trained(config)
        judge = msgspec.structs.replace(config.train, ttt_steps=draft_tokens)
        objective = Objective(trainee.objective.draft, trainee.objective.verifier, judge)
        results[name] = figures | judged(objective, documents, draft_tokens)
        print(f"{name}: {msgspec.json.encode(results[name]).decode()}", flush=True)
    print(msgspec.json.encode(results).decode())


if __name__ == "__main__":
    typer.run(main)

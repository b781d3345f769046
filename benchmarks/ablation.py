"""Which choices of the recipe give acceptance: one epoch each on fixed traces, judged on held-out ones.

A variant is `NAME=key=value,key=value`, laid over configs/smollm2-135m.yaml. Each is trained once and judged
by the acceptance length that held-out states predict at the length `--draft-tokens`, every slot alike and,
after each epoch, walked as serving does; the live figure needs a server: `synthgen run`, or `eagle accept`,
with the same overrides.

    python -m benchmarks.ablation --traces DIR --variant base= --variant adamw=train.optimizer=adamw
"""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import torch
import typer

from benchmarks.fixed_traces import prepare, smollm2_config
from eagle.accept.offline import Judge, offline_of
from eagle.batches import Position
from eagle.feed import Rank, ShardFeed, plans_of, updates
from eagle.parallel import World
from eagle.step import Objective, Trainee, train_step
from eagle.train import trainee_of
from eagle.validate import Acceptance, HeldOut, validate
from synthgen.corpus.config import RunConfig

BASE = ("extract.max_seq_tokens=512", "train.max_seq_tokens=512", "train.epochs=1")
CACHE = Path(__file__).parent.parent / ".cache/fixed-traces"


def ready(run_dir: Path, traces: Path) -> RunConfig:
    """A run of the traces, with all that training reads."""
    config = smollm2_config(run_dir, *BASE)
    prepare(config, traces)
    return config


def judged(trainee: Trainee, config: RunConfig, draft_tokens: int) -> Acceptance:
    """What the draft gets right of held-out samples, `draft_tokens` at a time, however it was trained."""
    objective, heldout = _to_judge(trainee, config, draft_tokens)
    return validate(replace(trainee, objective=objective, engine=objective), heldout, 0).whole


def walked(trainee: Trainee, config: RunConfig, draft_tokens: int) -> float:
    """The acceptance length of held-out samples walked as serving does."""
    objective, heldout = _to_judge(trainee, config, draft_tokens)
    judge = Judge(objective=objective, device=torch.device("cpu"), steps=draft_tokens)
    found = [judge.judge(d, domain) for d, domain in zip(heldout.documents, heldout.domains, strict=True)]
    offline = offline_of(found, draft_tokens, 0)
    assert offline is not None
    return offline.walked.whole.length


def _to_judge(trainee: Trainee, config: RunConfig, draft_tokens: int) -> tuple[Objective, HeldOut]:
    settings = msgspec.structs.replace(config.train, ttt_steps=draft_tokens)
    heldout = HeldOut.of(msgspec.structs.replace(config, train=settings))
    assert heldout is not None
    return Objective(trainee.objective.draft, trainee.objective.verifier, settings), heldout


def trained(config: RunConfig, draft_tokens: int = 3, show: int = 50) -> tuple[Trainee, dict[str, float]]:
    """One training of a config, in memory."""
    feed = ShardFeed(config)
    plans = plans_of(config, feed.outlines)
    trainee = trainee_of(config, World(Rank(), torch.device("cpu")), fresh=True)
    per_step = config.train.batches_per_step
    ends = [*itertools.accumulate(-(-len(plan) // per_step) for plan in plans)]
    steps = ends[-1]
    began, seconds, targets, losses = time.monotonic(), 0.0, 0, []
    for step, update in enumerate(updates(feed, plans, per_step, Position(0, 0), Rank())):
        metrics = train_step(trainee, update, step, steps)
        targets += metrics.targets[0]
        losses.append(metrics.loss)
        if (step + 1) % show == 0:
            print(f"  {step + 1}/{steps} loss {sum(losses[-show:]) / show:.3f}", flush=True)
        if step + 1 in ends:
            seconds += time.monotonic() - began
            length = walked(trainee, config, draft_tokens)
            print(f"  epoch {ends.index(step + 1) + 1}: walked {length:.3f}, {seconds:.0f} s", flush=True)
            began = time.monotonic()
    loss = sum(losses[-50:]) / 50
    figures = {"seconds": seconds, "targets_per_s": targets / seconds, "loss": loss, "walked": length}
    return trainee, figures


def main(
    traces: Annotated[Path, typer.Option(help="Directory of the fixed traces.")],
    variant: Annotated[list[str], typer.Option(help="NAME=overrides, comma between them.")],
    draft_tokens: Annotated[int, typer.Option(help="Positions that are judged.")] = 3,
    run_dir: Annotated[Path, typer.Option(help="Kept from run to run.")] = CACHE,
) -> None:
    """Train and judge every variant; the last line is JSON."""
    torch.set_num_threads(2)
    ready(run_dir, traces)
    results: dict[str, Any] = {}
    for one in variant:
        name, _, overrides = one.partition("=")
        config = smollm2_config(run_dir, *BASE, *filter(None, overrides.split(",")))
        trainee, figures = trained(config, draft_tokens)
        results[name] = figures | msgspec.to_builtins(judged(trainee, config, draft_tokens))
        print(f"{name}: {msgspec.json.encode(results[name]).decode()}", flush=True)
    print(msgspec.json.encode(results).decode())


if __name__ == "__main__":
    typer.run(main)

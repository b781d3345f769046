"""Training, from the states to the last checkpoint.

`train` reads from top to bottom in the order in which things happen. A run that is stopped saves a
checkpoint, and the same command goes on from there.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from eagle.batches import Position
from eagle.checkpoint import Progress, checkpoints, load_checkpoint, save_checkpoint
from eagle.feed import Update, plans_of, updates
from eagle.init_from import first_draft, init_inputs
from eagle.loss import verifier_head
from eagle.optim import build_optimizers, rate_at
from eagle.parallel import World, joined, shared
from eagle.step import Objective, Trainee, train_step
from eagle.stream import feed_of, streamed_settings
from eagle.training_log import (
    LOG_NAME,
    LogLine,
    StepMetrics,
    Window,
    cut_log,
    figures_of,
    log_line,
    note_of,
)
from eagle.verifier import weights_of
from eagle.vocab import load_vocab, states_inputs, vocab_settings
from synthgen.corpus.config import RunConfig
from synthgen.corpus.console import bar, console, waiting
from synthgen.corpus.journal import read_journal
from synthgen.corpus.manifest import (
    Manifest,
    Speed,
    digest_of,
    manifest_of,
    read_manifest,
    require_fit,
    require_manifest,
    write_manifest,
)
from synthgen.corpus.verifier_files import shape_of
from synthgen.errors import ArtifactError, ServerError

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(slots=True)
class Stop:
    """Whether someone asked training to end."""

    requested: bool = False


def train(config: RunConfig) -> Manifest | None:
    """Train the run's draft to the end, on as many processes as torchrun started; return the manifest beside
    its checkpoints, None on all processes but the first.

    Raises ConfigError, ArtifactError or TrainingError as its parts do; KeyboardInterrupt, with a
    checkpoint saved, when SIGINT or SIGTERM asked it, or any of the processes, to stop.
    """
    with joined(config.train) as world:
        return train_in(world, config)


def train_in(world: World, config: RunConfig) -> Manifest | None:
    """One process's part of `train`."""
    # ---- What goes in, and whether it fits ----------------------------------------------------------
    directory = config.checkpoints_path
    per_step = config.train.batches_per_step
    world.rank.own(per_step)
    inputs = states_inputs(config)
    streamed = " --set train.stream=true" if config.train.stream else ""
    vocab_made = require_manifest(config.vocab_path, f"eagle vocab CONFIG{streamed}")
    require_fit(config.vocab_path, vocab_made, settings=vocab_settings(config), inputs=inputs)
    settings = train_settings(config) | streamed_settings(config)
    inputs |= {"vocab": digest_of(vocab_made)}
    found = read_manifest(directory)
    inputs |= init_inputs(config, begun=found if checkpoints(directory) else None)
    if found is not None:
        require_fit(directory, found, settings=settings, inputs=inputs)
        if found.complete and checkpoints(directory):
            console.print(f"train: {directory} is complete: nothing to do")
            return found if world.is_first else None
    if world.is_first:
        write_manifest(
            directory,
            manifest_of("train", settings=settings, inputs=inputs, figures={}, seconds=0.0, complete=False),
        )

    # ---- The data, and the order in which it is seen ------------------------------------------------
    with waiting("reading the dataset" if config.train.stream else "reading states"):
        feed = feed_of(config, world.rank)
    plans = plans_of(config, feed.outlines)
    steps = sum(-(-len(plan) // per_step) for plan in plans)

    # ---- The draft, as it was left ------------------------------------------------------------------
    trainee = trainee_of(config, world)
    draft = trainee.objective.draft
    progress = Progress(step=0, epoch=0, index=0, seconds=0.0, targets=0)
    if saved := checkpoints(directory):
        progress = load_checkpoint(saved[-1], draft, trainee.optimizers)
        console.print(f"train: going on from {saved[-1]}")
    world.require_same_step(progress.step)
    log_path = directory.parent / LOG_NAME if world.is_first else Path(os.devnull)
    if world.is_first:
        cut_log(log_path, progress.step)

    # ---- The steps ----------------------------------------------------------------------------------
    window = Window()

    def keep() -> None:
        """Put away what was learned since the last checkpoint."""
        if window.steps:
            rate = rate_at(progress.step - 1, steps, config.train.warmup_fraction)
            line = log_line(window, progress.step, progress.epoch - (progress.index == 0), rate)
            log.write(msgspec.json.encode(line) + b"\n")
        if progress.step:
            save_checkpoint(directory, draft, trainee.optimizers, progress, writes=world.is_first)
            console.print(f"train: ended after step {progress.step} of {steps}, with a checkpoint")

    with (
        feed.running(),
        log_path.open("ab") as log,
        kept(keep),
        bar("train", steps) as shown,
        stop_signals(patient=world.rank.world > 1) as stop,
    ):
        shown.advance(progress.step)
        window = Window()
        start = Position(progress.epoch, progress.index)
        began = time.monotonic()
        for update in updates(feed, plans, per_step, start, world.rank):
            metrics = train_step(trainee, update, progress.step, steps)
            ended = time.monotonic()
            progress, began = advanced(progress, plans, update, metrics, ended - began), ended
            window.steps.append(metrics)
            stopping = world.any(stop.requested)
            due = progress.step == steps or progress.step % config.train.checkpoint_steps == 0 or stopping
            if due or progress.step % config.train.log_steps == 0:
                rate = rate_at(progress.step - 1, steps, config.train.warmup_fraction)
                line = log_line(window, progress.step, update.position.epoch, rate)
                log.write(msgspec.json.encode(line) + b"\n")
                log.flush()
                shown.advance(0, note_of(line))
                if due:
                    save_checkpoint(directory, draft, trainee.optimizers, progress, writes=world.is_first)
                window = Window()
            shown.advance(1)
            if stopping:
                world.wait()
                console.print(f"train: stopped after step {progress.step} of {steps}, with a checkpoint")
                raise KeyboardInterrupt

    # ---- What came out ------------------------------------------------------------------------------
    if not world.is_first:
        return None
    figures = figures_of(list(read_journal(log_path, LogLine)), progress, draft) | feed.figures()
    tokens = config.train.epochs * sum(outline.num_tokens for outline in feed.outlines)
    speed = Speed(tokens_per_s=tokens / progress.seconds)
    manifest = manifest_of(
        "train", settings=settings, inputs=inputs, figures=figures, seconds=progress.seconds, speed=speed
    )
    write_manifest(directory, manifest)
    return manifest


def trainee_of(config: RunConfig, world: World) -> Trainee:
    """A fresh draft of the run with its optimizers, and the verifier's head, on this process's device."""
    vocab, weights = load_vocab(config.vocab_path), weights_of(config.verifier)
    fresh = not checkpoints(config.checkpoints_path)
    draft = first_draft(config, weights, vocab, fresh=fresh).to(world.device)
    draft.lm_head.weight.requires_grad_(config.train.head == "trained")
    dtype = DTYPES[config.train.compute_dtype]
    verifier = verifier_head(weights, shape_of(config.verifier).rms_norm_eps, vocab, dtype, world.device)
    objective = Objective(draft, verifier, config.train)
    return Trainee(
        engine=shared(objective, world, config.train, dtype),
        objective=objective,
        optimizers=build_optimizers(draft, config.train, world.rank),
        world=world,
    )


def train_settings(config: RunConfig) -> dict[str, Any]:
    """What the trained weights depend on: everything but how often it is logged and saved, and the processes
    that share the work."""
    aside = ("checkpoint_steps", "log_steps", "parallel", "processes", "stream", "stream_spool_mib")
    return {
        "draft": config.draft,
        "train": {k: v for k, v in msgspec.structs.asdict(config.train).items() if k not in aside},
        "seed": config.seed,
        "verifier": config.verifier.model,
        "aux_layers": config.extract.aux_layers,
        "vocab_size": config.vocab.size,
    }


def advanced(
    progress: Progress, plans: list[list[list[int]]], update: Update, metrics: StepMetrics, seconds: float
) -> Progress:
    """`progress` after one more update."""
    index = progress.index + update.num_batches
    end = index == len(plans[progress.epoch])
    return Progress(
        step=progress.step + 1,
        epoch=progress.epoch + end,
        index=0 if end else index,
        seconds=progress.seconds + seconds,
        targets=progress.targets + metrics.targets[0],
    )


@contextlib.contextmanager
def kept(keep: Callable[[], None]) -> Iterator[None]:
    """Keep what was learned when the states of the next step can't be had: nothing is wrong with it."""
    try:
        yield
    except (ServerError, ArtifactError):
        keep()
        raise


@contextlib.contextmanager
def stop_signals(*, patient: bool = False) -> Iterator[Stop]:
    """Note SIGINT and SIGTERM instead of being cut off; a second one ends at once.

    `patient`: it doesn't; torchrun passes on to its processes what they may have been sent already.
    """
    stop = Stop()

    def note(*_: object) -> None:
        if stop.requested and not patient:
            raise KeyboardInterrupt
        stop.requested = True

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

"""Training, from the states on disk to the last checkpoint.

`train` reads from top to bottom in the order in which things happen. A run that is stopped saves a
checkpoint, and the same command goes on from there.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from eagle.batches import Outline, Position
from eagle.checkpoint import Progress, checkpoints, load_checkpoint
from eagle.draft import build_draft
from eagle.feed import Rank, ShardFeed, Update, plans_of, updates
from eagle.loss import verifier_head
from eagle.optim import build_optimizers
from eagle.step import Objective, Trainee, train_step
from eagle.stop import stop_signals
from eagle.trackers import require_trackers
from eagle.training_log import LogLine, StepMetrics, figures_of
from eagle.validate import HeldOut
from eagle.verifier import read_weights
from eagle.vocab import load_vocab, require_states, vocab_settings
from eagle.watch import validation_figures, watching
from synthgen.corpus.config import RunConfig
from synthgen.corpus.console import console, waiting
from synthgen.corpus.draft_sections import TrainConfig
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
from synthgen.corpus.verifier_config import read_shape
from synthgen.errors import ConfigError

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def train(config: RunConfig) -> Manifest:
    """Train the run's draft to the end; return the manifest beside its checkpoints.

    Raises ConfigError, ArtifactError or TrainingError as its parts do; KeyboardInterrupt, with a
    checkpoint saved, when SIGINT or SIGTERM asked it to stop.
    """
    # ---- What goes in, and whether it fits ----------------------------------------------------------
    directory = config.checkpoints_path
    device = require_device(config.train)
    require_trackers(config)
    states = require_states(config)
    vocab_made = require_manifest(config.vocab_path, "eagle vocab CONFIG")
    require_fit(
        config.vocab_path,
        vocab_made,
        settings=vocab_settings(config),
        inputs={"states": digest_of(states)},
    )
    settings = train_settings(config)
    inputs = {"states": digest_of(states), "vocab": digest_of(vocab_made)}
    found = read_manifest(directory)
    if found is not None:
        require_fit(directory, found, settings=settings, inputs=inputs)
        if found.complete and checkpoints(directory):
            console.print(f"train: {directory} is complete: nothing to do")
            return found
    write_manifest(
        directory,
        manifest_of("train", settings=settings, inputs=inputs, figures={}, seconds=0.0, complete=False),
    )

    # ---- The data, and the order in which it is seen ------------------------------------------------
    with waiting("reading states"):
        feed, heldout = ShardFeed(config), HeldOut.of(config)
    plans = plans_of(config, feed.outlines)
    per_step = config.train.batches_per_step
    steps = sum(-(-len(plan) // per_step) for plan in plans)

    # ---- The draft, as it was left ------------------------------------------------------------------
    model = Path(config.verifier.model)
    vocab, weights = load_vocab(config.vocab_path), read_weights(model)
    draft = build_draft(config.draft, weights, vocab, config.seed).to(device)
    draft.lm_head.weight.requires_grad_(config.train.head == "trained")
    eps = read_shape(model).rms_norm_eps
    dtype = DTYPES[config.train.compute_dtype]
    trainee = Trainee(
        objective=Objective(draft, verifier_head(weights, eps, vocab, dtype, device), config.train),
        optimizers=build_optimizers(draft, config.train),
        device=device,
    )
    progress = Progress(step=0, epoch=0, index=0, seconds=0.0, targets=0)
    if saved := checkpoints(directory):
        progress = load_checkpoint(saved[-1], draft, trainee.optimizers)
        console.print(f"train: going on from {saved[-1]}")

    # ---- The steps ----------------------------------------------------------------------------------
    with stop_signals() as stop, watching(config, trainee, heldout, progress, steps) as watch:
        start = Position(progress.epoch, progress.index)
        began = time.monotonic()
        for update in updates(feed, plans, per_step, start, Rank()):
            if watch.ended_early:
                break
            metrics = train_step(trainee, update, progress.step, steps)
            ended = time.monotonic()
            progress, began = advanced(progress, plans, update, metrics, ended - began), ended
            began += watch.after_update(progress, metrics, update.position.epoch, stop)
            if stop.requested and watch.saved_step == progress.step:
                console.print(f"train: stopped after step {progress.step} of {steps}, with a checkpoint")
                raise KeyboardInterrupt

    # ---- What came out ------------------------------------------------------------------------------
    figures = figures_of(list(read_journal(config.training_log_path, LogLine)), progress, draft)
    figures["validation"] = validation_figures(watch.validations, steps)
    speed = Speed(tokens_per_s=tokens_before(plans, feed.outlines, progress) / progress.seconds)
    seconds = progress.seconds + sum(one.seconds for one in watch.validations)
    manifest = manifest_of(
        "train", settings=settings, inputs=inputs, figures=figures, seconds=seconds, speed=speed
    )
    write_manifest(directory, manifest)
    return manifest


def require_device(config: TrainConfig) -> torch.device:
    """The configured device. Raises ConfigError when this machine hasn't it."""
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "train.device is cuda, but torch finds no CUDA device here: set it to cpu, or run where one is"
        )
    return torch.device(config.device)


def train_settings(config: RunConfig) -> dict[str, Any]:
    """What the trained weights depend on: everything but how often it is logged and saved, and where."""
    aside = ("checkpoint_steps", "keep_checkpoints", "log_steps", "trackers")
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


def tokens_before(plans: list[list[list[int]]], outlines: Sequence[Outline], progress: Progress) -> int:
    """Tokens that were trained on so far, over all epochs."""
    done = [*itertools.chain(*plans[: progress.epoch])]
    if progress.index:
        done += plans[progress.epoch][: progress.index]
    return sum(outlines[number].num_tokens for batch in done for number in batch)

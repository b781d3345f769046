"""Training, from the states to the last checkpoint.

`train` reads from top to bottom in the order in which things happen. A run that is stopped saves a
checkpoint, and the same command goes on from there.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import msgspec
import torch

from eagle.batches import Outline, Position
from eagle.checkpoint import Progress, checkpoints, load_checkpoint
from eagle.feed import Update, plans_of, updates, verify_shards
from eagle.init_from import first_draft, init_inputs
from eagle.loss import verifier_head
from eagle.optim import build_optimizers
from eagle.parallel import World, joined, shared
from eagle.step import Objective, Trainee, train_step
from eagle.stop import stop_signals
from eagle.stream import feed_of, stall_s, streamed_settings
from eagle.tensors import DTYPES
from eagle.trackers import require_trackers
from eagle.training_log import LogLine, StepMetrics, figures_of
from eagle.validate import HeldOut
from eagle.verifier import weights_of
from eagle.vocab import dataset_inputs, load_vocab, states_inputs, vocab_settings
from eagle.watch import validation_figures, watching
from synthgen.corpus.config import RunConfig
from synthgen.corpus.console import console, waiting
from synthgen.corpus.journal import read_journal
from synthgen.corpus.lock import claimed
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


def train(config: RunConfig) -> Manifest | None:
    """Train the run's draft to the end, on as many processes as torchrun started; return the manifest beside
    its checkpoints, None on all processes but the first.

    Raises ConfigError, ArtifactError or TrainingError as its parts do, ArtifactError too when another command
    trains this draft; KeyboardInterrupt, with a checkpoint saved, when SIGINT or SIGTERM asked it, or any of
    the processes, to stop.
    """
    with joined(config.train, stall_s(config)) as world, _held(config, world):
        return train_in(world, config)


def _held(config: RunConfig, world: World) -> AbstractContextManager[None]:
    """The run's draft, which the first process holds for all."""
    return claimed(config.checkpoints_path, parts=1) if world.is_first else contextlib.nullcontext()


def train_in(world: World, config: RunConfig) -> Manifest | None:
    """One process's part of `train`."""
    # ---- What goes in, and whether it fits ----------------------------------------------------------
    directory = config.checkpoints_path
    per_step = config.train.batches_per_step
    world.rank.own(per_step)
    require_trackers(config)
    inputs = states_inputs(config)
    vocab_made = require_manifest(config.vocab_path, "eagle vocab CONFIG")
    require_fit(config.vocab_path, vocab_made, settings=vocab_settings(config), inputs=dataset_inputs(config))
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
        if not config.train.stream:
            verify_shards(config, world.rank)
            world.wait()  # until all are known to be whole
        feed = feed_of(config, world.rank)
        heldout = None if config.train.stream else HeldOut.of(config)
    if config.train.stream:
        console.print("train: states are streamed: nothing is validated", soft_wrap=True)
    plans = plans_of(config, feed.outlines)
    steps = sum(-(-len(plan) // per_step) for plan in plans)

    # ---- The draft, as it was left ------------------------------------------------------------------
    saved = checkpoints(directory)
    trainee = trainee_of(config, world, fresh=not saved)
    draft = trainee.objective.draft
    progress = Progress(step=0, epoch=0, index=0, seconds=0.0, targets=0)
    if saved:
        progress = load_checkpoint(saved[-1], draft, trainee.optimizers)
        console.print(f"train: going on from {saved[-1]}")
    world.require_same_step(progress.step)

    # ---- The steps ----------------------------------------------------------------------------------
    with (
        feed.running(),
        stop_signals(patient=world.rank.world > 1) as stop,
        watching(config, trainee, heldout, progress, steps) as watch,
    ):
        start = Position(progress.epoch, progress.index)
        began = time.monotonic()
        pinned = world.device.type == "cuda"
        try:
            for update in updates(feed, plans, per_step, start, world.rank, pinned=pinned):
                if watch.ended_early:
                    break
                metrics = train_step(trainee, update, progress.step, steps)
                ended = time.monotonic()
                progress, began = advanced(progress, plans, update, metrics, ended - began), ended
                stopping = world.any(stop.requested)
                began += watch.after_update(progress, metrics, update.position.epoch, stopping=stopping)
                if stopping:
                    world.wait()
                    console.print(f"train: stopped after step {progress.step} of {steps}, with a checkpoint")
                    raise KeyboardInterrupt
        except (ServerError, ArtifactError) as error:  # no states come: nothing is wrong with the draft
            if world.rank.world == 1:
                watch.keep(progress)
            else:  # the others wait in the update: they can't help to save
                error.args = (f"{error}. The same command goes on from step {watch.saved_step}",)
            raise

    # ---- What came out ------------------------------------------------------------------------------
    world.wait()  # until all have said what they left out
    if not world.is_first:
        return None
    figures = figures_of(list(read_journal(config.training_log_path, LogLine)), progress, draft)
    figures |= {"validation": validation_figures(watch.validations, steps)} | feed.figures()
    speed = Speed(tokens_per_s=tokens_before(plans, feed.outlines, progress) / progress.seconds)
    seconds = progress.seconds + sum(one.seconds for one in watch.validations)
    manifest = manifest_of(
        "train", settings=settings, inputs=inputs, figures=figures, seconds=seconds, speed=speed
    )
    write_manifest(directory, manifest)
    return manifest


def trainee_of(config: RunConfig, world: World, *, fresh: bool) -> Trainee:
    """The run's draft with its optimizers, and the verifier's head, on this process's device.

    Its weights are those to begin with, or empty where they are not `fresh`: a checkpoint's follow.
    """
    vocab, weights = load_vocab(config.vocab_path), weights_of(config.verifier)
    draft = first_draft(config, weights, vocab, fresh=fresh).to(world.device)
    draft.lm_head.weight.requires_grad_(config.train.head == "trained")
    dtype = DTYPES[config.train.compute_dtype]
    if world.device.type == "cuda" and dtype is torch.bfloat16:
        torch.set_float32_matmul_precision("high")  # attention's scores: TF32 has more digits than bfloat16
    verifier = verifier_head(weights, shape_of(config.verifier).rms_norm_eps, vocab, dtype, world.device)
    objective = Objective(draft, verifier, config.train)
    return Trainee(
        engine=shared(objective, world, config.train, dtype),
        objective=objective,
        optimizers=build_optimizers(draft, config.train, world.rank),
        world=world,
    )


ASIDE = (
    *("checkpoint_steps", "keep_checkpoints", "log_steps", "trackers"),
    *("parallel", "processes", "stream", "stream_spool_mib"),
)
"""Settings of training that its weights don't depend on: how often and where it is logged and saved, which
processes share the work, how its states come."""


def train_settings(config: RunConfig) -> dict[str, Any]:
    """What the trained weights depend on."""
    return {
        "draft": config.draft,
        "train": {k: v for k, v in msgspec.structs.asdict(config.train).items() if k not in ASIDE},
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

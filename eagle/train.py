"""Training, from the states on disk to the last checkpoint.

`train` reads from top to bottom in the order in which things happen; `train_step` is a plain function
of its arguments. A run that is stopped saves a checkpoint, and the same command goes on from there.
"""

from __future__ import annotations

import contextlib
import math
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
from torch import nn

from eagle.batches import Batch, Document, Kind, Position, batches, find_targets, join_all, plan_epoch
from eagle.checkpoint import Progress, checkpoints, load_checkpoint, save_checkpoint
from eagle.draft import Draft, build_draft, unroll
from eagle.loss import VerifierHead, prefix_counts, step_losses, target_logits
from eagle.loss import verifier_head as build_verifier_head
from eagle.optim import Optimizers, build_optimizers, rate_at
from eagle.shards import read_all, read_index, verify_shard
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
from eagle.vocab import load_vocab, require_states, vocab_settings
from synthgen.corpus.config import RunConfig
from synthgen.corpus.console import bar, console, waiting
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
from synthgen.corpus.samples import read_samples
from synthgen.corpus.verifier_files import shape_of
from synthgen.errors import ArtifactError, ConfigError, TrainingError

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainee:
    """Everything that an update changes or reads besides its batch."""

    draft: Draft
    optimizers: Optimizers
    verifier: VerifierHead
    config: TrainConfig


@dataclass(slots=True)
class Stop:
    """Whether someone asked training to end."""

    requested: bool = False


def train_step(trainee: Trainee, batch: Batch, step: int, steps: int) -> StepMetrics:
    """One update on `batch`, the `step`th of `steps` from 0.

    Raises TrainingError, before anything is changed, when the loss or its gradient isn't finite.
    """
    draft, verifier, config = trainee.draft, trainee.verifier, trainee.config
    targets = find_targets(batch, config.ttt_steps)
    with torch.no_grad():
        says = target_logits(verifier, batch.final_TH[targets.targets_P])
    outputs_SNH = unroll(
        draft,
        verifier.head_VH.dtype,
        batch.aux_T3H,
        verifier.embedding_VH[batch.token_ids_T],
        targets.slots_N,
        batch.starts,
        config.ttt_steps,
    )
    losses = step_losses(outputs_SNH, draft.lm_head.weight, says, targets, config.ttt_decay)
    losses.total.backward()  # type: ignore[no-untyped-call]
    loss = losses.total.item()
    grad_norm = nn.utils.clip_grad_norm_(trainee.optimizers.named.values(), config.grad_clip_norm).item()
    _require_finite(loss, grad_norm, step, batch)
    trainee.optimizers.step(rate_at(step, steps, config.warmup_fraction))
    prefix_hits_S, prefix_slots_S = prefix_counts(losses.hits_SP, targets)
    return StepMetrics(
        loss=loss,
        grad_norm=grad_norm,
        losses=losses.losses_S.tolist(),
        hits=losses.hits_SP.sum(1).tolist(),
        targets=targets.valid_SP.sum(1).tolist(),
        prefix_hits=prefix_hits_S.tolist(),
        prefix_slots=prefix_slots_S.tolist(),
        first_hits_by_kind=_by_kind(losses.hits_SP[0], batch.next_kind_T[targets.targets_P]),
    )


def train(config: RunConfig) -> Manifest:
    """Train the run's draft to the end; return the manifest beside its checkpoints.

    Raises ConfigError, ArtifactError or TrainingError as its parts do; KeyboardInterrupt, with a
    checkpoint saved, when SIGINT or SIGTERM asked it to stop.
    """
    # ---- What goes in, and whether it fits ----------------------------------------------------------
    directory = config.checkpoints_path
    device = require_device(config.train)
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
        documents = read_documents(config)
    lengths = [len(document.token_ids_T) for document in documents]
    plans = [
        plan_epoch(lengths, config.train.batch_tokens, config.seed, epoch)
        for epoch in range(config.train.epochs)
    ]
    steps = sum(len(plan) for plan in plans)

    # ---- The draft, as it was left ------------------------------------------------------------------
    vocab, weights = load_vocab(config.vocab_path), weights_of(config.verifier)
    draft = build_draft(config.draft, weights, vocab, config.seed).to(device)
    draft.lm_head.weight.requires_grad_(config.train.head == "trained")
    eps = shape_of(config.verifier).rms_norm_eps
    dtype = DTYPES[config.train.compute_dtype]
    trainee = Trainee(
        draft=draft,
        optimizers=build_optimizers(draft, config.train),
        verifier=build_verifier_head(weights, eps, vocab, dtype, device),
        config=config.train,
    )
    progress = Progress(step=0, epoch=0, index=0, seconds=0.0, targets=0)
    if saved := checkpoints(directory):
        progress = load_checkpoint(saved[-1], draft, trainee.optimizers)
        console.print(f"train: going on from {saved[-1]}")
    log_path = directory.parent / LOG_NAME
    cut_log(log_path, progress.step)

    # ---- The steps ----------------------------------------------------------------------------------
    with bar("train", steps) as shown, stop_signals() as stop, log_path.open("ab") as log:
        shown.advance(progress.step)
        window = Window()
        for batch in batches(documents, plans, Position(progress.epoch, progress.index)):
            began = time.monotonic()
            metrics = train_step(trainee, batch.to(device), progress.step, steps)
            progress = advanced(progress, plans, metrics, time.monotonic() - began)
            window.steps.append(metrics)
            due = progress.step == steps or progress.step % config.train.checkpoint_steps == 0
            if due or stop.requested or progress.step % config.train.log_steps == 0:
                rate = rate_at(progress.step - 1, steps, config.train.warmup_fraction)
                line = log_line(window, progress.step, batch.position.epoch, rate)
                log.write(msgspec.json.encode(line) + b"\n")
                log.flush()
                shown.advance(0, note_of(line))
                if due or stop.requested:
                    save_checkpoint(directory, draft, trainee.optimizers, progress)
                window = Window()
            shown.advance(1)
            if stop.requested:
                console.print(f"train: stopped after step {progress.step} of {steps}, with a checkpoint")
                raise KeyboardInterrupt

    # ---- What came out ------------------------------------------------------------------------------
    figures = figures_of(list(read_journal(log_path, LogLine)), progress, draft)
    speed = Speed(tokens_per_s=config.train.epochs * sum(lengths) / progress.seconds)
    manifest = manifest_of(
        "train", settings=settings, inputs=inputs, figures=figures, seconds=progress.seconds, speed=speed
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
    """What the trained weights depend on: everything but how often it is logged and saved."""
    aside = ("checkpoint_steps", "log_steps")
    return {
        "draft": config.draft,
        "train": {k: v for k, v in msgspec.structs.asdict(config.train).items() if k not in aside},
        "seed": config.seed,
        "verifier": config.verifier.model,
        "aux_layers": config.extract.aux_layers,
        "vocab_size": config.vocab.size,
    }


def read_documents(config: RunConfig) -> list[Document]:
    """Every sample with states and something to learn, by id, so that the shards' order doesn't matter.

    Raises ArtifactError when a shard is damaged or its token ids aren't the dataset's.
    """
    for entry in read_index(config.states_path):
        verify_shard(config.states_path, entry)
    samples = {sample.id: sample for sample in read_samples(config.train_path, config.extract.max_seq_tokens)}
    documents = join_all(read_all(config.states_path), samples, config.train.max_seq_tokens)
    hidden_size = shape_of(config.verifier).hidden_size
    found = documents[0].states.aux.values.shape[-1]
    if found != hidden_size:
        raise ArtifactError(
            f"{config.states_path}: states have hidden size {found}, the verifier {hidden_size}: they are "
            f"another model's; remove them and extract again"
        )
    return sorted(documents, key=lambda document: document.sample_id)


def advanced(
    progress: Progress, plans: list[list[list[int]]], metrics: StepMetrics, seconds: float
) -> Progress:
    """`progress` after one more update."""
    index = progress.index + 1
    end = index == len(plans[progress.epoch])
    return Progress(
        step=progress.step + 1,
        epoch=progress.epoch + end,
        index=0 if end else index,
        seconds=progress.seconds + seconds,
        targets=progress.targets + metrics.targets[0],
    )


@contextlib.contextmanager
def stop_signals() -> Iterator[Stop]:
    """Note SIGINT and SIGTERM instead of being cut off; a second one ends at once."""
    stop = Stop()

    def note(*_: object) -> None:
        if stop.requested:
            raise KeyboardInterrupt
        stop.requested = True

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _require_finite(loss: float, grad_norm: float, step: int, batch: Batch) -> None:
    if math.isfinite(loss) and math.isfinite(grad_norm):
        return
    where = f"step {step + 1} (epoch {batch.position.epoch}, batch {batch.position.index})"
    raise TrainingError(
        f"{where}: loss {loss}, gradient norm {grad_norm}; samples {', '.join(batch.sample_ids)}. Nothing of "
        f"this step was applied: check these samples' states, or lower train.learning_rate"
    )


def _by_kind(hits_P: torch.Tensor, kind_P: torch.Tensor) -> dict[str, list[int]]:
    found = {}
    for kind in (Kind.THINKING, Kind.RESPONSE, Kind.TOOL):
        of_kind_P = kind_P == kind
        if count := int(of_kind_P.sum()):
            found[kind.name.lower()] = [int(hits_P[of_kind_P].sum()), count]
    return found

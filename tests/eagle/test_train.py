"""Training from states to checkpoints, on a verifier that counts."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file

from eagle.batches import Batch, Position, find_targets, pack
from eagle.checkpoint import checkpoints, load_progress
from eagle.draft import build_draft
from eagle.feed import Rank, ShardFeed, Update
from eagle.loss import verifier_head
from eagle.optim import build_optimizers
from eagle.parallel import World
from eagle.step import Objective, Trainee, train_step
from eagle.stop import stop_signals
from eagle.train import train
from eagle.training_log import LogLine
from eagle.vocab import load_vocab
from synthgen.corpus.config import RunConfig
from synthgen.corpus.journal import read_journal
from synthgen.corpus.manifest import read_manifest, write_manifest
from synthgen.errors import ArtifactError, ConfigError, TrainingError
from tests.eagle.tiny import counting_weights, tiny_config, write_run

CPU = torch.device("cpu")


def trainee_of(config: RunConfig, dtype: torch.dtype = torch.float32, device: torch.device = CPU) -> Trainee:
    """A fresh draft of a written run."""
    vocab = load_vocab(config.vocab_path)
    draft = build_draft(config.draft, counting_weights(), vocab, config.seed).to(device)
    verifier = verifier_head(counting_weights(), 1e-6, vocab, dtype, device)
    objective = Objective(draft, verifier, config.train)
    return Trainee(
        engine=objective,
        objective=objective,
        optimizers=build_optimizers(draft, config.train),
        world=World(Rank(), device),
    )


def update_of(config: RunConfig, *, aux: float | None = None) -> Update:
    """All samples of a written run as one batch; with `aux` all their aux states are that."""
    feed = ShardFeed(config)
    numbers = list(range(len(feed.outlines)))
    batch = pack(feed.documents(numbers))
    if aux is not None:
        batch = dataclasses.replace(batch, aux_T3H=torch.full_like(batch.aux_T3H, aux))
    totals_S = torch.tensor([outline.target_weights for outline in feed.outlines]).sum(0)
    return Update(
        position=Position(0, 0),
        num_batches=1,
        samples=tuple(outline.place for outline in feed.outlines),
        totals_S=totals_S,
        num_own=1,
        batches=iter([batch]),
    )


def test_an_update_takes_a_batch_when_it_is_through_with_the_one_before(tmp_path: Path) -> None:
    """Whoever made it may then take its states back; the last one alone sums gradients over processes."""
    config = tiny_config(tmp_path)
    write_run(config)
    trainee, update = trainee_of(config), update_of(config)
    (batch,) = update.batches
    through: list[int] = []
    trainee.engine.register_forward_hook(lambda *_: through.append(1))
    before: list[int] = []

    def batches() -> Iterator[Batch]:
        for _ in range(3):
            before.append(len(through))
            yield batch

    train_step(trainee, dataclasses.replace(update, num_own=3, batches=batches()), 0, 4)
    assert before == [0, 1, 2]


def test_what_a_batch_is_filled_up_with_changes_nothing(tmp_path: Path) -> None:
    """Loss and gradients are those of the documents alone, but for rounding."""
    config = tiny_config(tmp_path)
    write_run(config)
    feed, found = ShardFeed(config), []
    documents = feed.documents(list(range(3)))
    for multiple in (1, 256):
        trainee = trainee_of(config, torch.float64)
        trainee.objective.double()
        batch = pack(documents, multiple)
        targets = find_targets(batch, 3, multiple)
        total, *_ = trainee.objective(batch, targets, torch.tensor([54.0, 54.0, 54.0]))
        total.backward()
        found.append((len(batch.token_ids_T), len(targets.slots_N), total.detach(), trainee.optimizers.named))
    (tokens, slots, alone, plain), (more_tokens, more_slots, filled, weights) = found
    assert tokens < more_tokens == 256
    assert slots < more_slots == 255  # all but the last token
    torch.testing.assert_close(filled, alone)
    for name, weight in weights.items():
        torch.testing.assert_close(weight.grad, plain[name].grad)


def log_of(config: RunConfig) -> list[LogLine]:
    return list(read_journal(config.run_path / "draft/train_log.jsonl", LogLine))


def final_weights(config: RunConfig) -> dict[str, torch.Tensor]:
    return load_file(checkpoints(config.checkpoints_path)[-1] / "weights.safetensors")


@pytest.mark.parametrize(("optimizer", "rate"), [("muon", "0.05"), ("adamw", "0.01")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_overfits_one_batch(tmp_path: Path, optimizer: str, rate: str, dtype: torch.dtype) -> None:
    """After 60 updates on the same batch every guess of every step is the verifier's."""
    config = tiny_config(tmp_path, train__optimizer=optimizer, train__learning_rate=rate, vocab__size="24")
    write_run(config)
    trainee = trainee_of(config, dtype)
    metrics = [train_step(trainee, update_of(config), step, 60) for step in range(60)]
    assert metrics[-1].loss < 0.2 * metrics[0].loss
    assert metrics[-1].hits == metrics[-1].targets == [162, 162, 158]  # 4 prompts are too short for step 2
    assert metrics[-1].prefix_hits == metrics[-1].prefix_slots


def test_tokens_outside_the_vocabulary_count_as_misses(tmp_path: Path) -> None:
    """With 12 of 24 tokens known even a perfect draft can't hit them all."""
    config = tiny_config(tmp_path, vocab__size="12", train__learning_rate="0.05")
    write_run(config)
    trainee = trainee_of(config)
    metrics = [train_step(trainee, update_of(config), step, 60) for step in range(60)][-1]
    (batch,) = update_of(config).batches
    inside = load_vocab(config.vocab_path).t2d_V
    answers = (batch.token_ids_T[(batch.next_kind_T > 0)] + 3) % 24
    known = int(inside[answers].sum())
    assert 0 < known < 162
    assert (metrics.hits[0], metrics.targets[0]) == (known, 162)


# fmt: off
GOLDEN = [
    3.905852, 3.793569, 3.575893, 3.367551, 3.179414, 3.009888, 2.857335, 2.720216, 2.597200, 2.487150,
    2.389090, 2.302177, 2.225691, 2.159022, 2.101662, 2.053186, 2.013245, 1.981566, 1.957943, 1.942244,
]
# fmt: on


def test_losses_are_what_they_were(tmp_path: Path) -> None:
    """Twenty updates from seed 7 in float32: a change without effect leaves these losses as they are.

    But for rounding: with another processor's instructions they differ by 4e-6.
    """
    config = tiny_config(tmp_path)
    write_run(config)
    trainee = trainee_of(config)
    losses = [train_step(trainee, update_of(config), step, 20).loss for step in range(20)]
    assert losses == pytest.approx(GOLDEN, rel=2e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="compares it with a GPU")
def test_a_gpu_makes_the_updates_of_the_cpu(tmp_path: Path) -> None:
    """Three of many documents, in float32: the same targets, and losses and norms but for rounding."""
    config = tiny_config(tmp_path)
    write_run(config)
    ours, theirs = trainee_of(config, device=torch.device("cuda")), trainee_of(config)

    def pinned() -> Update:
        update = update_of(config)
        return dataclasses.replace(update, batches=(batch.pinned() for batch in update.batches))

    on_gpu = [train_step(ours, pinned(), step, 3) for step in range(3)]
    on_cpu = [train_step(theirs, update_of(config), step, 3) for step in range(3)]
    for found, expected in zip(on_gpu, on_cpu, strict=True):
        assert found.losses == pytest.approx(expected.losses, rel=1e-4)
        assert found.grad_norm == pytest.approx(expected.grad_norm, rel=1e-3)
        assert (found.targets, found.prefix_slots) == (expected.targets, expected.prefix_slots)
        assert found.first_hits_by_kind.keys() == expected.first_hits_by_kind.keys()


def test_a_whole_run(tmp_path: Path) -> None:
    """Its log, its checkpoints and the figures of its manifest agree; a second call has nothing to do."""
    config = tiny_config(tmp_path)
    write_run(config)
    manifest = train(config)
    assert manifest is not None
    lines = log_of(config)
    assert [line.step for line in lines] == [2, 4, 6, 8]
    assert [line.epoch for line in lines] == [0, 0, 1, 1]
    assert [path.name for path in checkpoints(config.checkpoints_path)] == ["step-00000004", "step-00000008"]
    assert manifest.complete
    assert manifest.figures["steps"] == 8
    assert manifest.figures["supervised_tokens"] == 324 == sum(line.targets for line in lines)
    assert manifest.figures["loss_first"] == pytest.approx(lines[0].loss)
    assert manifest.figures["loss_last"] == pytest.approx(lines[-1].loss)
    assert manifest.figures["loss_last"] < manifest.figures["loss_first"]
    assert manifest.figures["acceptance_predicted"] == pytest.approx(lines[-1].acceptance_predicted)
    assert manifest.figures["accuracy"] == pytest.approx(lines[-1].accuracy)
    assert set(lines[-1].accuracy_by_kind) == {"thinking", "response"}
    assert train(config) == manifest == read_manifest(config.checkpoints_path)


def test_a_killed_run_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    """What is left after a kill behind step 4 goes on to the same weights and log, bit for bit."""
    whole, killed = tiny_config(tmp_path / "a"), tiny_config(tmp_path / "b")
    for config in (whole, killed):
        write_run(config)
        train(config)
    manifest = read_manifest(killed.checkpoints_path)
    assert manifest is not None
    write_manifest(killed.checkpoints_path, msgspec.structs.replace(manifest, complete=False, figures={}))
    shutil.rmtree(checkpoints(killed.checkpoints_path)[-1])
    train(killed)
    expected, found = final_weights(whole), final_weights(killed)
    assert all(torch.equal(expected[name], found[name]) for name in expected)

    def timeless(lines: list[LogLine]) -> list[LogLine]:
        return [msgspec.structs.replace(line, targets_per_s=0.0) for line in lines]

    assert timeless(log_of(killed)) == timeless(log_of(whole))


def test_sigterm_saves_a_checkpoint_and_the_run_goes_on_from_it(tmp_path: Path) -> None:
    """A stop between two checkpoints loses nothing: the end is that of a run which was never stopped."""
    settings = {"train__epochs": "10", "train__checkpoint_steps": "1000", "train__log_steps": "1"}
    whole, stopped = tiny_config(tmp_path / "a", **settings), tiny_config(tmp_path / "b", **settings)
    write_run(whole)
    write_run(stopped)
    log = stopped.run_path / "draft/train_log.jsonl"

    def stop_after_the_first_lines() -> None:
        while not log.exists() or log.stat().st_size < 1000:
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGTERM)

    watcher = threading.Thread(target=stop_after_the_first_lines)
    watcher.start()
    with pytest.raises(KeyboardInterrupt):
        train(stopped)
    watcher.join()
    (path,) = checkpoints(stopped.checkpoints_path)
    assert load_progress(path).step == log_of(stopped)[-1].step < 40
    manifest = read_manifest(stopped.checkpoints_path)
    assert manifest is not None
    assert not manifest.complete

    train(whole)
    train(stopped)
    expected, found = final_weights(whole), final_weights(stopped)
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_a_second_signal_ends_at_once() -> None:
    """The first is noted, the second interrupts; afterwards the handlers are what they were."""
    before = signal.getsignal(signal.SIGINT)
    with stop_signals() as stop:
        requested = [stop.requested]
        signal.raise_signal(signal.SIGINT)
        requested.append(stop.requested)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    assert requested == [False, True]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_loss_that_is_no_number_stops_before_the_update(tmp_path: Path) -> None:
    """The error names step, samples and their shards, and no weight has changed."""
    config = tiny_config(tmp_path)
    write_run(config, samples=2)
    trainee = trainee_of(config)
    draft = trainee.objective.draft
    before = {name: weight.clone() for name, weight in draft.named_parameters()}
    blamed = r"samples seed00-0 in states-00000\.safetensors, seed01-0 in states-00001\.safetensors\."
    with pytest.raises(TrainingError, match=rf"step 4 \(epoch 0, batch 0\): loss nan, .*{blamed}"):
        train_step(trainee, update_of(config, aux=torch.inf), 3, 10)
    assert all(torch.equal(before[name], weight) for name, weight in draft.named_parameters())


def test_a_frozen_head_stays_the_verifiers(tmp_path: Path) -> None:
    """With `head: frozen` it is not trained, and the manifest counts it so."""
    config = tiny_config(tmp_path, train__head="frozen", train__epochs="1")
    write_run(config)
    manifest = train(config)
    assert manifest is not None
    figures = manifest.figures
    rows = counting_weights().head_VH[load_vocab(config.vocab_path).target_ids_K]
    assert torch.equal(final_weights(config)["lm_head.weight"], rows)
    assert figures["parameters"] - figures["parameters_trained"] == 20 * 32


def test_other_settings_than_those_on_disk_are_refused(tmp_path: Path) -> None:
    """A run directory holds one training; how often it is saved may change, what it learns may not."""
    write_run(tiny_config(tmp_path), samples=4)
    train(tiny_config(tmp_path))
    train(tiny_config(tmp_path, train__checkpoint_steps="9", train__log_steps="3"))
    with pytest.raises(ArtifactError, match=r"settings\.train\.learning_rate = 0\.01, this run has 0\.02"):
        train(tiny_config(tmp_path, train__learning_rate="0.02"))


def test_a_damaged_shard_is_refused(tmp_path: Path) -> None:
    """One changed byte in the states is found before anything is trained."""
    config = tiny_config(tmp_path)
    write_run(config, samples=2)
    path = config.states_path / "states-00001.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ArtifactError, match=r"states-00001\.safetensors: sha256"):
        train(config)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the error is about a machine without a GPU")
def test_cuda_without_a_gpu_is_a_config_error(tmp_path: Path) -> None:
    """It is said before anything is read."""
    with pytest.raises(ConfigError, match=r"train\.device is cuda, but torch finds no CUDA device"):
        train(tiny_config(tmp_path, train__device="cuda"))


def test_states_must_be_there(tmp_path: Path) -> None:
    """The error names the command that makes them."""
    write_run(tiny_config(tmp_path / "a"), samples=2)
    config = tiny_config(tmp_path / "a", run_dir=str(tmp_path / "b"))
    with pytest.raises(ArtifactError, match="states is missing: run `eagle extract CONFIG` first"):
        train(config)

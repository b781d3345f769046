"""Training on states that a server makes as they are needed, against a server that does as it is told."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from aiohttp import web
from safetensors.torch import load_file
from typer.testing import CliRunner

from eagle import spool
from eagle.__main__ import app
from eagle.batches import Position
from eagle.checkpoint import checkpoints, load_progress
from eagle.export import chosen
from eagle.feed import Rank, ShardFeed, plans_of
from eagle.packing import remove_orphans
from eagle.step import train_step
from eagle.stream import LeftOut, StreamFeed, clear_spool, feed_of
from eagle.train import train
from eagle.training_log import LogLine
from eagle.vocab import make_vocab
from synthgen.client.launch import captured_layers
from synthgen.corpus.config import RunConfig
from synthgen.corpus.journal import read_journal
from synthgen.corpus.lock import claimed
from synthgen.corpus.manifest import Manifest, read_manifest
from synthgen.corpus.records import Trace
from synthgen.corpus.settings import load_config, save_config
from synthgen.errors import ArtifactError, ConfigError, ServerMismatch, ServerUnreachable
from tests.eagle.test_parallel import codes, said, started, train_aloud
from tests.eagle.tiny import (
    ROOT,
    VOCAB,
    counting_states,
    tiny_config,
    trace,
    write_dataset,
    write_run,
    write_states,
    write_verifier,
)
from tests.scripted_server import MODEL, ScriptedServer


class Prefilling:
    """A server with the connector, the counting verifier's: writes what it is asked for, and keeps count."""

    def __init__(self, config: RunConfig, server: ScriptedServer) -> None:
        self.config = config
        self.server = server
        self.asked: list[tuple[int, ...]] = []
        self.refuses: set[tuple[int, ...]] = set()
        self.loses_files = 0
        self.named = itertools.count()  # no two files have the same name, whoever asks at once
        self.gone_after = 1 << 20
        self.most_bytes = 0
        self.layers = list(captured_layers(config))
        server.handler = self

    async def __call__(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        params, ids = body["kv_transfer_params"], tuple(body["prompt"])
        prefix = params.get("file_prefix")
        if prefix is not None:
            if len(self.asked) >= self.gone_after:
                self.server.healthy = False
                return web.json_response({"error": "shutting down"}, status=503)
            self.asked.append(ids)
        if ids in self.refuses:
            return web.json_response({"error": {"message": "too long"}}, status=400)
        name = f"{prefix or 'probe'}-{next(self.named):05d}.safetensors"
        if self.loses_files and prefix is not None:
            self.loses_files -= 1
        else:
            write_states_file(self.config.spool_path / name, ids, self.layers)
        self.most_bytes = max(self.most_bytes, spool_bytes(self.config))
        told = {"states_file": name, "layer_ids": self.layers}
        return web.json_response(
            {"choices": [{"token_ids": [1]}], "usage": {"prompt_tokens": 1}, "kv_transfer_params": told}
        )

    def back(self) -> None:
        """It is there again."""
        self.gone_after, self.server.healthy = 1 << 20, True


def write_states_file(path: Path, ids: tuple[int, ...], layers: list[int]) -> None:
    """What the connector leaves for a request."""
    captured = spool.Captured(
        token_ids_T=torch.tensor(ids),
        states_T4H=counting_states(tuple(token % VOCAB for token in ids)).bfloat16(),
        layer_ids=tuple(layers),
        dtype="bfloat16",
    )
    spool.write_states(path, captured, durable=False)


def spool_bytes(config: RunConfig) -> int:
    found = 0
    for path in config.spool_path.glob("*"):
        with contextlib.suppress(FileNotFoundError):  # taken meanwhile
            found += path.stat().st_size
    return found


def ids_of(one: Trace) -> tuple[int, ...]:
    return one.prompt_token_ids + one.output_token_ids


def twelve() -> list[Trace]:
    """The replies that `write_run` writes."""
    return [trace(number, prompt=3 + number % 3, output=8 + number) for number in range(12)]


def streaming(directory: Path, server: ScriptedServer, **settings: str) -> RunConfig:
    """A run against the scripted server, without its dataset."""
    values = {
        "server__base_urls": f"[{server.base_url}]",
        "verifier__served_name": MODEL,
        "extract__concurrency": "2",
        "generate__down_wait_s": "1",
        "generate__retry_attempts": "2",
        "generate__retry_seconds": "1",
        "train__stream": "true",
    }
    config = tiny_config(directory, **(values | settings))
    write_verifier(Path(config.verifier.model))
    return config


def written(config: RunConfig, traces: list[Trace]) -> RunConfig:
    """The same with its dataset and vocabulary, and no states."""
    write_dataset(config, traces)
    make_vocab(config)
    return config


@pytest.fixture
def config(tmp_path: Path, server: ScriptedServer) -> RunConfig:
    """Twelve samples to stream."""
    return written(streaming(tmp_path, server), twelve())


@pytest.fixture
def handler(config: RunConfig, server: ScriptedServer) -> Prefilling:
    """What answers for them."""
    return Prefilling(config, server)


def weights(config: RunConfig) -> dict[str, torch.Tensor]:
    return load_file(checkpoints(config.checkpoints_path)[-1] / "weights.safetensors")


def same_weights(one: RunConfig, other: RunConfig) -> bool:
    found, expected = weights(one), weights(other)
    return all(torch.equal(expected[name], found[name]) for name in expected)


def losses(config: RunConfig) -> list[float]:
    return [line.loss for line in read_journal(config.run_path / "draft/train_log.jsonl", LogLine)]


@pytest.fixture
def shards(tmp_path: Path) -> RunConfig:
    """The same samples trained on from shards, to the end."""
    config = tiny_config(tmp_path / "shards")
    write_run(config)
    train(config)
    return config


def trained(config: RunConfig) -> Manifest:
    """What training says at its end."""
    manifest = train(config)
    assert manifest is not None
    return manifest


def test_streamed_states_train_the_same_draft(
    config: RunConfig, handler: Prefilling, shards: RunConfig
) -> None:
    """Bit for bit what the shards of the same states give; each sample is asked for once an epoch."""
    manifest = trained(config)
    assert losses(config) == losses(shards)
    assert same_weights(config, shards)
    assert sorted(handler.asked) == sorted(2 * [ids_of(one) for one in twelve()])
    assert spool_bytes(config) == 0
    assert not config.states_path.exists()
    assert manifest.figures["samples_left_out"] == 0


def test_the_manifest_says_that_states_were_streamed(config: RunConfig, handler: Prefilling) -> None:
    """From which dataset, of which layers, in which dtype; what matters can't be changed, the room can."""
    manifest = trained(config)
    assert sorted(manifest.inputs) == ["dataset", "vocab"]
    assert manifest.settings["states"]["source"] == "streamed"
    assert manifest.settings["states"]["taps"]["ids"] == [2, 4, 5, 8]
    assert manifest.settings["states"]["dtype"] == "bfloat16"

    def train_again(**changed: Any) -> None:
        values = msgspec.to_builtins(config)
        for section, keys in changed.items():
            values[section] |= keys
        train(msgspec.convert(values, RunConfig))

    train_again(train={"stream_spool_mib": 2})
    with pytest.raises(ArtifactError, match=r"settings\.states\.dtype = 'bfloat16', this run has 'float32'"):
        train_again(server={"dtype": "float32"})
    with pytest.raises(ArtifactError, match=r"run `eagle extract CONFIG` first"):
        train_again(train={"stream": False})


def test_a_vocabulary_is_made_of_the_dataset(tmp_path: Path, server: ScriptedServer) -> None:
    """Before there are states, and whether they will be streamed or not: it is the same one."""
    config = streaming(tmp_path, server)
    write_dataset(config, twelve())
    with pytest.raises(ArtifactError, match=r"run `eagle vocab CONFIG` first"):
        train(config)
    made = make_vocab(tiny_config(tmp_path))
    assert made.figures["supervised_tokens"] == 162
    assert list(made.inputs) == ["dataset"]
    assert make_vocab(config) == made


def test_the_spool_keeps_its_bound(tmp_path: Path, server: ScriptedServer) -> None:
    """100 samples of 47 tokens at 264 bytes, 1.3 MB, go through one MiB."""
    config = streaming(tmp_path, server, train__epochs="2", extract__concurrency="64")
    written(config, [trace(number, prompt=4, output=43) for number in range(100)])
    handler = Prefilling(config, server)
    feed = feed_of(config, Rank())
    with feed.running():
        feed.prepare([(Position(0, n), [n]) for n in range(100)])
        deadline = time.monotonic() + 20
        while len(handler.asked) < 75 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.2)
        assert len(handler.asked) == 76  # of (47 + 1) * 264 + 1024 bytes each
        assert [document.sample_id for document in feed.documents([0])] == ["seed00-0"]
        time.sleep(0.2)
        assert len(handler.asked) == 76
        feed.release([0])
        while len(handler.asked) < 77 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(handler.asked) == 77
        assert handler.most_bytes <= 1 << 20
    assert spool_bytes(config) == 0


def test_room_that_holds_no_batch_is_refused(tmp_path: Path, server: ScriptedServer) -> None:
    """A batch of 5,000 tokens needs 1.3 MB; both figures stand in the error, before anything is asked."""
    config = streaming(tmp_path, server, train__batch_tokens="5000")
    written(config, [trace(number, prompt=4, output=43) for number in range(100)])
    with pytest.raises(ConfigError, match=r"stream_spool_mib 1 doesn't hold .* 5000: set it to 2 or more"):
        train(config)
    assert server.requests == []


def test_captured_replies_are_not_streamed() -> None:
    """Their states lie on the disk already, and only extract packs them."""
    with pytest.raises(ConfigError, match=r"train\.stream and generate\.capture can't go together"):
        load_config(ROOT / "configs/demo.yaml", ("train.stream=true", "generate.capture=true"))


def test_nothing_is_validated(config: RunConfig, handler: Prefilling, capsys: Any) -> None:
    """Training says so at its start, the export in what it chose; waiting for a better one is refused."""
    manifest = trained(config)
    assert "states are streamed: nothing is validated" in capsys.readouterr().err
    assert chosen(config.checkpoints_path, manifest)[1] == "the newest: a streamed training validates none"
    with pytest.raises(ConfigError, match=r"patience 3 and stream can't go together"):
        load_config(ROOT / "configs/demo.yaml", ("train.stream=true", "train.patience=3"))


def test_two_cannot_train_the_same_draft(config: RunConfig, handler: Prefilling) -> None:
    """The second is told before it reads, asks or removes anything; extraction leaves the first its files."""
    mine, old = config.spool_path / "stream-0-a.safetensors", config.spool_path / "b.safetensors"
    for path in (mine, old):
        write_states_file(path, (1, 2), handler.layers)
    with claimed(config.checkpoints_path, parts=1):
        with pytest.raises(ArtifactError, match=r"checkpoints/lock: another process is writing .*: wait"):
            train(config)
        remove_orphans(config)
        assert (mine.exists(), old.exists()) == (True, False)
    remove_orphans(config)
    assert not mine.exists()
    assert handler.asked == []


def test_under_torchrun_a_sample_that_is_left_out_is_no_error(
    config: RunConfig, handler: Prefilling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends with 1 for every error, so code 1 would say nothing; alone, code 1 says it."""
    handler.refuses = {ids_of(twelve()[5])}
    path = config.run_path / "my.yaml"
    save_config(config, path)
    assert CliRunner().invoke(app, ["train", str(path)]).exit_code == 1
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    assert CliRunner().invoke(app, ["train", str(path)]).exit_code == 0


def test_two_processes_count_a_sample_that_is_left_out_once(
    tmp_path: Path, server: ScriptedServer, shards: RunConfig
) -> None:
    """Each keeps a journal of its own; one process that goes on knows them all and copies none."""
    config = written(streaming(tmp_path, server, train__batches_per_step="2"), twelve())
    handler = Prefilling(config, server)
    refused = [twelve()[2], twelve()[5], twelve()[9]]
    handler.refuses = {ids_of(one) for one in refused}
    assert codes(started(2, train_aloud, config)) == [0, 0]
    made = read_manifest(config.checkpoints_path)
    assert made is not None
    assert made.figures["samples_left_out"] == 3
    journals = sorted(config.checkpoints_path.glob("failures-*of2.jsonl"))
    records = [record for path in journals for record in read_journal(path, LeftOut)]
    assert {record.sample_id for record in records} == {one.id for one in refused}
    again = StreamFeed(config, Rank())
    with again.running():
        assert again.figures() == {"samples_left_out": 3}
    assert not (config.checkpoints_path / "failures.jsonl").exists()


def test_a_server_that_stays_away_ends_all_processes(tmp_path: Path, server: ScriptedServer) -> None:
    """None waits for the others' part of a checkpoint; the error says from which step it goes on."""
    config = written(streaming(tmp_path, server, train__batches_per_step="2"), twelve())
    handler = Prefilling(config, server)
    handler.gone_after = 8
    began = time.monotonic()
    assert codes(started(2, train_aloud, config)) == [2, 2]
    assert "\n".join(said(config, 2)).count("goes on from step 0") == 1
    assert time.monotonic() - began < 60
    assert checkpoints(config.checkpoints_path) == []
    handler.back()
    assert codes(started(2, train_aloud, config)) == [0, 0]


def test_several_processes_need_a_server_that_runs(tmp_path: Path) -> None:
    """Each would start one on the same port."""
    config = written(tiny_config_with_verifier(tmp_path), twelve())
    feed = StreamFeed(config, Rank(0, 2))
    refused = r"on 2 processes needs servers that run: .* set server\.base_urls"
    with pytest.raises(ConfigError, match=refused), feed.running():
        pass
    many = ("train.stream=true", "train.processes=2", "train.batches_per_step=2")
    with pytest.raises(
        ConfigError, match=r"train\.processes 2 needs servers that run: set server\.base_urls"
    ):
        load_config(ROOT / "configs/demo.yaml", many)


def tiny_config_with_verifier(directory: Path) -> RunConfig:
    config = tiny_config(directory, train__stream="true")
    write_verifier(Path(config.verifier.model))
    return config


def test_a_stopped_run_asks_only_for_what_is_still_to_come(
    config: RunConfig, handler: Prefilling, shards: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGTERM in the middle, then the same command: the draft of a run that was never stopped."""
    stop_when(monkeypatch, step=3)
    with pytest.raises(KeyboardInterrupt):
        train(config)
    monkeypatch.undo()
    (path,) = checkpoints(config.checkpoints_path)
    progress = load_progress(path)
    assert progress.step == 3
    clear_spool(config, Rank())
    handler.asked.clear()
    train(config)
    assert same_weights(config, shards)
    assert len(handler.asked) == 24 - seen_in(config, progress.step)
    assert spool_bytes(config) == 0


def stop_when(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Send this process a SIGTERM in the `step`th update."""
    real, done = train_step, iter(range(1, 1000))

    def stepped(*arguments: Any) -> Any:
        if next(done) == step:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(*arguments)

    monkeypatch.setattr("eagle.train.train_step", stepped)


def seen_in(config: RunConfig, steps: int) -> int:
    """Samples in the first batches of the plan."""
    plans = plans_of(config, StreamFeed(config, Rank()).outlines)
    return sum(map(len, [batch for plan in plans for batch in plan][:steps]))


def test_what_a_killed_run_left_in_the_spool_is_removed(config: RunConfig, handler: Prefilling) -> None:
    """Its own files and those of processes that are no more; files of captured replies stay."""
    for name in ("stream-0-a", "stream-7-b", "c"):
        write_states_file(config.spool_path / f"{name}.safetensors", (1, 2), handler.layers)
    (config.spool_path / "stream-0-d.tmp").touch()
    clear_spool(config, Rank(1, 2))
    assert len(list(config.spool_path.iterdir())) == 4
    train(config)
    assert [path.name for path in config.spool_path.iterdir()] == ["c.safetensors"]


def test_a_sample_whose_states_cannot_be_had_is_left_out(
    config: RunConfig, handler: Prefilling, shards: RunConfig
) -> None:
    """It is a record with its reason; the plan is the same, and the others are trained on."""
    refused = twelve()[5]
    handler.refuses = {ids_of(refused)}
    figures = trained(config).figures
    (record,) = read_journal(config.checkpoints_path / "failures.jsonl", LeftOut)
    assert (record.sample_id, record.epoch) == ("seed05-0", 0)
    assert "too long" in record.message
    assert handler.asked.count(ids_of(refused)) == 1
    assert figures["samples_left_out"] == 1
    whole = read_manifest(shards.checkpoints_path)
    assert whole is not None
    assert figures["steps"] == whole.figures["steps"] == 8
    assert figures["supervised_tokens"] == whole.figures["supervised_tokens"] - 2 * 13


def test_what_was_left_out_stays_so_when_the_run_goes_on(
    tmp_path: Path, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the server would give its states now: stopped or not, the draft is the same."""
    refused = {ids_of(twelve()[5])}
    found = []
    for name in ("whole", "stopped"):
        config = written(streaming(tmp_path / name, server), twelve())
        handler = Prefilling(config, server)
        handler.refuses = refused
        if name == "stopped":
            stop_when(monkeypatch, step=4)
            with pytest.raises(KeyboardInterrupt):
                train(config)
            monkeypatch.undo()
            handler.refuses = set()
        assert trained(config).figures["samples_left_out"] == 1
        found.append(config)
    assert same_weights(*found)


def test_a_batch_of_failed_samples_alone_teaches_nothing(tmp_path: Path, server: ScriptedServer) -> None:
    """The run goes on; the same training from the start leaves out anew only what fails anew."""
    config = streaming(tmp_path, server, train__batch_tokens="48", train__epochs="1")
    written(config, [trace(number, prompt=4, output=26) for number in range(4)])
    handler = Prefilling(config, server)
    handler.refuses = {ids_of(trace(2, prompt=4, output=26))}
    figures = trained(config).figures
    assert (figures["steps"], figures["samples_left_out"], figures["supervised_tokens"]) == (4, 1, 3 * 26)


def test_when_every_sample_fails_it_is_not_the_samples(config: RunConfig, handler: Prefilling) -> None:
    """The run ends after eight with the last one's reason. What batches lacked that were trained on is on
    record, also when it goes on; the samples of the last one are asked for again."""
    handler.refuses = {ids_of(one) for one in twelve()}
    with pytest.raises(ArtifactError, match=r"states of 8 samples in a row could not be had; .*too long"):
        train(config)
    (path,) = checkpoints(config.checkpoints_path)
    plan = plans_of(config, StreamFeed(config, Rank()).outlines)[0]
    blank = [(0, n) for n in range(load_progress(path).index) for _ in plan[n]]
    records = list(read_journal(config.checkpoints_path / "failures.jsonl", LeftOut))
    assert sorted((record.epoch, record.index) for record in records) == blank
    assert 1 <= len(records) <= 7
    handler.refuses = set()
    assert trained(config).figures["samples_left_out"] == len(records)


def test_a_file_that_is_lost_is_asked_for_once_more(
    config: RunConfig, handler: Prefilling, shards: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have gone with a server that died: the sample isn't left out."""
    monkeypatch.setattr("eagle.prefill.FILE_WAIT_S", 0.2)
    handler.loses_files = 1
    assert trained(config).figures["samples_left_out"] == 0
    assert same_weights(config, shards)


def test_a_server_that_is_gone_is_waited_for_and_then_named(
    config: RunConfig, handler: Prefilling, shards: RunConfig
) -> None:
    """After generate.down_wait_s the run ends with a checkpoint; once it is back, it goes on from there."""
    handler.gone_after = 8
    began = time.monotonic()
    with pytest.raises(ServerUnreachable, match=r"no server has answered for 1 s \(generate\.down_wait_s\)"):
        train(config)
    assert time.monotonic() - began < 30
    (path,) = checkpoints(config.checkpoints_path)
    assert 1 <= load_progress(path).step < 8
    handler.back()
    train(config)
    assert same_weights(config, shards)
    assert losses(config)[-1] == losses(shards)[-1]


def test_a_server_that_comes_back_is_asked_again(
    tmp_path: Path, server: ScriptedServer, shards: RunConfig
) -> None:
    """In time: training only waits."""
    config = written(streaming(tmp_path, server), twelve())
    config = msgspec.structs.replace(
        config, generate=msgspec.structs.replace(config.generate, down_wait_s=30.0)
    )
    handler = Prefilling(config, server)
    handler.gone_after = 8
    threading.Timer(3.0, handler.back).start()
    train(config)
    assert same_weights(config, shards)


def test_a_server_that_captures_other_layers_is_refused_before_training(
    config: RunConfig, handler: Prefilling
) -> None:
    """Both lists stand in the error."""
    handler.layers = [1, 3, 4, 7]
    with pytest.raises(ServerMismatch, match=r"captures layers \[1, 3, 4, 7\], .* wants \[2, 4, 5, 8\]"):
        train(config)
    assert handler.asked == []
    assert checkpoints(config.checkpoints_path) == []


def test_a_longer_sample_is_asked_for_as_far_as_it_is_trained_on(
    tmp_path: Path, server: ScriptedServer
) -> None:
    """48 tokens and the one that the last of them is to predict; outlines are those of shards."""
    shards = tiny_config(tmp_path / "a")
    traces = [trace(0, prompt=4, output=56), trace(1, prompt=48, output=10), trace(2, prompt=50, output=9)]
    write_verifier(Path(shards.verifier.model))
    write_dataset(shards, traces)
    write_states(shards, traces)
    config = written(streaming(tmp_path / "b", server), traces)
    handler = Prefilling(config, server)
    feed = StreamFeed(config, Rank())
    assert feed.outlines == [dataclasses.replace(one, file="") for one in ShardFeed(shards).outlines]
    assert [outline.sample_id for outline in feed.outlines] == ["seed00-0", "seed01-0"]
    with feed.running():
        feed.prepare([(Position(0, 0), [1, 0])])
        second, first = feed.documents([1, 0])
    assert [len(ids) for ids in handler.asked] == [49, 49]
    assert (len(first.token_ids_T), len(second.token_ids_T)) == (48, 48)
    assert second.targets_P.tolist() == [47]

"""Packing what was captured, and asking a server for the rest: failures are records."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from aiohttp import web

from eagle.collect import StatesFailure
from eagle.extract import extract
from eagle.shards import read_all, read_index
from eagle.spool import Captured, write_states
from eagle.vocab import require_states
from synthgen.client.launch import captured_layers
from synthgen.corpus.config import RunConfig
from synthgen.corpus.journal import read_journal, write_journal
from synthgen.corpus.lock import claimed
from synthgen.corpus.records import Trace
from synthgen.errors import ArtifactError, DiskError, ServerMismatch
from tests.eagle.tiny import counting_states, tiny_config, trace, write_dataset, write_verifier
from tests.scripted_server import MODEL, ScriptedServer


def spool_file(
    config: RunConfig, name: str, ids: tuple[int, ...], layers: tuple[int, ...] = (2, 4, 5, 8)
) -> Path:
    """What the connector writes for a request of these tokens."""
    path = config.spool_path / f"{name}.safetensors"
    states = Captured(
        token_ids_T=torch.tensor(ids), states_T4H=counting_states(ids), layer_ids=layers, dtype="float32"
    )
    write_states(path, states, durable=False)
    return path


def captured(config: RunConfig, number: int) -> Trace:
    """A reply whose states came with it: all but those of its last token."""
    one = msgspec.structs.replace(trace(number), states_file=f"{number}.safetensors")
    spool_file(config, str(number), (one.prompt_token_ids + one.output_token_ids)[:-1])
    return one


def aged(path: Path) -> None:
    """Make a file as old as one that no server is about to name."""
    an_hour_ago = time.time() - 3700
    os.utime(path, (an_hour_ago, an_hour_ago))


class Capturing:
    """A server with the connector: answers a prefill with the name of the file it wrote."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.refuses: set[tuple[int, ...]] = set()
        self.layers = list(captured_layers(config))
        self.file_layers = captured_layers(config)
        self.writes = 1 << 20
        self.asked = 0

    async def __call__(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        self.asked += 1
        ids = tuple(body["prompt"])
        if ids in self.refuses:
            return web.json_response({"error": {"message": "too long"}}, status=400)
        if self.asked <= self.writes:
            spool_file(self.config, f"prefill{self.asked}", ids, self.file_layers)
        told = {"states_file": f"prefill{self.asked}.safetensors", "layer_ids": self.layers}
        body = {"choices": [{"token_ids": [1]}], "usage": {"prompt_tokens": 1}, "kv_transfer_params": told}
        return web.json_response(body)


@pytest.fixture
def config(tmp_path: Path, server: ScriptedServer) -> RunConfig:
    """A small run with a verifier, against the scripted server."""
    made = tiny_config(
        tmp_path,
        server__base_urls=f"[{server.base_url}]",
        verifier__served_name=MODEL,
        extract__concurrency="2",
    )
    write_verifier(Path(made.verifier.model))
    return made


def test_states_that_came_with_the_replies_are_packed_without_a_server(tmp_path: Path) -> None:
    """Nothing is started or asked; the spool is gone, and what was long nobody's with it."""
    config = tiny_config(tmp_path)
    write_verifier(Path(config.verifier.model))
    traces = [captured(config, number) for number in range(5)]
    aged(spool_file(config, "orphan", (1, 2, 3)))
    write_dataset(config, traces)
    figures = extract(config).figures
    found = {states.sample_id: states.token_ids_T.tolist() for states in read_all(config.states_path)}
    assert found == {t.id: [*t.prompt_token_ids, *t.output_token_ids][:-1] for t in traces}
    assert (figures["samples"], figures["failed"]) == (5, 0)
    assert not config.spool_path.exists()
    assert require_states(config).complete


def test_samples_that_are_held_out_have_states_too(tmp_path: Path) -> None:
    """In the same shard, behind those that are trained on; nothing more is to do then."""
    config = tiny_config(tmp_path)
    write_verifier(Path(config.verifier.model))
    traces = [captured(config, number) for number in range(5)]
    write_dataset(config, traces[1:4], [traces[0], traces[4]])
    made = extract(config)
    (entry,) = read_index(config.states_path)
    assert entry.sample_ids == ("seed01-0", "seed02-0", "seed03-0", "seed00-0", "seed04-0")
    assert {states.file for states in read_all(config.states_path)} == {"states-00000.safetensors"}
    assert not config.spool_path.exists()
    assert extract(config) == made


def test_files_of_other_replies_and_fresh_ones_stay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another mix may draw what this one left out; while replies are generated, one may name a fresh file.

    What was packed and not removed, by a process that was killed in between, goes.
    """
    config = tiny_config(tmp_path)
    write_verifier(Path(config.verifier.model))
    traces = [captured(config, number) for number in range(5)]
    write_journal(config.traces_path, traces)
    for name in ("0", "2", "3", "4", "orphan", "unfinished"):
        aged(spool_file(config, name, (1, 2, 3)) if name.isalpha() else captured_path(config, name))
    (config.spool_path / "unfinished.safetensors").rename(config.spool_path / "unfinished.tmp")
    spool_file(config, "fresh", (1, 2, 3))
    write_dataset(config, traces[:2])
    with claimed(config.corpus_path, parts=1):
        extract(config)
    assert spooled(config) == ["2", "3", "4", "fresh"]
    said = capsys.readouterr().err
    assert f"3 captured files of replies that the dataset leaves out are in {config.spool_path}: " in said
    captured(config, 0)
    shutil.rmtree(config.dataset_path)
    write_dataset(config, traces[:4])
    extract(config)
    assert spooled(config) == ["4"]
    assert len(list(read_all(config.states_path))) == 4


def test_what_a_killed_extraction_left_makes_room_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """States that nobody took and parts of shards go before the disk is asked; what a reply has, stays."""
    config = tiny_config(tmp_path)
    write_verifier(Path(config.verifier.model))
    traces = [captured(config, number) for number in range(3)]
    write_dataset(config, traces)
    spool_file(config, "untaken", (1, 2, 3))
    (config.spool_path / "unfinished.tmp").write_bytes(b"part")
    config.states_path.mkdir()
    for name in ("states-00000.safetensors", "index.jsonl", "failures.jsonl", "manifest.json"):
        (config.states_path / f".{name}.0123456789ab.tmp").write_bytes(b"part")
    seen = []

    def usage(path: Path) -> Any:
        seen.append((spooled(config), sorted(path.name for path in config.states_path.iterdir())))
        return real(path)

    real = shutil.disk_usage
    monkeypatch.setattr(shutil, "disk_usage", usage)
    assert extract(config).figures["samples"] == 3
    assert seen[0] == (["0", "1", "2"], ["lock"])


def captured_path(config: RunConfig, name: str) -> Path:
    """Where the states of a captured reply lie."""
    return config.spool_path / f"{name}.safetensors"


def spooled(config: RunConfig) -> list[str]:
    """What the spool holds, without the files' ending."""
    return sorted(path.stem for path in config.spool_path.iterdir())


def test_captured_states_need_no_more_disk_than_a_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are there already, and removed as they are packed; 17 samples of 17 tokens, 256 bytes each."""
    config = tiny_config(tmp_path, extract__shard_tokens="20")
    write_verifier(Path(config.verifier.model))
    traces = [captured(config, number) for number in range(17)]
    write_dataset(config, traces)
    usage = shutil.disk_usage(tmp_path)._replace(free=6000)  # 20 * 256 bytes and a tenth are 5632
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    assert extract(config).figures["samples"] == 17
    shutil.rmtree(config.states_path)
    with pytest.raises(DiskError, match=r"the hidden states of 17 samples need 72\.2 KiB"):
        extract(config)


def test_two_cannot_extract_into_the_same_directory(tmp_path: Path) -> None:
    """The second is told before it reads or writes anything."""
    config = tiny_config(tmp_path)
    write_verifier(Path(config.verifier.model))
    write_dataset(config, [captured(config, 0)])
    with (
        claimed(config.states_path, parts=1),
        pytest.raises(ArtifactError, match=r"states/lock: another process is writing .*: wait until it ends"),
    ):
        extract(config)
    assert extract(config).figures["samples"] == 1


def test_the_rest_is_asked_for(config: RunConfig, server: ScriptedServer) -> None:
    """A reply without a file, one whose file is gone and one whose file is damaged are sent as token ids."""
    traces = [captured(config, 0), captured(config, 1), captured(config, 2), trace(3)]
    (config.spool_path / "1.safetensors").unlink()
    (config.spool_path / "2.safetensors").write_bytes(b"12345678901234567890")
    write_dataset(config, traces)
    server.handler = handler = Capturing(config)
    extract(config)
    assert handler.asked == 3
    lengths = {states.sample_id: len(states.token_ids_T) for states in read_all(config.states_path)}
    assert lengths == {"seed00-0": 16, "seed01-0": 17, "seed02-0": 17, "seed03-0": 17}


@pytest.mark.parametrize("damage", ["a bit", "cut", "no checksum", "gone"])
def test_a_damaged_captured_file_costs_a_prefill_and_no_more(
    config: RunConfig, server: ScriptedServer, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    """It is named, its states come from the server, its file goes; the other file is packed as it is."""
    traces = [captured(config, 0), captured(config, 1)]
    write_journal(config.traces_path, traces)
    write_dataset(config, traces)
    damaged(captured_path(config, "1"), damage)
    server.handler = handler = Capturing(config)
    made = extract(config)
    assert (made.complete, made.figures["samples"], made.figures["failed"], handler.asked) == (True, 2, 0, 1)
    assert ("1.safetensors" in capsys.readouterr().err) is (damage != "gone")
    found = {states.sample_id: states for states in read_all(config.states_path)}
    assert {sample_id: len(states.token_ids_T) for sample_id, states in found.items()} == {
        "seed00-0": 16,
        "seed01-0": 17,
    }
    whole = traces[1].prompt_token_ids + traces[1].output_token_ids
    assert torch.equal(found["seed01-0"].aux.read(), counting_states(whole)[:, :3].bfloat16())
    assert not config.spool_path.exists()


def damaged(path: Path, how: str) -> None:
    """Damage a file as a disk, a copy that broke off, an older version and a person do."""
    content = path.read_bytes()
    if how == "a bit":  # of the last state
        path.write_bytes(content[:-2] + bytes([content[-2] ^ 1]) + content[-1:])
    elif how == "cut":
        path.write_bytes(content[:-100])
    elif how == "no checksum":
        path.write_bytes(content.replace(b'"crc32"', b'"nr_32"'))
    else:
        path.unlink()


def test_states_of_another_sample_do_not_count(config: RunConfig, server: ScriptedServer) -> None:
    """A file under the right name with other tokens is not packed; its states are asked for."""
    traces = [captured(config, 0)]
    spool_file(config, "0", (9, 9, 9))
    write_dataset(config, traces)
    server.handler = handler = Capturing(config)
    extract(config)
    assert handler.asked == 1


def test_captured_states_of_other_layers_do_not_count(
    config: RunConfig, server: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their ids are right and so is their shape; both lists are printed, and the states are asked for."""
    one = captured(config, 0)
    spool_file(config, "0", (one.prompt_token_ids + one.output_token_ids)[:-1], (2, 4, 6, 8))
    write_dataset(config, [one])
    server.handler = handler = Capturing(config)
    extract(config)
    assert handler.asked == 1
    assert (
        "sample seed00-0: the states that came back are of layers [2, 4, 6, 8], this run wants [2, 4, 5, 8]; "
        "its states are asked for again"
    ) in capsys.readouterr().err


def test_a_sample_that_is_refused_is_a_record_and_the_others_are_there(
    config: RunConfig, server: ScriptedServer
) -> None:
    """It isn't asked for again by itself, but with retry_failed; nothing is sent twice."""
    traces = [trace(number) for number in range(4)]
    write_dataset(config, traces)
    server.handler = handler = Capturing(config)
    handler.refuses = {traces[2].prompt_token_ids + traces[2].output_token_ids}
    made = extract(config)
    assert (made.complete, made.figures["samples"], made.figures["failed"]) == (True, 3, 1)
    (failure,) = read_journal(config.states_path / "failures.jsonl", StatesFailure)
    assert failure.sample_id == "seed02-0"
    assert "too long" in failure.message
    assert handler.asked == 4
    assert extract(config) == made
    assert handler.asked == 4
    handler.refuses = set()
    assert extract(config, retry_failed=True).figures["failed"] == 0
    assert handler.asked == 5
    assert [entry.sample_ids for entry in read_index(config.states_path)][-1] == ("seed02-0",)


def test_a_dataset_that_changed_starts_no_server_for_known_failures(tmp_path: Path) -> None:
    """All others have states: it is complete, and the failure stays on record. Here a server can't start."""
    config = tiny_config(tmp_path)
    write_verifier(Path(config.verifier.model))
    write_dataset(config, [trace(0), captured(config, 1)])
    refused = StatesFailure(sample_id="seed00-0", message="too long")
    write_journal(config.states_path / "failures.jsonl", [refused])
    assert extract(config).figures["failed"] == 1
    shutil.rmtree(config.dataset_path)
    write_dataset(config, [trace(0), captured(config, 1), captured(config, 2)])
    made = extract(config)
    assert (made.complete, made.figures["samples"], made.figures["failed"]) == (True, 2, 1)
    assert list(read_journal(config.states_path / "failures.jsonl", StatesFailure)) == [refused]


def test_failures_before_an_abort_stay_on_record(
    config: RunConfig, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sample is refused, then no file comes any more: the first is its own fault, the others' isn't."""
    traces = [trace(number) for number in range(20)]
    write_dataset(config, traces)
    server.handler = handler = Capturing(config)
    handler.refuses = {traces[1].prompt_token_ids + traces[1].output_token_ids}
    handler.writes = 4
    monkeypatch.setattr("eagle.prefill.FILE_WAIT_S", 0.2)
    with pytest.raises(ArtifactError, match=r"8 samples in a row failed"):
        extract(config)
    (failure,) = read_journal(config.states_path / "failures.jsonl", StatesFailure)
    assert failure.sample_id == "seed01-0"
    assert "too long" in failure.message


def test_a_server_that_captures_other_layers_ends_the_stage(
    config: RunConfig, server: ScriptedServer
) -> None:
    """Both lists stand in the error; no sample is blamed."""
    write_dataset(config, [trace(0)])
    server.handler = handler = Capturing(config)
    handler.layers = [1, 3, 4, 7]
    other = r"captures layers \[1, 3, 4, 7\], this run wants \[2, 4, 5, 8\]"
    with pytest.raises(ServerMismatch, match=other):
        extract(config)
    handler.layers, handler.file_layers = list(captured_layers(config)), (1, 3, 4, 7)
    with pytest.raises(ServerMismatch, match=other):
        extract(config)


def test_when_every_sample_fails_it_is_not_the_samples(config: RunConfig, server: ScriptedServer) -> None:
    """The stage ends after eight, with the last one's reason, and is not complete."""
    traces = [trace(number) for number in range(20)]
    write_dataset(config, traces)
    server.handler = handler = Capturing(config)
    handler.refuses = {one.prompt_token_ids + one.output_token_ids for one in traces}
    with pytest.raises(ArtifactError, match=r"8 samples in a row failed; the last: .*too long"):
        extract(config)
    assert handler.asked < 20
    with pytest.raises(ArtifactError, match="is not complete"):
        require_states(config)


def test_when_files_stop_coming_the_stage_ends_with_what_it_has(
    config: RunConfig, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three came; after eight in a row that did not, the others aren't waited for one by one."""
    write_dataset(config, [trace(number) for number in range(20)])
    server.handler = handler = Capturing(config)
    handler.writes = 3
    monkeypatch.setattr("eagle.prefill.FILE_WAIT_S", 0.2)
    with pytest.raises(ArtifactError, match=r"8 samples in a row failed; the last: .* did not appear within"):
        extract(config)
    assert handler.asked < 20
    assert len(list(read_all(config.states_path))) == 3


def test_tokens_of_samples_that_failed_do_not_count_as_speed(
    config: RunConfig, server: ScriptedServer
) -> None:
    """The plan reads the speed: none is known when nothing came."""
    one = trace(0)
    write_dataset(config, [one])
    server.handler = handler = Capturing(config)
    handler.refuses = {one.prompt_token_ids + one.output_token_ids}
    assert extract(config).speed is None
    handler.refuses = set()
    speed = extract(config, retry_failed=True).speed
    assert speed is not None
    assert speed.tokens_per_s > 0


def test_a_dataset_that_changed_is_brought_up_to_date(config: RunConfig, server: ScriptedServer) -> None:
    """Samples that were added are asked for; states of those that are gone stay, and are passed over."""
    write_dataset(config, [trace(0), trace(1)])
    server.handler = handler = Capturing(config)
    extract(config)
    for path in sorted(config.dataset_path.iterdir()):
        path.unlink()
    config.dataset_path.rmdir()
    write_dataset(config, [trace(1), trace(2)])
    extract(config)
    assert handler.asked == 3
    assert {states.sample_id for states in read_all(config.states_path)} == {
        "seed00-0",
        "seed01-0",
        "seed02-0",
    }

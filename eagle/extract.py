"""The extract stage: the verifier's hidden states of every sample, through a live vLLM.

Samples are sent as token ids with one token to generate; the connector writes each one's states
into a spool, from where they are packed into shards. Shards that are there are trusted by their
checksum; what they lack is sent again. Nothing is kept whose token ids aren't the sample's.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from eagle.shards import SampleStates, ShardEntry, read_index, verify_shard, write_shard
from eagle.taps import CONVENTION, TapPoints
from synthgen.client.api import ApiClient, client_for
from synthgen.client.control import Control, api_key
from synthgen.client.launch import capturing, served
from synthgen.corpus.config import RunConfig
from synthgen.corpus.console import bar, console
from synthgen.corpus.files import require_free_disk
from synthgen.corpus.manifest import (
    Manifest,
    Speed,
    digest,
    digest_of,
    manifest_of,
    read_manifest,
    require_fit,
    require_manifest,
    write_manifest,
)
from synthgen.corpus.samples import Sample, read_samples
from synthgen.corpus.verifier_config import VerifierShape, read_shape
from synthgen.errors import ArtifactError, ServerMismatch

FILE_WAIT_S = 60.0
"""A reply may come before its file; a writer that takes longer than this has failed."""


def extract(config: RunConfig) -> Manifest:
    """Bring the shards up to the dataset; return their manifest.

    Raises ArtifactError when the shards there don't fit or a sample's states aren't its own, DiskError
    when the disk is too small, both before a server is started.
    """
    dataset = require_manifest(config.dataset_path, "synthgen mix CONFIG")
    shape = read_shape(Path(config.verifier.model))
    taps = TapPoints(aux=config.extract.aux_layers, num_layers=shape.num_layers)
    settings = _settings(config, taps)
    before = read_manifest(config.states_path)
    if before is not None:
        require_fit(config.states_path, before, settings=settings, inputs=before.inputs)
    todo = _missing(config)
    inputs = {"dataset": digest_of(dataset)}
    if not todo and before is not None and before.complete and before.inputs == inputs:
        console.print(f"extract: {config.states_path} has all {before.figures['samples']} samples")
        return before
    needed = sum(len(s.token_ids) for s in todo) * shape.state_bytes_per_token
    require_free_disk(config.states_path, needed, f"the hidden states of {len(todo)} samples")
    started = time.monotonic()
    done_s = before.seconds if before else 0.0
    speed = before.speed if before else None
    _write(config, settings, inputs, seconds=done_s, speed=speed)
    if todo:
        spool = config.states_path / "spool"
        shutil.rmtree(spool, ignore_errors=True)
        spool.mkdir(parents=True)
        with served(config, capturing(config, taps.captured, spool)) as servers:
            base_url, key = servers.base_urls[0], api_key(config.server.api_key_env)
            Control(base_url, key).require_model(config.verifier.served_name)
            began = time.monotonic()
            asyncio.run(_extract_all(config, base_url, todo, spool, taps, shape))
            tokens = sum(len(sample.token_ids) for sample in todo)
            speed = Speed(tokens_per_s=tokens / (time.monotonic() - began), load_s=servers.load_s)
        shutil.rmtree(spool)
    seconds = done_s + time.monotonic() - started
    return _write(config, settings, inputs, seconds=seconds, speed=speed, complete=True)


def _missing(config: RunConfig) -> list[Sample]:
    entries = read_index(config.states_path)
    for entry in entries:
        verify_shard(config.states_path, entry)
    have = {sample_id for entry in entries for sample_id in entry.sample_ids}
    return [
        sample
        for sample in read_samples(config.train_path, config.extract.max_seq_tokens)
        if sample.id not in have
    ]


async def _extract_all(
    config: RunConfig,
    base_url: str,
    todo: list[Sample],
    spool: Path,
    taps: TapPoints,
    shape: VerifierShape,
) -> None:
    settings = config.extract
    client = client_for(
        config, base_url, concurrency=settings.concurrency, max_tokens=settings.max_seq_tokens
    )
    batch: list[SampleStates] = []
    try:
        async with client:
            with bar("extract", len(todo)) as progress:
                started, tokens = time.monotonic(), 0
                async for states in _in_flight(config, client, todo, spool, taps, shape.hidden_size):
                    batch.append(states)
                    tokens += len(states.token_ids_T)
                    progress.advance(note=f"{tokens / (time.monotonic() - started):,.0f} tok/s")
                    if sum(len(s.token_ids_T) for s in batch) >= settings.shard_tokens:
                        full, batch = batch, []
                        await asyncio.to_thread(write_shard, config.states_path, full)
    finally:  # an interrupted run keeps what it has
        if batch:
            write_shard(config.states_path, batch)


async def _in_flight(
    config: RunConfig, client: ApiClient, todo: list[Sample], spool: Path, taps: TapPoints, hidden_size: int
) -> AsyncIterator[SampleStates]:
    """Yield states in the order of `todo`, with extract.concurrency requests ahead."""
    waiting: list[asyncio.Task[SampleStates]] = []
    queue = iter(todo)
    try:
        while True:
            while len(waiting) < config.extract.concurrency and (sample := next(queue, None)) is not None:
                request = _one(config.verifier.served_name, client, sample, spool, taps, hidden_size)
                waiting.append(asyncio.create_task(request))
            if not waiting:
                return
            yield await waiting.pop(0)
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def _one(
    model: str, client: ApiClient, sample: Sample, spool: Path, taps: TapPoints, hidden_size: int
) -> SampleStates:
    body: dict[str, Any] = {
        "model": model,
        "prompt": sample.token_ids,
        "max_tokens": 1,
        "temperature": 0,
        "add_special_tokens": False,
        "kv_transfer_params": {"states": "prompt"},
    }
    reply, _ = await client.complete(body)
    told = reply.kv_transfer_params or {}
    name = told.get("states_file")
    if not isinstance(name, str):
        raise ServerMismatch(
            "the server returned no hidden states: it runs without the connector. Start it with `synthgen "
            "serve CONFIG --role capture`"
        )
    if told.get("layer_ids") != list(taps.captured):
        raise ServerMismatch(
            f"the server captures layers {told.get('layer_ids')}, this run wants {list(taps.captured)}: "
            f"start it anew with `synthgen serve CONFIG --role capture`"
        )
    tensors = await asyncio.to_thread(take_states, spool / Path(name).name)
    return check_states(sample, tensors["token_ids"], tensors["states"], hidden_size)


def take_states(path: Path) -> dict[str, torch.Tensor]:
    """Read and remove a spool file once it is there; it appears by a rename, so it is whole."""
    give_up = time.monotonic() + FILE_WAIT_S
    while not path.exists():
        if time.monotonic() > give_up:
            raise ArtifactError(
                f"{path} did not appear within {FILE_WAIT_S:.0f} s: the server's log says why the connector "
                f"could not write it; if the server runs on another machine, the run directory must be shared"
            )
        time.sleep(0.01)
    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise ArtifactError(f"{path}: damaged: {error}") from error
    path.unlink()
    return tensors


def check_states(
    sample: Sample, token_ids_T: torch.Tensor, states_T4H: torch.Tensor, hidden_size: int
) -> SampleStates:
    """A sample's states, or an ArtifactError when they are another's, of another size, or not finite."""
    if tuple(token_ids_T.tolist()) != sample.token_ids:
        raise ArtifactError(f"sample {sample.id}: the states that came back are of other token ids")
    if tuple(states_T4H.shape[1:]) != (4, hidden_size):
        raise ArtifactError(
            f"sample {sample.id}: states are {tuple(states_T4H.shape)}, expected [T, 4, {hidden_size}]"
        )
    if not torch.isfinite(states_T4H).all():
        raise ArtifactError(f"sample {sample.id}: the states have values that are not finite")
    return SampleStates(sample_id=sample.id, token_ids_T=token_ids_T, states_T4H=states_T4H)


def _settings(config: RunConfig, taps: TapPoints) -> dict[str, Any]:
    return {
        "verifier": {"model": config.verifier.model, "revision": config.verifier.revision},
        "taps": {"ids": taps.captured, "convention": CONVENTION, "final": "before the norm"},
        "max_seq_tokens": config.extract.max_seq_tokens,
        "dtype": config.server.dtype,
    }


def _write(
    config: RunConfig,
    settings: dict[str, Any],
    inputs: dict[str, str],
    *,
    seconds: float,
    speed: Speed | None,
    complete: bool = False,
) -> Manifest:
    entries: list[ShardEntry] = read_index(config.states_path)
    manifest = manifest_of(
        "extract",
        settings=settings,
        inputs=inputs,
        figures={
            "samples": sum(len(entry.sample_ids) for entry in entries),
            "tokens": sum(entry.num_tokens for entry in entries),
            "bytes": sum(entry.num_bytes for entry in entries),
            "shards": len(entries),
            "content": digest([entry.sha256 for entry in entries]),
        },
        seconds=seconds,
        speed=speed,
        complete=complete,
    )
    write_manifest(config.states_path, manifest)
    return manifest

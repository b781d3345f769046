"""The extract stage: the verifier's hidden states of every sample.

Samples that are held out of training have states too, in the same shards: which they are, the dataset says.

States that came with the replies (generate.capture) lie in the spool and are packed into shards. The
other samples are sent as token ids with one token to generate, or computed here where extract.backend says
so, and go the same way. Shards that are there are trusted by their checksum. A sample whose states can't be
had is a record in `failures.jsonl`, and is asked for again the next time. A server that goes away is waited
for, as `synthgen generate` does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any, Protocol

from eagle.packing import (
    Packer,
    captured_files,
    pack_captured,
    remove_orphans,
    tidy_spool,
    tokens_to_store,
)
from eagle.patience import Patience
from eagle.prefill import Prefill
from eagle.shards import INDEX_NAME, ShardEntry, read_index, token_hash, verify_shard
from eagle.states import SampleStates
from eagle.taps import CONVENTION, TapPoints
from eagle.transformers_backend import TransformersBackend
from synthgen.client.api import client_for
from synthgen.client.control import Control, Fingerprint, api_key
from synthgen.client.launch import Served, capturing, served
from synthgen.corpus.config import RunConfig
from synthgen.corpus.console import bar, console, shown, waiting
from synthgen.corpus.files import remove_asides, require_free_disk
from synthgen.corpus.journal import read_journal, write_journal
from synthgen.corpus.lock import claimed
from synthgen.corpus.manifest import FILE_NAME as MANIFEST_NAME
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
from synthgen.corpus.records import Record
from synthgen.corpus.samples import Sample, read_samples
from synthgen.corpus.verifier_config import VerifierShape, state_bytes_per_token
from synthgen.corpus.verifier_files import revision_of, shape_of
from synthgen.errors import ArtifactError, RequestFailed

FAILURES_NAME = "failures.jsonl"
FAILURES_IN_A_ROW = 8
"""When as many samples fail one after the other, it isn't the samples."""


class StatesFailure(Record, frozen=True, kw_only=True):
    """A sample whose states could not be had; running again asks for them again."""

    sample_id: str
    message: str


def extract(config: RunConfig, *, retry_failed: bool = False) -> Manifest:
    """Bring the shards up to the dataset; return their manifest.

    Samples that failed before are asked for again with `retry_failed`, or when a server is needed anyway.
    Raises ArtifactError when the shards there don't fit or another process writes them, DiskError when the
    disk is too small, ConfigError when the verifier is too large to be loaded here, all before a server is
    started or a model loaded; ArtifactError when the server's tokenizer isn't that of the corpus,
    ServerUnreachable when it is gone for longer than generate.down_wait_s; shards are kept.
    """
    dataset = require_manifest(config.dataset_path, "synthgen mix CONFIG")
    with claimed(config.states_path, parts=1):
        return _extract(config, dataset, retry_failed=retry_failed)


def _extract(config: RunConfig, dataset: Manifest, *, retry_failed: bool) -> Manifest:
    shape = shape_of(config.verifier)
    taps = TapPoints(aux=config.extract.aux_layers, num_layers=shape.num_layers)
    settings = _settings(config, taps)
    before = read_manifest(config.states_path)
    if before is not None:
        require_fit(config.states_path, before, settings=settings, inputs=before.inputs)
    samples = wanted_samples(config)
    todo = _missing(config, samples)
    inputs = {"dataset": digest_of(dataset)}
    failures = list(read_journal(config.states_path / FAILURES_NAME, StatesFailure))
    known = set() if retry_failed else {failure.sample_id for failure in failures}
    done = before is not None and before.complete and before.inputs == inputs
    if done and all(sample.id in known for sample in todo):
        assert before is not None
        console.print(f"extract: nothing to do for {config.states_path}", soft_wrap=True)
        return before
    remove_asides(config.states_path, "states-*.safetensors", INDEX_NAME, FAILURES_NAME, MANIFEST_NAME)
    files = captured_files(config, todo)
    remove_orphans(config, files)
    per_token = state_bytes_per_token(shape.hidden_size, config.extract.states_dtype)
    needed = tokens_to_store(todo, files, config.extract.shard_tokens) * per_token
    require_free_disk(config.states_path, needed, f"the hidden states of {len(todo)} samples")
    started = time.monotonic()
    done_s = before.seconds if before else 0.0
    speed = before.speed if before else None
    _write(config, settings, inputs, seconds=done_s, speed=speed)
    rest = pack_captured(config, todo, files, shape)
    lacking = {sample.id for sample in rest}
    failed = {failure.sample_id: failure for failure in failures if failure.sample_id in lacking}
    try:
        if lacking - known:
            here = config.extract.backend == "transformers"
            speed = (_computed if here else _served)(config, rest, shape, failed) or speed
    finally:
        write_journal(config.states_path / FAILURES_NAME, failed.values())
    # Before the manifest says that all is done: whoever is killed here tidies the next time.
    tidy_spool(config, {sample.id for sample in samples})
    seconds = done_s + time.monotonic() - started
    return _write(config, settings, inputs, seconds=seconds, speed=speed, complete=True)


def wanted_samples(config: RunConfig) -> list[Sample]:
    """The dataset's samples, those that are trained on first, then those that are held out of it."""
    longest = config.extract.max_seq_tokens
    return [*read_samples(config.train_path, longest), *read_samples(config.validation_path, longest)]


def require_tokenizer(config: RunConfig, found: Fingerprint) -> None:
    """Raise ArtifactError when a server would read the dataset's ids as other tokens."""
    corpus = read_manifest(config.corpus_path)
    known = corpus.figures.get("server", {}).get("tokenizer") if corpus else None
    if known is not None and known != found.tokenizer:
        raise ArtifactError(
            f"{config.corpus_path} was generated with tokenizer {known}, this server's is {found.tokenizer}: "
            f"serve the same checkpoint, or choose another run_dir"
        )


def _missing(config: RunConfig, samples: list[Sample]) -> list[Sample]:
    """The samples that no shard has."""
    entries = read_index(config.states_path)
    for entry in entries:
        verify_shard(config.states_path, entry)
    have = {
        sample_id: (entry.file, hashed)
        for entry in entries
        for sample_id, hashed in zip(entry.sample_ids, entry.token_hashes, strict=True)
    }
    for sample in samples:
        file, hashed = have.get(sample.id, ("", ""))
        if file and hashed not in (token_hash(sample.token_ids), token_hash(sample.token_ids[:-1])):
            raise ArtifactError(
                f"{config.states_path / file}: has states of sample {sample.id} of other tokens than the "
                f"dataset has: remove {config.states_path} to extract anew"
            )
    return [sample for sample in samples if sample.id not in have]


class Source(Protocol):
    """What gives a sample's states, or raises RequestFailed or ArtifactError where it has none."""

    @property
    def seconds_down(self) -> float:
        """Time in which it could give none."""

    async def states_of(self, sample: Sample) -> SampleStates:
        """The states of a sample."""


def _computed(
    config: RunConfig, todo: list[Sample], shape: VerifierShape, failed: dict[str, StatesFailure]
) -> Speed | None:
    """Extract in this process; return how fast it was, None when nothing came of it."""
    began = time.monotonic()
    with waiting(f"load {shown(config.verifier.model)}"):
        source = TransformersBackend.loaded(config, shape)
    load_s = time.monotonic() - began
    tokens_per_s = asyncio.run(_extract_all(config, source, todo, failed))
    return Speed(tokens_per_s=tokens_per_s, load_s=load_s) if tokens_per_s else None


def _served(
    config: RunConfig, todo: list[Sample], shape: VerifierShape, failed: dict[str, StatesFailure]
) -> Speed | None:
    """The same through a server, started here or one that runs."""
    with served(config, capturing(config)) as servers:
        control = Control(servers.base_urls[0], api_key(config.server.api_key_env))
        found = control.fingerprint(config.verifier.served_name)
        require_tokenizer(config, found)
        tokens_per_s = asyncio.run(_ask_all(config, servers, found, todo, shape, failed))
        return Speed(tokens_per_s=tokens_per_s, load_s=servers.load_s) if tokens_per_s else None


async def _ask_all(
    config: RunConfig,
    servers: Served,
    server: Fingerprint,
    todo: list[Sample],
    shape: VerifierShape,
    failed: dict[str, StatesFailure],
) -> float:
    settings, base_url = config.extract, servers.base_urls[0]
    client = client_for(
        config, base_url, concurrency=settings.concurrency, max_tokens=settings.max_seq_tokens
    )
    turns = asyncio.Semaphore(settings.concurrency)
    prefill = Prefill(config=config, base_url=base_url, client=client, shape=shape, turns=turns)
    async with client:
        return await _extract_all(config, Patience(prefill, servers, server), todo, failed)


async def _extract_all(
    config: RunConfig, source: Source, todo: list[Sample], failed: dict[str, StatesFailure]
) -> float:
    """Write the states of `todo` into shards, bring `failed` up to date; return the tokens a second.

    Time in which the source gave none does not count. The last failures in a row are put down only when it
    ends well: it might not be the samples.
    """
    packer = Packer(config)
    in_a_row: list[StatesFailure] = []
    started = time.monotonic()

    def tokens_per_s() -> float:
        return packer.tokens / (time.monotonic() - started - source.seconds_down)

    try:
        with bar("extract", len(todo)) as progress:
            async for states in _in_flight(source, todo, config.extract.concurrency):
                if isinstance(states, StatesFailure):
                    in_a_row.append(states)
                    _require_some(in_a_row)
                else:
                    _put_down(failed, in_a_row)
                    failed.pop(states.sample_id, None)
                    if packer.add(states):
                        await asyncio.to_thread(packer.write)
                progress.advance(note=f"{tokens_per_s():,.0f} tok/s")
    finally:  # an interrupted run keeps what it has
        packer.write()
    _put_down(failed, in_a_row)
    return tokens_per_s()


def _put_down(failed: dict[str, StatesFailure], in_a_row: list[StatesFailure]) -> None:
    failed |= {failure.sample_id: failure for failure in in_a_row}
    in_a_row.clear()


def _require_some(in_a_row: list[StatesFailure]) -> None:
    """Raise ArtifactError when so many samples in a row have failed that it isn't the samples."""
    if len(in_a_row) >= FAILURES_IN_A_ROW:
        raise ArtifactError(f"{len(in_a_row)} samples in a row failed; the last: {in_a_row[-1].message}")


async def _in_flight(
    source: Source, todo: list[Sample], concurrency: int
) -> AsyncIterator[SampleStates | StatesFailure]:
    """Yield states, or why there are none, in the order of `todo`.

    The client has `concurrency` requests in flight; as many again wait for their files or their turn.
    """
    waiting: list[asyncio.Task[SampleStates | StatesFailure]] = []
    queue = iter(todo)
    try:
        while True:
            while len(waiting) < 2 * concurrency and (sample := next(queue, None)) is not None:
                waiting.append(asyncio.create_task(_one(source, sample)))
            if not waiting:
                return
            yield await waiting.pop(0)
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def _one(source: Source, sample: Sample) -> SampleStates | StatesFailure:
    try:
        return await source.states_of(sample)
    except (RequestFailed, ArtifactError) as error:
        return StatesFailure(sample_id=sample.id, message=str(error))


def _settings(config: RunConfig, taps: TapPoints) -> dict[str, Any]:
    return {
        "verifier": {"model": config.verifier.model, "revision": revision_of(config.verifier)},
        "taps": {"ids": taps.captured, "convention": CONVENTION, "final": "before the norm"},
        "max_seq_tokens": config.extract.max_seq_tokens,
        "dtype": config.server.dtype,
        "stored": {"dtype": config.extract.states_dtype, "final": config.extract.final_states},
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
            "failed": sum(1 for _ in read_journal(config.states_path / FAILURES_NAME, StatesFailure)),
            "content": digest([entry.sha256 for entry in entries]),
        },
        seconds=seconds,
        speed=speed,
        complete=complete,
    )
    write_manifest(config.states_path, manifest)
    return manifest

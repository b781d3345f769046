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
from dataclasses import dataclass
from typing import Any

from eagle.collect import StatesFailure, extract_all
from eagle.packing import (
    captured_files,
    pack_captured,
    remove_orphans,
    tidy_spool,
    tokens_to_store,
)
from eagle.patience import Patience
from eagle.prefill import Prefill
from eagle.shards import INDEX_NAME, ShardEntry, read_index, token_hash, verify_shard
from eagle.taps import CONVENTION, TapPoints
from eagle.transformers_backend import TransformersBackend, tokenizer_digest
from synthgen.client.api import client_for
from synthgen.client.control import Control, Fingerprint, api_key
from synthgen.client.launch import Served, capturing, served
from synthgen.corpus.config import RunConfig
from synthgen.corpus.console import console, shown, waiting
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
from synthgen.corpus.samples import Sample, read_samples
from synthgen.corpus.verifier_config import VerifierShape, state_bytes_per_token
from synthgen.corpus.verifier_files import revision_of, shape_of
from synthgen.errors import ArtifactError

FAILURES_NAME = "failures.jsonl"


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
    made = Made(
        speed=before.speed if before else None,
        tokenizer=corpus_tokenizer(config) or (before.figures.get("tokenizer") if before else None),
    )
    _write(config, settings, inputs, made, seconds=done_s)
    rest = pack_captured(config, todo, files, shape)
    lacking = {sample.id for sample in rest}
    failed = {failure.sample_id: failure for failure in failures if failure.sample_id in lacking}
    try:
        if lacking - known:
            here = config.extract.backend == "transformers"
            made = (_computed if here else _served)(config, rest, shape, failed, made)
    finally:
        write_journal(config.states_path / FAILURES_NAME, failed.values())
    # Before the manifest says that all is done: whoever is killed here tidies the next time.
    tidy_spool(config, {sample.id for sample in samples})
    seconds = done_s + time.monotonic() - started
    return _write(config, settings, inputs, made, seconds=seconds, complete=True)


def wanted_samples(config: RunConfig) -> list[Sample]:
    """The dataset's samples, those that are trained on first, then those that are held out of it."""
    longest = config.extract.max_seq_tokens
    return [*read_samples(config.train_path, longest), *read_samples(config.validation_path, longest)]


def corpus_tokenizer(config: RunConfig) -> str | None:
    """The digest of the tokenizer that the corpus was generated with; None when the run generated none."""
    corpus = read_manifest(config.corpus_path)
    return corpus.figures.get("server", {}).get("tokenizer") if corpus else None


def require_tokenizer(config: RunConfig, found: str) -> None:
    """Raise ArtifactError when what makes the states would read the dataset's ids as other tokens."""
    known = corpus_tokenizer(config)
    if known is not None and known != found:
        raise ArtifactError(
            f"{config.corpus_path} was generated with tokenizer {known}, what is asked for states has "
            f"{found}: take the same checkpoint, or choose another run_dir"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """How fast states were made, and by which tokenizer their ids are read; None where nobody knows."""

    speed: Speed | None
    tokenizer: str | None


def _computed(
    config: RunConfig,
    todo: list[Sample],
    shape: VerifierShape,
    failed: dict[str, StatesFailure],
    before: Made,
) -> Made:
    """Extract in this process; return what came of it."""
    if before.tokenizer is not None:
        require_tokenizer(config, tokenizer_digest(config.verifier))
    began = time.monotonic()
    with waiting(f"load {shown(config.verifier.model)}"):
        source = TransformersBackend.loaded(config, shape)
    load_s = time.monotonic() - began
    tokens_per_s = asyncio.run(extract_all(config, source, todo, failed))
    speed = Speed(tokens_per_s=tokens_per_s, load_s=load_s) if tokens_per_s else before.speed
    return Made(speed=speed, tokenizer=before.tokenizer)


def _served(
    config: RunConfig,
    todo: list[Sample],
    shape: VerifierShape,
    failed: dict[str, StatesFailure],
    before: Made,
) -> Made:
    """The same through a server, started here or one that runs."""
    with served(config, capturing(config)) as servers:
        control = Control(servers.base_urls[0], api_key(config.server.api_key_env))
        found = control.fingerprint(config.verifier.served_name)
        require_tokenizer(config, found.tokenizer)
        tokens_per_s = asyncio.run(_ask_all(config, servers, found, todo, shape, failed))
        speed = Speed(tokens_per_s=tokens_per_s, load_s=servers.load_s) if tokens_per_s else before.speed
        return Made(speed=speed, tokenizer=found.tokenizer)


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
        return await extract_all(config, Patience(prefill, servers, server), todo, failed)


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
    made: Made,
    *,
    seconds: float,
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
            "tokenizer": made.tokenizer,
        },
        seconds=seconds,
        speed=made.speed,
        complete=complete,
    )
    write_manifest(config.states_path, manifest)
    return manifest

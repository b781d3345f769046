"""The generate stage: from a run's prompts to a corpus of traces, resumable at any point."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from typing import Any

import msgspec

from synthgen.client.control import Control, Fingerprint, api_key
from synthgen.client.launch import plain, serving_url
from synthgen.corpus.config import RunConfig
from synthgen.corpus.console import console
from synthgen.corpus.journal import read_journal, write_journal
from synthgen.corpus.manifest import Manifest, manifest_of, read_manifest, require_fit, write_manifest
from synthgen.corpus.records import Trace
from synthgen.harness import Key, Tally, finished_keys, send_all, wanted_keys
from synthgen.seeds import PromptSplit, split_prompts
from synthgen.traces import ServerFacts, sampling_of


def generate(config: RunConfig) -> Manifest:
    """Bring the corpus up to what the config asks for; return its manifest.

    Raises InputError for broken prompts before anything is sent, ArtifactError when the corpus there
    was sampled otherwise, ServerError when the server isn't there or isn't the one.
    """
    split = split_prompts(config.prompts, config.seed)
    todo = missing_keys(config, split)
    before = read_manifest(config.corpus_path)
    if not todo and before is not None and before.complete:
        require_fit(config.corpus_path, before, settings=_settings(config), inputs=before.inputs)
        console.print(f"generate: {config.corpus_path} has all {before.figures['traces']} traces")
        return before
    started = time.monotonic()
    with serving_url(config, plain(config)) as base_url:
        key = api_key(config.server.api_key_env)
        server = _describe(config, Control(base_url, key))
        inputs = {"server": server.fingerprint.digest}
        if before is not None:
            require_fit(config.corpus_path, before, settings=_settings(config), inputs=inputs)
        done_s = before.seconds if before else 0.0
        write_journal(config.heldout_path, split.heldout)
        _write(config, inputs, server.fingerprint, failures=0, seconds=done_s, complete=False)
        sent = asyncio.run(send_all(config, base_url, key, todo, server))
    seconds = done_s + time.monotonic() - started
    return _write(config, inputs, server.fingerprint, failures=sent.failures, seconds=seconds, complete=True)


def missing_keys(config: RunConfig, split: PromptSplit) -> list[Key]:
    """What the corpus still lacks."""
    done = finished_keys(config.traces_path)
    wanted = wanted_keys(split.corpus, config.generate.samples_per_prompt)
    return [(prompt, index) for prompt, index in wanted if (prompt.id, index) not in done]


def _describe(config: RunConfig, control: Control) -> ServerFacts:
    fingerprint = control.fingerprint(config.verifier.served_name)
    return ServerFacts(fingerprint=fingerprint, markers=control.markers(config.verifier))


def _settings(config: RunConfig) -> dict[str, Any]:
    return {"verifier": config.verifier, "sampling": sampling_of(config)}


def _write(
    config: RunConfig,
    inputs: dict[str, str],
    fingerprint: Fingerprint,
    *,
    failures: int,
    seconds: float,
    complete: bool,
) -> Manifest:
    tally = Tally(failures=failures)
    for trace in read_journal(config.traces_path, Trace):
        tally.add(trace)
    manifest = manifest_of(
        "generate",
        settings=_settings(config),
        inputs=inputs,
        figures={**asdict(tally), "server": msgspec.to_builtins(fingerprint)},
        seconds=seconds,
        complete=complete,
    )
    write_manifest(config.corpus_path, manifest)
    return manifest

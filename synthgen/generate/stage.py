"""The generate stage: from a run's prompts to a corpus of traces, resumable at any point."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from synthgen.client.capture import require_capture
from synthgen.client.control import Control, Fingerprint, api_key
from synthgen.client.launch import captured_layers, capturing, plain, served
from synthgen.client.outage import require_same
from synthgen.corpus.config import RunConfig
from synthgen.corpus.console import console, waiting
from synthgen.corpus.files import in_units
from synthgen.corpus.journal import Journal, write_journal
from synthgen.corpus.lock import alone, claimed
from synthgen.corpus.manifest import Manifest, Speed, manifest_of, read_manifest, require_fit, write_manifest
from synthgen.corpus.settings import save_config
from synthgen.errors import ArtifactError, ConfigError
from synthgen.generate.harness import Journals, send_all, wanted_keys
from synthgen.generate.resume import Held, RowKey, held, held_bytes
from synthgen.generate.schedule import Key
from synthgen.generate.tally import Tally
from synthgen.generate.traces import ServerFacts, sampling_of
from synthgen.seeds.choose import PromptSplit
from synthgen.seeds.selection import kept

GC_OBJECTS = 20_000
"""New objects between two collections; by Python's default of 700 they took a fifth of the time."""
CAPTURE_TIMEOUT_S = 600.0
"""For one token whose states are taken: on a busy server it waits its turn."""
SLOW_BYTES = 1 << 30
"""A corpus of this size takes seconds to read."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Part `number` of `count` of a run, by hash of the prompt's id; parts may run at the same time."""

    number: int
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.count:
            raise ConfigError(f"--shard {self.number}/{self.count}: write it as i/n with 1 <= i <= n")

    @classmethod
    def parse(cls, text: str) -> Shard:
        """`2/4` as a shard. Raises ConfigError for anything else."""
        number, slash, count = text.partition("/")
        if not (slash and number.isdigit() and count.isdigit()):
            raise ConfigError(f"--shard {text}: write it as i/n, for instance 2/4")
        return cls(int(number), int(count))

    def has(self, seed_id: str) -> bool:
        """Whether a prompt belongs to this part."""
        return int(seed_id, 16) % self.count == self.number - 1

    @property
    def suffix(self) -> str:
        """What its journals are called after."""
        return f"-{self.number}of{self.count}" if self.count > 1 else ""


WHOLE = Shard(1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What one call of the stage is asked to do."""

    limit: int | None = None
    """At most this many rows now; the corpus is complete only when all are there."""
    shard: Shard = WHOLE
    retry_failed: bool = False
    """Send the rows again that ended as failures."""
    allow_mixed: bool = False
    """Go on though model, template or sampling changed; each record says which it was."""


def generate(config: RunConfig, request: Request = Request()) -> tuple[Manifest, Tally]:
    """Bring the corpus up to what is asked for; return its manifest and the tally of this call.

    Raises InputError for broken prompts before anything is sent, ArtifactError when the corpus there
    was sampled otherwise, ServerError when the server isn't there or isn't the one.
    """
    with claimed(config.corpus_path, request.shard.count), _journals(config, request.shard) as journals:
        return _generate(config, request, journals)


def _generate(config: RunConfig, request: Request, journals: Journals) -> tuple[Manifest, Tally]:
    before = read_manifest(config.corpus_path)
    _require_same_settings(config, before, request)
    split = kept(config)
    there = _held(config)
    todo = _todo(config, split, there, request)
    if not todo and before is not None:
        return _finished(config, split, there, before), Tally()
    started = time.monotonic()
    with served(config, capturing(config) if config.generate.capture else plain(config)) as servers:
        key = api_key(config.server.api_key_env)
        facts = _describe(config, servers.base_urls, key)
        with alone(config.corpus_path):
            before = read_manifest(config.corpus_path)  # again: another shard may have been the first
            _require_same_settings(config, before, request)
            if before is not None and not request.allow_mixed:
                _require_same_server(config, before, facts.fingerprint)
            write_journal(config.heldout_path, split.heldout)
            save_config(config, config.corpus_path / "run.yaml")
            _write(config, facts.fingerprint, there, before=before, special=facts.markers.special)
        tally = Tally(wanted=len(todo))
        gc.set_threshold(GC_OBJECTS)
        gc.freeze()  # prompts and keys stay to the end
        try:
            asyncio.run(send_all(config, servers, key, todo, facts, journals, there, tally))
        finally:
            speed = Speed(tokens_per_s=tally.tokens_per_s, load_s=servers.load_s) if tally.tokens else None
            with alone(config.corpus_path):
                before = read_manifest(config.corpus_path)
                seconds = time.monotonic() - started
                _write(config, facts.fingerprint, there, before=before, seconds=seconds, speed=speed)
    with alone(config.corpus_path):
        if request.shard != WHOLE:
            there = _held(config)  # others have written meanwhile
        complete = not _missing(config, split, there)
        before = read_manifest(config.corpus_path)  # of which others may have written more, too
        return _write(config, facts.fingerprint, there, before=before, complete=complete), tally


@contextlib.contextmanager
def _journals(config: RunConfig, shard: Shard) -> Iterator[Journals]:
    """The journals of this call, which nobody else writes until the block ends."""
    traces, failures = (
        Journal(path.with_stem(path.stem + shard.suffix), config.generate.segment_mib << 20)
        for path in (config.traces_path, config.failures_path)
    )
    with traces, failures:
        yield Journals(traces=traces, failures=failures)


def _held(config: RunConfig) -> Held:
    """What the corpus holds, with a sign of life while a large one is read."""
    size = held_bytes(config)
    if size < SLOW_BYTES:
        return held(config)
    with waiting(f"reading the {in_units(size)} that are there"):
        return held(config)


def _missing(config: RunConfig, split: PromptSplit, there: Held) -> list[Key]:
    """What the corpus still lacks: rows that have ended neither with a trace nor with a failure."""
    return _without(config, split, there.done | there.failed)


def _todo(config: RunConfig, split: PromptSplit, there: Held, request: Request) -> list[Key]:
    rows = _without(config, split, there.done) if request.retry_failed else _missing(config, split, there)
    return [(prompt, index) for prompt, index in rows if request.shard.has(prompt.id)][: request.limit]


def _without(config: RunConfig, split: PromptSplit, keys: set[RowKey]) -> list[Key]:
    wanted = wanted_keys(split.corpus, config.generate.samples_per_prompt)
    return [(prompt, index) for prompt, index in wanted if (prompt.id, index) not in keys]


def _finished(config: RunConfig, split: PromptSplit, there: Held, before: Manifest) -> Manifest:
    """What there is when nothing is left to send; another shard may have been the last."""
    console.print(f"generate: nothing to send for {config.corpus_path}", soft_wrap=True)
    if before.complete or _missing(config, split, there):
        return before
    fingerprint = msgspec.convert(before.figures["server"], Fingerprint)
    with alone(config.corpus_path):
        return _write(config, fingerprint, there, before=before, complete=True)


def _describe(config: RunConfig, base_urls: tuple[str, ...], key: str | None) -> ServerFacts:
    """The servers' common fingerprint and markers.

    Raises ServerMismatch when they differ, or can't capture and ought to.
    """
    controls = [Control(url, key) for url in base_urls]
    fingerprint = controls[0].fingerprint(config.verifier.served_name)
    for control in controls[1:]:
        require_same(fingerprint, control.fingerprint(config.verifier.served_name), control.base_url)
    for url in base_urls if config.generate.capture else ():
        require_capture(config, Control(url, key, CAPTURE_TIMEOUT_S))
    return ServerFacts(
        fingerprint=fingerprint,
        markers=controls[0].markers(config.verifier),
        captures=captured_layers(config) if config.generate.capture else None,
    )


def _require_same_settings(config: RunConfig, before: Manifest | None, request: Request) -> None:
    if before is not None and not request.allow_mixed:
        require_fit(config.corpus_path, before, settings=_settings(config), inputs=before.inputs)


def _require_same_server(config: RunConfig, before: Manifest, found: Fingerprint) -> None:
    """Raise ArtifactError naming the field in which the server differs from the corpus' own."""
    known = msgspec.convert(before.figures["server"], Fingerprint)
    for name in Fingerprint.__struct_fields__:
        have, want = getattr(known, name), getattr(found, name)
        if have != want:
            raise ArtifactError(
                f"{config.corpus_path} was generated by a server whose {name} is {have!r}, this one's is "
                f"{want!r}: use the same server, choose another run_dir, or go on with --allow-mixed"
            )


def _settings(config: RunConfig) -> dict[str, Any]:
    return {
        "verifier": config.verifier,
        "sampling": sampling_of(config),
        "heldout": config.prompts.heldout,
        "seed": config.seed,
    }


def _write(
    config: RunConfig,
    fingerprint: Fingerprint,
    there: Held,
    *,
    before: Manifest | None,
    seconds: float = 0.0,
    speed: Speed | None = None,
    complete: bool = False,
    special: dict[str, int] | None = None,
) -> Manifest:
    """Write the manifest; `seconds` more went into the corpus than `before` says.

    Special tokens that are known already stay known.
    """
    counts = there.counts
    known = before.figures.get("special_tokens", {}) if before else {}
    manifest = manifest_of(
        "generate",
        settings=_settings(config),
        inputs={"server": fingerprint.digest},
        figures={
            "traces": counts.traces,
            "thinking_tokens": counts.thinking_tokens,
            "response_tokens": counts.response_tokens,
            "truncated": counts.truncated,
            "failures": len(there.failed),
            "server": msgspec.to_builtins(fingerprint),
            "special_tokens": known | (special or {}),
        },
        seconds=seconds + (before.seconds if before else 0.0),
        speed=speed or (before.speed if before else None),
        complete=complete,
    )
    write_manifest(config.corpus_path, manifest)
    return manifest

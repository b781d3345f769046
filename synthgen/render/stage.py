"""The render stage: replies that others wrote become rows of the dataset, with the verifier's own ids.

As much is rendered as mixing can use of each part, by hash order. The artifact is complete or absent.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import math
import time
from typing import Any

import msgspec
from rich.markup import escape

from synthgen.client.control import Control, Fingerprint, api_key
from synthgen.client.launch import Served, rendering, served
from synthgen.corpus.config import RunConfig
from synthgen.corpus.console import console, printable, waiting
from synthgen.corpus.files import directory_written_aside, require_free_disk
from synthgen.corpus.journal import read_journal
from synthgen.corpus.manifest import (
    Manifest,
    Speed,
    as_json,
    digest_of,
    manifest_of,
    read_manifest,
    require_manifest,
    write_manifest,
)
from synthgen.corpus.records import Finish
from synthgen.corpus.sections import MixPart
from synthgen.corpus.settings import save_config
from synthgen.corpus.token_ids import decode_ids
from synthgen.errors import ArtifactError, ServerMismatch, ServerUnreachable
from synthgen.render.parts import Filler, KeptAway, RenderedPart
from synthgen.render.renderer import Template, read_template
from synthgen.seeds.selection import STREAM, source_digests, source_files
from synthgen.sources.draw import Source

ROWS_FILE = "rows.jsonl"
ON_THE_HUB = "on the hub"
"""In place of a digest: the name says which revision, if it pins one."""
SPARE = 1.1
"""A tenth more is rendered than mixing is expected to take."""
ROW_BYTES_PER_TOKEN = 32
"""Of a supervised token: its id, its text, and as much of the prompt."""
STOPPED_REPLIES = 100
"""Replies of the corpus that are asked how they ended."""


def render(config: RunConfig) -> Manifest | None:
    """Render what the mix can use of its parts with replies, unless it is there; None when there are none.

    Raises InputError for a broken source and ArtifactError for a corpus that isn't whole before a server is
    started, as DiskError for a disk that is too small; ArtifactError when the corpus' server isn't this one,
    ServerError when the server isn't there. Nothing is written then.
    """
    if not config.mix.replies:
        return None
    corpus = require_manifest(config.corpus_path, "synthgen generate CONFIG")
    settings, inputs = settings_of(config), inputs_of(config)
    before = read_manifest(config.rendered_path)
    there = (config.rendered_path / ROWS_FILE).exists()
    same = before is not None and (before.settings, before.inputs) == (settings, inputs)
    if before is not None and there and same and STREAM not in inputs.values():
        console.print(f"render: nothing to do for {_said(config.rendered_path)}", soft_wrap=True)
        return before
    started = time.monotonic()
    kept_away = KeptAway(config)
    parts = [_survey(config, part, corpus) for part in config.mix.replies]
    require_free_disk(config.run_path, sum(_most_bytes(part) for part in parts), "the rendered rows")
    with served(config, rendering(config)) as servers, directory_written_aside(config.rendered_path) as aside:
        fingerprint, template = _examine(config, servers, corpus)
        sent = time.monotonic()
        with (aside / ROWS_FILE).open("wb") as rows:
            filler = Filler(config, parts, template, fingerprint, kept_away, rows)
            _render(servers, filler)
        tokens = sum(part.supervised_tokens for part in parts)
        manifest = manifest_of(
            "render",
            settings=settings,
            inputs=inputs,
            figures={
                "parts": {part.name: part.figures() for part in parts},
                "server": msgspec.to_builtins(fingerprint),
                "content": filler.content,
            },
            seconds=time.monotonic() - started,
            speed=Speed(tokens_per_s=tokens / (time.monotonic() - sent), load_s=servers.load_s),
        )
        write_manifest(aside, manifest)
        save_config(config, aside / "run.yaml")
    return manifest


def settings_of(config: RunConfig) -> Any:
    """What of the config determines the rows, as it stands in their manifest."""
    prompts = config.prompts
    settings = {
        "parts": config.mix.parts,
        "unit": config.mix.unit,
        "verifier": config.verifier,
        "max_seq_tokens": config.screen.max_seq_tokens,
        "exclude": prompts.exclude,
        "field": prompts.field if prompts.exclude else None,
        "near_duplicates": prompts.near_duplicates,
        "on_bad_row": prompts.on_bad_row,
        "seed": config.seed,
    }
    return as_json(settings)


def inputs_of(config: RunConfig) -> dict[str, str]:
    """What the rows are made of, as it stands in their manifest: the corpus, its own server, the sources.

    A dataset of the hub is named by its revision, if one is pinned. Raises ArtifactError when the corpus is
    missing, InputError when a source is gone.
    """
    corpus = require_manifest(config.corpus_path, "synthgen generate CONFIG")
    names = (*(part.replies or "" for part in config.mix.replies), *config.prompts.exclude)
    sources = {f"source {name}": found or ON_THE_HUB for name, found in source_digests(names).items()}
    return {"corpus": digest_of(corpus), "server": corpus.inputs["server"], **sources}


def needed(config: RunConfig, part: MixPart, corpus: Manifest) -> int | None:
    """What mixing can use of a part at most, and a tenth more; None for all, when nothing else sets the size.

    The traces at hand bound the dataset: they make their parts' shares of it.
    """
    shares = sum(other.share for other in config.mix.parts if other.traces is not None)
    if not shares:
        return None
    figures = corpus.figures
    native: int = figures["thinking_tokens"] + figures["response_tokens"]
    there: int = figures["traces"] if config.mix.unit == "rows" else native
    return math.ceil(there * part.share / shares * SPARE)


def _survey(config: RunConfig, part: MixPart, corpus: Manifest) -> RenderedPart:
    source = Source(part.replies or "", config.prompts.on_bad_row, config.seed)
    with waiting(f"reading {_said(part.replies)}"):
        survey = source.survey()
    if survey.note:
        console.print(_said(survey.note), soft_wrap=True)
    return RenderedPart(
        name=part.name,
        source=source,
        survey=survey,
        needed=needed(config, part, corpus),
        counts_rows=config.mix.unit == "rows",
    )


def _most_bytes(part: RenderedPart) -> int:
    """About what a part's rows take: as its source does, or the share of it that is needed."""
    size = sum(file.stat().st_size for file in source_files(part.source.name) or ())
    if part.needed is None:
        return size
    if part.counts_rows:
        return size * part.needed // max(part.needed, part.survey.count)
    return min(size, part.needed * ROW_BYTES_PER_TOKEN)


def _said(what: object) -> str:
    """Names and data as they may be printed: without markup and control characters."""
    return escape(printable(str(what)))


def _examine(config: RunConfig, servers: Served, corpus: Manifest) -> tuple[Fingerprint, Template]:
    control = Control(servers.base_urls[0], api_key(config.server.api_key_env))
    fingerprint = control.fingerprint(config.verifier.served_name)
    require_same_ids(config, corpus, fingerprint)
    template = read_template(control, config)
    _require_same_end(config, template)
    special = template.markers.special | corpus.figures.get("special_tokens", {})
    markers = dataclasses.replace(template.markers, special=special)
    return fingerprint, dataclasses.replace(template, markers=markers)


def require_same_ids(config: RunConfig, corpus: Manifest, found: Fingerprint) -> None:
    """Raise ArtifactError unless a server's tokenizer and template are those of the corpus."""
    known = msgspec.convert(corpus.figures["server"], Fingerprint)
    for name in ("tokenizer", "template"):
        have, want = getattr(known, name), getattr(found, name)
        if have != want:
            raise ArtifactError(
                f"{config.corpus_path} was generated by a server whose {name} has digest {have}, this one's "
                f"has {want}: set verifier.model, its revision and server.extra_args to what they were, or "
                f"server.base_urls to the same server"
            )


def _require_same_end(config: RunConfig, template: Template) -> None:
    """Raise ServerMismatch when the corpus' own replies end with other tokens than the template writes."""
    stopped = (row for row in read_journal(config.traces_path, _Ended, "Trace") if row.finish is Finish.STOP)
    ends = {decode_ids(row.output_token_ids)[-1] for row in itertools.islice(stopped, STOPPED_REPLIES)}
    if ends and template.tail[0] not in ends:
        raise ServerMismatch(
            f"the chat template ends a reply with {template.turn_end!r} ({template.tail[0]}), but replies in "
            f"{config.traces_path} end with {sorted(ends)}: rows of others would teach another end"
        )


class _Ended(msgspec.Struct, frozen=True):
    output_token_ids: msgspec.Raw
    finish: Finish


def _render(servers: Served, filler: Filler) -> None:
    try:
        asyncio.run(filler.run(servers.base_urls[0]))
    except ServerUnreachable:
        servers.require_alive()  # says why, when it is ours
        raise

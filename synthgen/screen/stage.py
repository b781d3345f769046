"""The screen stage: one verdict a trace, from rules that can be run again whenever the settings change."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from rich.markup import escape

from synthgen.corpus.config import RunConfig
from synthgen.corpus.console import Bar, bar, console
from synthgen.corpus.files import directory_written_aside, sha256_of
from synthgen.corpus.journal import read_journal
from synthgen.corpus.manifest import (
    Manifest,
    as_json,
    digest_of,
    manifest_of,
    read_manifest,
    require_manifest,
    write_manifest,
)
from synthgen.corpus.settings import save_config
from synthgen.corpus.verdicts import DropReason, Verdict
from synthgen.errors import ArtifactError
from synthgen.screen.leaks import SpecialTokens
from synthgen.screen.rules import VERSION, Found, Screener
from synthgen.screen.view import EXCERPT_CHARS, View

EXAMPLES = 3
"""Examples a rule, the first that are met."""
BUFFER_BYTES = 1 << 20
SILENT_S = 2.0
"""Work that takes no longer shows no bar."""
ROWS_AT_ONCE = 1000


@dataclass(slots=True)
class Report:
    """What was found so far."""

    kept: int = 0
    dropped: int = 0
    by_reason: Counter[str] = field(default_factory=Counter)
    tags: Counter[str] = field(default_factory=Counter)
    tokens_kept: Counter[str] = field(default_factory=Counter)
    """Output tokens by source."""
    tokens_dropped: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[dict[str, str]]] = field(default_factory=dict)

    def add(self, verdict: Verdict, found: Found) -> None:
        """Take note of one verdict and of what it rests on."""
        if verdict.reason is None:
            self.kept += 1
            self.tokens_kept[verdict.source] += verdict.tokens
        else:
            self.dropped += 1
            self.tokens_dropped[verdict.source] += verdict.tokens
            self.by_reason[verdict.reason] += 1
        for rule, what in found.items():
            self.tags[rule] += 1
            examples = self.examples.setdefault(rule, [])
            if len(examples) < EXAMPLES:
                examples.append({"trace": verdict.trace, "excerpt": what[:EXCERPT_CHARS]})

    def figures(self) -> dict[str, Any]:
        """As they stand in the manifest; every rule is counted, also those that found nothing."""
        return {
            "traces": self.kept + self.dropped,
            "kept": self.kept,
            "dropped": self.dropped,
            "by_reason": {rule.value: self.by_reason[rule] for rule in DropReason},
            "tags": {rule.value: self.tags[rule] for rule in DropReason},
            "tokens_kept": dict(sorted(self.tokens_kept.items())),
            "tokens_dropped": dict(sorted(self.tokens_dropped.items())),
            "examples": {rule.value: self.examples.get(rule, []) for rule in DropReason},
        }


def screen(config: RunConfig) -> Manifest:
    """Write one verdict a trace, in the order of the traces, and the report as the manifest's figures.

    Verdicts that fit are left as they are, others are made anew. Raises ArtifactError when the corpus isn't
    complete or has a broken record; then what was there stays.
    """
    corpus = require_manifest(config.corpus_path, "synthgen generate CONFIG")
    settings, inputs = settings_of(config), {"corpus": digest_of(corpus)}
    before = _before(config)
    if before is not None and (before.settings, before.inputs) == (settings, inputs):
        console.print(escape(f"screen: nothing to do for {config.screen_path}"), soft_wrap=True)
        return before
    started = time.monotonic()
    with directory_written_aside(config.screen_path) as aside:
        verdicts = aside / config.verdicts_path.name
        report = _write_verdicts(config, corpus, verdicts)
        _require_all(config, corpus, report)
        made = manifest_of(
            "screen",
            settings=settings,
            inputs=inputs,
            figures=report.figures() | {"sha256": sha256_of(verdicts)},
            seconds=time.monotonic() - started,
        )
        save_config(config, aside / "run.yaml")
        write_manifest(aside, made)
    return made


def _require_all(config: RunConfig, corpus: Manifest, report: Report) -> None:
    """Raise ArtifactError when the journal holds fewer traces, or more, than its manifest says."""
    found, known = report.kept + report.dropped, corpus.figures["traces"]
    if found != known:
        raise ArtifactError(
            f"{config.traces_path}: has {found:,} traces, the manifest beside it says {known:,}: the file "
            f"was cut or changed; restore it, or run `synthgen generate CONFIG` to make up for what it lacks"
        )


def settings_of(config: RunConfig) -> dict[str, Any]:
    """What verdicts depend on beside the corpus, as it stands in their manifest."""
    settings: dict[str, Any] = as_json(
        {
            "screen": config.screen,
            "rules_version": VERSION,
            "think_end": config.verifier.think_end,
            "tool_section": config.verifier.tool_section,
        }
    )
    return settings


def _before(config: RunConfig) -> Manifest | None:
    """The manifest of complete verdicts that are there."""
    found = read_manifest(config.screen_path)
    return found if found is not None and found.complete and config.verdicts_path.exists() else None


def _write_verdicts(config: RunConfig, corpus: Manifest, path: Path) -> Report:
    """Screen all traces and write the verdicts through a buffer: none is held."""
    verifier, report, encoder = config.verifier, Report(), msgspec.json.Encoder()
    special = SpecialTokens.of(
        corpus.figures.get("special_tokens", {}), verifier.think_end, verifier.tool_section
    )
    screener = Screener(config.screen, special)
    traces = read_journal(config.traces_path, View, "Trace")
    with path.open("wb", BUFFER_BYTES) as file:
        for trace in _shown(traces, corpus.figures["traces"]):
            verdict, found = screener.screen(trace)
            report.add(verdict, found)
            file.write(encoder.encode(verdict) + b"\n")
    return report


def _shown(traces: Iterator[View], total: int) -> Iterator[View]:
    """The traces, with a bar once it takes longer than a moment."""
    shown: Bar | None = None
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        for number, trace in enumerate(traces, 1):
            yield trace
            if number % ROWS_AT_ONCE:
                continue
            if shown is not None:
                shown.advance(ROWS_AT_ONCE)
            elif time.monotonic() - started > SILENT_S:
                shown = stack.enter_context(bar("screen", total))
                shown.advance(number)
        if shown is not None:
            shown.advance(total % ROWS_AT_ONCE)

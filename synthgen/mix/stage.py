"""The mix stage: kept traces and rendered replies, in the shares that were asked for, as one dataset.

Two passes: one over the verdicts and the rendered rows' heads, which gives each part's quota, and one that
copies the rows drawn. Of a row only its head is read; ids and texts are copied as they are, so memory stays
flat. All rows of a prompt are on the same side of the split, whatever part they come from.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from rich.markup import escape

from synthgen.corpus.config import RunConfig
from synthgen.corpus.console import Bar, bar, console
from synthgen.corpus.files import directory_written_aside, require_free_disk
from synthgen.corpus.journal import read_journal, segments
from synthgen.corpus.manifest import (
    Manifest,
    as_json,
    digest_of,
    manifest_of,
    read_manifest,
    require_fit,
    require_manifest,
    write_manifest,
)
from synthgen.corpus.records import prompt_key
from synthgen.corpus.samples import Span
from synthgen.corpus.settings import save_config
from synthgen.corpus.verdicts import Verdict
from synthgen.errors import ArtifactError, ConfigError
from synthgen.mix.rows import ReplyRow, RowLine, line_of
from synthgen.mix.shares import Draw, Supply, is_heldout, quotas, rank_of
from synthgen.render.stage import inputs_of, settings_of
from synthgen.screen.stage import settings_of as verdict_settings
from synthgen.seeds.selection import heldout_of

TRAIN, HELDOUT = "train", "heldout"
TOTALS = {
    "rows": (TRAIN, "rows"),
    "tokens": (TRAIN, "tokens"),
    "heldout_rows": (HELDOUT, "rows"),
    "heldout_tokens": (HELDOUT, "tokens"),
}
PROGRESS_ROWS = 256


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a row may go: its part, and the side of its prompt."""

    part: str
    side: str


@dataclass(slots=True)
class _Counts:
    """What a side of a part, or a source, holds."""

    rows: int = 0
    tokens: Counter[str] = field(default_factory=Counter)
    """Supervised tokens by span kind."""

    def add(self, spans: tuple[Span, ...]) -> None:
        self.rows += 1
        for span in spans:
            self.tokens[span.kind] += span.end - span.start

    def as_figures(self) -> dict[str, int]:
        kinds = {f"{kind}_tokens": count for kind, count in sorted(self.tokens.items())}
        return {"rows": self.rows, "tokens": self.tokens.total(), **kinds}


def mix(config: RunConfig) -> Manifest:
    """Make the dataset anew unless the one that is there was made so; return its manifest.

    Raises ArtifactError when an input is missing, incomplete or older than what it was made of, and
    ConfigError when a part has nothing to give.
    """
    began = time.monotonic()
    inputs = _inputs(config)
    settings = as_json({"mix": config.mix, "seed": config.seed})
    before = read_manifest(config.dataset_path)
    there = config.train_path.exists() and config.validation_path.exists()
    if there and before is not None and (before.settings, before.inputs) == (settings, inputs):
        console.print(escape(f"mix: nothing to do for {config.dataset_path}"), soft_wrap=True)
        return before
    needed = sum(path.stat().st_size for path in _read(config) if path.exists())
    require_free_disk(config.dataset_path, needed, "the rows of the dataset")
    planner = _Planner(config)
    draws = planner.draws()
    with directory_written_aside(config.dataset_path) as aside:
        figures = _write(config, planner, draws, aside)
        made = manifest_of(
            "mix", settings=settings, inputs=inputs, figures=figures, seconds=time.monotonic() - began
        )
        save_config(config, aside / "run.yaml")
        write_manifest(aside, made)
    return made


def _read(config: RunConfig) -> list[Path]:
    """The files whose rows are copied."""
    rendered = [config.rendered_path / "rows.jsonl"] if config.mix.replies else []
    return [*segments(config.traces_path), *rendered]


def _inputs(config: RunConfig) -> dict[str, str]:
    """Digests of what is mixed; the verdicts must be those of the corpus as it is."""
    corpus = require_manifest(config.corpus_path, "synthgen generate CONFIG")
    screen = require_manifest(config.screen_path, "synthgen screen CONFIG")
    made_of = {"corpus": digest_of(corpus)}
    require_fit(
        config.screen_path,
        screen,
        settings=verdict_settings(config),
        inputs=made_of,
        remedy="run `synthgen screen CONFIG` to bring it up to the corpus and the config",
    )
    found = {"screen": digest_of(screen)}
    if config.mix.replies:
        rendered = require_manifest(config.rendered_path, "synthgen render CONFIG")
        require_fit(
            config.rendered_path,
            rendered,
            settings=settings_of(config),
            inputs=inputs_of(config),
            remedy="run `synthgen render CONFIG` to make it anew",
        )
        found["rendered"] = digest_of(rendered)
    return found


class _Planner:
    """Which rows may go where: parts by source, sides by prompt."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._by_source = {
            source: part.name for part in config.mix.parts if part.traces for source in part.traces
        }
        self._others = next((part.name for part in config.mix.parts if part.traces == ()), None)
        self._kept_back = {prompt_key(prompt.messages) for prompt in heldout_of(config)}
        self.rows = 0
        """Traces and rendered rows, dropped ones included."""

    def place_of(self, verdict: Verdict) -> _Place | None:
        """Where a trace may go; None when it is dropped, held out, or of a source that no part takes."""
        part = self._by_source.get(verdict.source, self._others)
        if verdict.reason is not None or part is None:
            return None
        return self._place(part, verdict.prompt)

    def place_of_rendered(self, row: RowLine) -> _Place | None:
        """Where a rendered row may go."""
        return self._place(row.part, row.prompt)

    def _place(self, part: str, prompt: str) -> _Place | None:
        if prompt in self._kept_back:
            return None
        held = is_heldout(self._config.seed, prompt, self._config.mix.heldout_fraction)
        return _Place(part, HELDOUT if held else TRAIN)

    def draws(self) -> dict[_Place, Draw]:
        """The first pass: how much each part has, and which of it is drawn."""
        supplies: dict[_Place, Supply] = defaultdict(Supply)
        sources: Counter[str] = Counter()
        for verdict in read_journal(self._config.verdicts_path, Verdict):
            self.rows += 1
            sources[verdict.source] += 1
            if place := self.place_of(verdict):
                self._supply(supplies[place], verdict.trace, verdict.tokens)
        for row in rendered_rows(self._config):
            self.rows += 1
            if place := self.place_of_rendered(row):
                self._supply(supplies[place], row.id, supervised(row.spans))
        self._require_sources(sources)
        return {
            place: supplies[place].draw(quota)
            for side in (TRAIN, HELDOUT)
            for place, quota in self._quotas(supplies, side).items()
        }

    def weight(self, tokens: int) -> int:
        """What a row counts."""
        return tokens if self._config.mix.unit == "tokens" else 1

    def _supply(self, supply: Supply, row_id: str, tokens: int) -> None:
        supply.add(rank_of(self._config.seed, row_id), self.weight(tokens))

    def _quotas(self, supplies: dict[_Place, Supply], side: str) -> dict[_Place, float]:
        """What each part gives; of the prompts held out all of it, where one part has none of them."""
        shares = {part.name: part.share for part in self._config.mix.parts}
        available = {name: supplies[_Place(name, side)].weight for name in shares}
        if side == TRAIN and not all(available.values()):
            empty = next(name for name, weight in available.items() if not weight)
            raise ConfigError(
                f"mix.parts: part {empty!r} has no rows to give: its traces are all dropped or held out, or "
                f"nothing of it was rendered; see `synthgen screen CONFIG` and `synthgen render CONFIG`"
            )
        given = quotas(shares, available) if all(available.values()) else available
        return {_Place(name, side): quota for name, quota in given.items()}

    def _require_sources(self, found: Counter[str]) -> None:
        missing = sorted(self._by_source.keys() - found.keys())
        if missing:
            raise ConfigError(
                f"mix.parts: part {self._by_source[missing[0]]!r} takes traces of {missing[0]!r}, but the "
                f"corpus has only those of {', '.join(sorted(found))}"
            )


def rendered_rows(config: RunConfig) -> Iterator[RowLine]:
    """Rows of the replies that others wrote, if the mix has such parts."""
    if config.mix.replies:
        yield from read_journal(config.rendered_path / "rows.jsonl", RowLine, "DatasetRow")


def supervised(spans: tuple[Span, ...]) -> int:
    """Tokens in spans."""
    return sum(span.end - span.start for span in spans)


def _write(config: RunConfig, planner: _Planner, draws: dict[_Place, Draw], aside: Path) -> dict[str, Any]:
    """The second pass: copy what is drawn; return the figures."""
    counts: dict[_Place, _Counts] = defaultdict(_Counts)
    sources: dict[str, _Counts] = defaultdict(_Counts)
    content = hashlib.sha256()
    with (
        (aside / config.train_path.name).open("wb") as train,
        (aside / config.validation_path.name).open("wb") as heldout,
        bar("mix", planner.rows) as progress,
    ):
        files: dict[str, BinaryIO] = {TRAIN: train, HELDOUT: heldout}
        for place, row in _drawn(config, planner, draws, progress):
            files[place.side].write(msgspec.json.encode(row) + b"\n")
            counts[place].add(row.spans)
            sources[row.source].add(row.spans)
            content.update(f"{place.side}:{row.id}\n".encode())
    return _figures(config, counts, sources, content.hexdigest())


def _drawn(
    config: RunConfig, planner: _Planner, draws: dict[_Place, Draw], progress: Bar
) -> Iterator[tuple[_Place, RowLine]]:
    """Every row that is drawn, traces first."""
    seen = 0
    for reply, verdict in _with_verdicts(config):
        seen += 1
        if not seen % PROGRESS_ROWS:
            progress.advance(PROGRESS_ROWS)
        place = planner.place_of(verdict)
        if place and draws[place].takes(rank_of(config.seed, verdict.trace), planner.weight(verdict.tokens)):
            yield place, line_of(reply, place.part, verdict.prompt)
    for row in rendered_rows(config):
        place = planner.place_of_rendered(row)
        weight = planner.weight(supervised(row.spans))
        if place and draws[place].takes(rank_of(config.seed, row.id), weight):
            yield place, row
    progress.advance(planner.rows - seen // PROGRESS_ROWS * PROGRESS_ROWS)


def _with_verdicts(config: RunConfig) -> Iterator[tuple[ReplyRow, Verdict]]:
    """Each trace with its verdict. Raises ArtifactError when they aren't of the same traces."""
    replies = read_journal(config.traces_path, ReplyRow, "Trace")
    verdicts = read_journal(config.verdicts_path, Verdict)
    for reply, verdict in itertools.zip_longest(replies, verdicts):
        if reply is None or verdict is None:
            raise ArtifactError(
                f"{config.verdicts_path}: has another number of verdicts than there are traces: run "
                f"`synthgen screen CONFIG` again"
            )
        if reply.id != verdict.trace:
            raise ArtifactError(
                f"{config.verdicts_path}: has a verdict on {verdict.trace} where the corpus has {reply.id}: "
                f"run `synthgen screen CONFIG` again"
            )
        yield reply, verdict


def _figures(
    config: RunConfig, counts: dict[_Place, _Counts], sources: dict[str, _Counts], content: str
) -> dict[str, Any]:
    parts = {
        part.name: {side: counts[_Place(part.name, side)].as_figures() for side in (TRAIN, HELDOUT)}
        for part in config.mix.parts
    }
    total = Counter(
        {(side, unit): sum(part[side][unit] for part in parts.values()) for side, unit in TOTALS.values()}
    )
    of_all = total[TRAIN, config.mix.unit]
    return {
        **{name: total[key] for name, key in TOTALS.items()},
        "parts": {
            part.name: {
                "asked": part.share,
                "got": parts[part.name][TRAIN][config.mix.unit] / of_all,
                **parts[part.name],
            }
            for part in config.mix.parts
        },
        "sources": {name: found.as_figures() for name, found in sorted(sources.items())},
        "content": content,
    }

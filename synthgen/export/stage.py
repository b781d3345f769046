"""The export stage: the dataset in one or more formats, each a directory that is complete or absent."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synthgen.corpus.cards import verifier_name
from synthgen.corpus.config import RunConfig
from synthgen.corpus.console import bar
from synthgen.corpus.files import directory_written_aside, require_free_disk
from synthgen.corpus.journal import read_journal, segments
from synthgen.corpus.manifest import (
    Manifest,
    as_json,
    digest,
    digest_of,
    manifest_of,
    read_manifest,
    require_manifest,
    write_manifest,
)
from synthgen.corpus.samples import DatasetRow
from synthgen.corpus.settings import save_config
from synthgen.errors import ArtifactError
from synthgen.export.card import WHY, card
from synthgen.export.counts import Counts
from synthgen.export.formats import LAYOUTS, Format, Layout
from synthgen.export.parquet import require_pyarrow
from synthgen.export.rows import left_out

STAGE = "export"
LAYOUT_VERSION = 2
"""Of what this release writes; another one makes exports anew."""
SLOW_BYTES = 32 << 20
"""A dataset of this size takes seconds to write."""


@dataclass(frozen=True, slots=True)
class Exported:
    """One export as it is now."""

    kind: Format
    path: Path
    manifest: Manifest
    made: bool
    """Whether this call wrote it; otherwise it was there and fits."""


def export(config: RunConfig, kinds: tuple[Format, ...]) -> list[Exported]:
    """Bring the exports of these formats up to the dataset; one that fits is left alone.

    Raises ArtifactError when the dataset isn't whole or gives no rows, ConfigError when pyarrow is needed
    and missing, DiskError when the disk is too small.
    """
    dataset = require_manifest(config.dataset_path, "synthgen mix CONFIG")
    _require_journals(config)
    if Format.PARQUET in kinds:
        require_pyarrow()
    wanted = tuple(kind for kind in dict.fromkeys(kinds) if _fitting(config, dataset, kind) is None)
    require_free_disk(config.run_path, _dataset_bytes(config) * len(wanted), "the exports")
    return [_exported(config, dataset, kind) for kind in dict.fromkeys(kinds)]


def _require_journals(config: RunConfig) -> None:
    for path in (config.train_path, config.validation_path):
        if not path.exists():
            raise ArtifactError(f"{path} is missing: {_mix_again(config)}")


def _mix_again(config: RunConfig) -> str:
    return f"remove {config.dataset_path} and run `synthgen mix CONFIG` again"


def _exported(config: RunConfig, dataset: Manifest, kind: Format) -> Exported:
    path = config.exports_path / kind
    there = _fitting(config, dataset, kind)
    if there is not None:
        return Exported(kind, path, there, made=False)
    with directory_written_aside(path) as aside:
        manifest = _write(config, dataset, kind, aside)
    return Exported(kind, path, manifest, made=True)


def _fitting(config: RunConfig, dataset: Manifest, kind: Format) -> Manifest | None:
    """The manifest of an export that was made of this dataset with these settings."""
    path = config.exports_path / kind
    found = read_manifest(path)
    if found is None or not found.complete or _bytes_in(path / "data") != found.figures["bytes"]:
        return None
    settings = as_json(_settings(config, kind))
    if settings["server"] is None:
        settings["server"] = found.settings.get("server")  # its card knows what a lost corpus doesn't tell
    return found if (found.settings, found.inputs) == (settings, _inputs(dataset)) else None


def _bytes_in(directory: Path) -> int:
    files = directory.iterdir() if directory.is_dir() else ()
    return sum(file.stat().st_size for file in files)


def _settings(config: RunConfig, kind: Format) -> dict[str, Any]:
    server = _server(config)
    return {
        "format": kind,
        "layout_version": LAYOUT_VERSION,
        "export": config.export,
        "verifier": verifier_name(config),
        "revision": config.verifier.revision,
        "server": None if server is None else digest(server),
    }


def _inputs(dataset: Manifest) -> dict[str, str]:
    return {"dataset": digest_of(dataset)}


def _write(config: RunConfig, dataset: Manifest, kind: Format, directory: Path) -> Manifest:
    started = time.monotonic()
    layout, counts = LAYOUTS[kind], Counts()
    data = directory / "data"
    data.mkdir()
    with _shown(config, dataset, kind) as advance:
        for split, path, figure in (
            ("train", config.train_path, "rows"),
            ("validation", config.validation_path, "heldout_rows"),
        ):
            before = counts.read
            layout.write(data, split, _rows(path, split, layout, counts, advance))
            if counts.read - before != dataset.figures[figure]:
                raise ArtifactError(
                    f"{path} has {counts.read - before:,} rows, the dataset's manifest says "
                    f"{dataset.figures[figure]:,}: {_mix_again(config)}"
                )
    if not counts.total.rows:
        raise ArtifactError(
            f"{config.dataset_path} has no row that can be written as {kind}: "
            f"{said_left_out(counts.figures()) or 'it is empty'}. Choose --format parquet, which carries "
            f"every row, or mend screen and mix"
        )
    text = card(config, kind, layout, counts, _server(config))
    (directory / "README.md").write_text(text, encoding="utf-8")
    save_config(config, directory / "run.yaml")
    manifest = manifest_of(
        STAGE,
        settings=_settings(config, kind),
        inputs=_inputs(dataset),
        figures=counts.figures() | {"bytes": _bytes_in(data)},
        seconds=time.monotonic() - started,
    )
    write_manifest(directory, manifest)
    return manifest


def _rows(
    path: Path, split: str, layout: Layout, counts: Counts, advance: Callable[[], None]
) -> Iterator[DatasetRow]:
    """The rows of a split that the format can carry, counted as they pass."""
    for row in read_journal(path, DatasetRow):
        reason = None if layout.exact else left_out(row)
        if reason is None:
            counts.add(split, row)
            yield row
        else:
            counts.left_out[reason] += 1
        advance()


@contextlib.contextmanager
def _shown(config: RunConfig, dataset: Manifest, kind: Format) -> Iterator[Callable[[], None]]:
    """What to call after each row; a dataset that takes seconds has a bar."""
    if _dataset_bytes(config) < SLOW_BYTES:
        yield lambda: None
        return
    with bar(f"export {kind}", dataset.figures["rows"] + dataset.figures["heldout_rows"]) as shown:
        yield shown.advance


def _dataset_bytes(config: RunConfig) -> int:
    files = (*segments(config.train_path), *segments(config.validation_path))
    return sum(file.stat().st_size for file in files)


def _server(config: RunConfig) -> dict[str, Any] | None:
    """The fingerprint of the corpus' server, where the corpus is still there."""
    corpus = read_manifest(config.corpus_path)
    return None if corpus is None else corpus.figures.get("server")


def said_left_out(figures: dict[str, Any]) -> str:
    """What was left out and why, in words; empty when nothing was."""
    return ", ".join(f"{rows:,} {WHY[reason]}" for reason, rows in figures["left_out"].items())

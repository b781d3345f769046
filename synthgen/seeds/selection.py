"""The chosen prompts of a run, kept so that they are chosen once: choosing among millions takes long.

`prompts/` has the corpus (`prompts.jsonl`), the held-out (`heldout.jsonl`) and what they were chosen from.
It is used while the section `prompts`, the seed and the sources are what they were, and otherwise made anew;
but prompts that a corpus has held out already stay so. The hub isn't asked again: what was streamed once
counts, so that a node without internet goes on with it. To take a newer one, pin its revision.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from synthgen.corpus.config import RunConfig
from synthgen.corpus.console import waiting
from synthgen.corpus.files import in_units, sha256_of
from synthgen.corpus.journal import read_journal, write_journal
from synthgen.corpus.lock import alone
from synthgen.corpus.manifest import (
    FILE_NAME,
    Manifest,
    as_json,
    digest,
    manifest_of,
    read_manifest,
    write_manifest,
)
from synthgen.corpus.records import SeedPrompt
from synthgen.corpus.settings import save_config
from synthgen.errors import ArtifactError, InputError
from synthgen.seeds.choose import PromptSplit, select, split_prompts, tell_left_out
from synthgen.seeds.figures import Figures
from synthgen.sources.hub import PREFIX, HubDataset

PROMPTS, HELDOUT = "prompts.jsonl", "heldout.jsonl"
STREAM = "read anew each time"
"""In place of the digest of a pipe."""
SLOW_BYTES = 1 << 30
"""Sources of this size take seconds to compare with what they were."""


def chosen(config: RunConfig) -> PromptSplit:
    """The run's prompts: the kept ones where they fit, else chosen now. Writes nothing.

    The corpus may be empty (see `PromptSplit.require_corpus`). Raises as `split_prompts`.
    """
    heldout = _heldout_before(config)
    return _kept(config, heldout) or select(config.prompts, config.seed, heldout)


def chosen_figures(config: RunConfig) -> Figures:
    """What became of the rows, as `chosen` says, without reading the prompts where they are kept."""
    heldout = _heldout_before(config)
    found = _fitting(config, heldout)
    if found is not None:
        return _figures(found[0])
    figures = select(config.prompts, config.seed, heldout).figures
    tell_left_out(figures)
    return figures


def kept(config: RunConfig) -> PromptSplit:
    """As `chosen`, and kept for the next call; of several that come at once one chooses. Raises as `chosen`.

    Raises InputError also when nothing is left for the corpus.
    """
    with alone(config.prompts_path):
        heldout = _heldout_before(config)
        found = _kept(config, heldout)
        if found is not None:
            return found
        started = time.monotonic()
        split = split_prompts(config.prompts, config.seed, heldout)
        _keep(config, split, time.monotonic() - started)
        return split


def heldout_of(config: RunConfig) -> tuple[SeedPrompt, ...]:
    """The prompts that the corpus holds out, which no training row may have.

    Raises ArtifactError when their journal is missing: there are always some.
    """
    if not config.heldout_path.exists():
        raise ArtifactError(
            f"{config.heldout_path} is missing: without it prompts that are kept for evaluation would be "
            f"trained on. Restore it; {config.prompts_path / HELDOUT} is its copy while prompts "
            f"aren't chosen anew"
        )
    return _heldout_before(config)


def _heldout_before(config: RunConfig) -> tuple[SeedPrompt, ...]:
    return tuple(read_journal(config.heldout_path, SeedPrompt))


def _kept(config: RunConfig, heldout: tuple[SeedPrompt, ...]) -> PromptSplit | None:
    found = _fitting(config, heldout)
    if found is None:
        return None
    manifest, held = found
    corpus = tuple(read_journal(config.prompts_path / PROMPTS, SeedPrompt))
    if _ids_digest((*corpus, *held)) != manifest.figures["ids"]:
        return None
    return PromptSplit(corpus=corpus, heldout=held, figures=_figures(manifest))


def _fitting(
    config: RunConfig, heldout: tuple[SeedPrompt, ...]
) -> tuple[Manifest, tuple[SeedPrompt, ...]] | None:
    """The manifest of what was chosen and the held-out prompts, unless something is no longer what it was."""
    manifest = read_manifest(config.prompts_path)
    if manifest is None or manifest.settings != as_json(_settings(config)):
        return None
    held = tuple(read_journal(config.prompts_path / HELDOUT, SeedPrompt))
    if (heldout and heldout != held) or not _has_inputs(config, manifest):
        return None
    return manifest, held


def _figures(manifest: Manifest) -> Figures:
    return msgspec.convert(manifest.figures["rows"], Figures)


def _keep(config: RunConfig, split: PromptSplit, seconds: float) -> None:
    directory = config.prompts_path
    (directory / FILE_NAME).unlink(missing_ok=True)
    write_journal(directory / PROMPTS, split.corpus)
    write_journal(directory / HELDOUT, split.heldout)
    save_config(config, directory / "run.yaml")
    revisions = {file.source: file.revision or "" for file in split.figures.sources}
    manifest = manifest_of(
        "prompts",
        settings=_settings(config),
        inputs={
            name: revisions.get(name, "") if value is None else value
            for name, value in _inputs(config).items()
        },
        figures={"ids": _ids_digest((*split.corpus, *split.heldout)), "rows": split.figures},
        seconds=seconds,
    )
    write_manifest(directory, manifest)


def _settings(config: RunConfig) -> dict[str, Any]:
    return {"prompts": config.prompts, "seed": config.seed}


def _has_inputs(config: RunConfig, manifest: Manifest) -> bool:
    now = _inputs(config)
    return now.keys() == manifest.inputs.keys() and all(
        value is None or value == manifest.inputs[name] != STREAM for name, value in now.items()
    )


def _inputs(config: RunConfig) -> dict[str, str | None]:
    return source_digests((*config.prompts.sources, *config.prompts.exclude))


def source_digests(names: Iterable[str]) -> dict[str, str | None]:
    """What names the content of each source; None for a dataset that isn't here, STREAM for a pipe.

    Raises InputError for a file that isn't there.
    """
    files = {name: source_files(name) for name in names}
    with _waiting_if_slow(sum(file.stat().st_size for part in files.values() if part for file in part)):
        return {name: None if part is None else _content(part) for name, part in files.items()}


def source_files(name: str) -> list[Path] | None:
    """The files of a source; None for a dataset that isn't here. Raises InputError for one that is gone."""
    if not name.startswith(PREFIX):
        if not Path(name).exists():
            raise InputError(f"{name}: No such file or directory: a source is a file, or hub:ID:SPLIT")
        return [Path(name)]
    dataset = HubDataset.parse(name)
    if not dataset.is_local:
        return None
    return sorted(path for path in Path(dataset.id).rglob("*") if path.is_file())


def _content(files: list[Path]) -> str:
    if not all(file.is_file() for file in files):
        return STREAM
    if len(files) == 1:
        return f"{files[0].stat().st_size} bytes, sha256 {sha256_of(files[0])}"
    return digest([(str(file), sha256_of(file)) for file in files])


def _waiting_if_slow(size_bytes: int) -> contextlib.AbstractContextManager[None]:
    if size_bytes < SLOW_BYTES:
        return contextlib.nullcontext()
    return waiting(f"comparing {in_units(size_bytes)} of sources with what they were")


def _ids_digest(prompts: Iterable[SeedPrompt]) -> str:
    whole = hashlib.sha256()
    for prompt in prompts:
        whole.update(prompt.id.encode())
    return whole.hexdigest()[:16]

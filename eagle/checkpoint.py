"""Checkpoints: directories that are complete or absent, in safetensors and JSON only.

    step-00000123/
        weights.safetensors     the draft's float32 master weights
        optimizer.safetensors   the optimizers' tensors as `parameter/key`, and torch's random state
        progress.json           the step, and where the data stands

A run that goes on from one ends with the very weights of a run that was never stopped. However many
processes train, and whichever engine holds the weights, a checkpoint is the same: the first process writes
whole tensors, and on going on each keeps its part of them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from eagle.draft import Draft
from eagle.optim import Optimizers
from eagle.tensors import Pieces, part_like, save_tensors, whole
from synthgen.corpus.files import directory_written_aside
from synthgen.corpus.records import Record
from synthgen.errors import ArtifactError

WEIGHTS = "weights.safetensors"
OPTIMIZER = "optimizer.safetensors"
PROGRESS = "progress.json"
RANDOM_STATE = "random_state"


class Progress(Record, frozen=True, kw_only=True):
    """How far training is: `step` updates are done, and the next batch is `index` of `epoch`."""

    step: int
    epoch: int
    index: int
    seconds: float
    """Wall-clock of all the steps so far, stops not counted."""
    targets: int
    """Supervised positions trained on so far."""


def save_checkpoint(
    directory: Path,
    draft: Draft,
    optimizers: Optimizers,
    progress: Progress,
    *,
    keep: int,
    best: int | None = None,
    writes: bool = True,
) -> Path:
    """Write one checkpoint; return its path.

    All processes call it, since each may have a part of the tensors; one of them `writes`. The `keep` newest
    and the one of step `best` are left; older ones and what a killed process left aside go. Raises TypeError
    when the draft's weights aren't its float32 masters.
    """
    path = checkpoint_path(directory, progress.step)
    masters = dict(draft.named_parameters())
    if lower := [f"{name} {p.dtype}" for name, p in masters.items() if p.dtype != torch.float32]:
        raise TypeError(f"{path}: only float32 masters make a checkpoint, not {', '.join(lower)}")
    weights = _on_cpu(masters, keep=writes)
    state = _on_cpu(optimizers.state() | {RANDOM_STATE: torch.get_rng_state()}, keep=writes)
    if not writes:
        return path
    with directory_written_aside(path) as aside:
        save_tensors(weights, aside / WEIGHTS)
        save_tensors(state, aside / OPTIMIZER)
        (aside / PROGRESS).write_bytes(msgspec.json.encode(progress))
    spared = None if best is None else checkpoint_path(directory, best)
    older = [old for old in checkpoints(directory)[:-keep] if old != spared]
    for old in (*older, *directory.glob(".step-*.tmp")):
        shutil.rmtree(old)
    return path


def checkpoint_path(directory: Path, step: int) -> Path:
    """Where the checkpoint after `step` updates is, if there is one."""
    return directory / f"step-{step:08d}"


def checkpoints(directory: Path) -> list[Path]:
    """The complete checkpoints of a run, oldest first."""
    return sorted(directory.glob("step-????????"))


def load_progress(path: Path) -> Progress:
    """How far the run was that wrote a checkpoint. Raises ArtifactError when it can't be read."""
    try:
        return msgspec.json.decode((path / PROGRESS).read_bytes(), type=Progress)
    except (OSError, msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ArtifactError(_damaged(path, PROGRESS, error)) from error


def load_weights(path: Path, draft: Draft) -> None:
    """Put a checkpoint's weights into `draft`.

    Raises ArtifactError naming the tensor and both shapes when they are another draft's.
    """
    tensors = _read(path, WEIGHTS)
    own = dict(draft.named_parameters())
    _require_shapes(path, {name: list(tensor.shape) for name, tensor in tensors.items()}, own)
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(part_like(parameter, tensors[name].to(parameter.device)))


def stored_weights(path: Path, draft: Draft, dtype: torch.dtype) -> dict[str, Pieces]:
    """A checkpoint's weights, to be written as `dtype`: nothing is read but its header.

    Raises ArtifactError as `load_weights` does; `draft` may be on the meta device.
    """
    file = path / WEIGHTS

    def rows_of(name: str) -> Callable[[int, int], torch.Tensor]:
        def read(low: int, high: int) -> torch.Tensor:
            with safe_open(file, framework="pt") as tensors:  # mapped anew: what was read leaves the memory
                rows: torch.Tensor = tensors.get_slice(name)[low:high]
                return rows

        return read

    try:
        with safe_open(file, framework="pt") as tensors:
            shapes = {name: tensors.get_slice(name).get_shape() for name in tensors.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ArtifactError(_damaged(path, WEIGHTS, error)) from error
    _require_shapes(path, shapes, dict(draft.named_parameters()))
    return {name: Pieces(tuple(shape), dtype, rows_of(name)) for name, shape in shapes.items()}


def _require_shapes(path: Path, shapes: dict[str, list[int]], own: Mapping[str, torch.Tensor]) -> None:
    for name in sorted(shapes.keys() | own.keys()):
        found = shapes.get(name, "missing")
        expected = list(own[name].shape) if name in own else "not known"
        if found != expected:
            raise ArtifactError(
                f"{path / WEIGHTS}: `{name}` is {found}, this run's draft has it {expected}: set `draft` and "
                f"`vocab` back to what they were, or remove {path.parent} to train anew"
            )


def load_checkpoint(path: Path, draft: Draft, optimizers: Optimizers) -> Progress:
    """Take up training where a checkpoint was written."""
    progress = load_progress(path)
    load_weights(path, draft)
    state = _read(path, OPTIMIZER)
    torch.set_rng_state(state.pop(RANDOM_STATE))
    optimizers.load_state(state)
    return progress


def _read(path: Path, name: str) -> dict[str, torch.Tensor]:
    try:
        return load_file(path / name)
    except (OSError, SafetensorError) as error:
        raise ArtifactError(_damaged(path, name, error)) from error


def _damaged(path: Path, name: str, error: Exception) -> str:
    return f"{path / name}: damaged: {error}. Remove {path} to go on from the one before"


def _on_cpu(
    tensors: dict[str, torch.Tensor] | dict[str, torch.nn.Parameter], *, keep: bool
) -> dict[str, torch.Tensor]:
    """Whole tensors where they are kept; elsewhere they are gathered for the others only."""
    kept = {}
    for name, tensor in tensors.items():
        gathered = whole(tensor.detach())
        if keep:
            kept[name] = gathered.cpu().contiguous()
    return kept

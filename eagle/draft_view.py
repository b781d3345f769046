"""A draft as headers and config tell it, on this disk or on the hub: for looking at, without its weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from eagle.draft_files import NOT_THE_DRAFTS, exported_counting, flattened, our_name, read_draft
from eagle.hub_weights import HubFiles
from eagle.taps import Counting
from eagle.tensors import NAMES
from eagle.verifier_tensors import SINGLE_FILE, Place, read_header, read_index
from synthgen.corpus.manifest import FILE_NAME
from synthgen.corpus.verifier_config import CONFIG_FILE
from synthgen.corpus.verifier_files import HUB_ID, HubModel, fetched
from synthgen.errors import ArtifactError, ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One tensor; dtype as safetensors writes it: BF16, I64, BOOL."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftView:
    """`tensors` has our names; `config` is flat, empty when there is none."""

    source: str
    tensors: dict[str, Stored]
    config: dict[str, Any]
    counting: Counting | None
    """Whose count its layer ids surely are."""
    read: Callable[[str], torch.Tensor]
    """One tensor by our name."""
    here: bool
    """Whether its files are on this disk; of a hub's only headers are to be read, and maps."""


def view_of(source: str, key: str) -> DraftView:
    """The draft at a path here, or of a hub id, which may end in `@REVISION`; `key` is the argument it is.

    Raises ArtifactError for what can't be read, ConfigError for what is neither, ServerError without the hub.
    """
    if not source:
        raise ConfigError(f"{key} is empty: name a directory, a .safetensors file or a hub id")
    if Path(source).exists():
        return local_view(source)
    name, _, revision = source.partition("@")
    if not HUB_ID.fullmatch(name):
        raise ConfigError(
            f"{key} {source}: no directory or file here ({Path(source).absolute()}), and no hub id, which is "
            f"written org/name: mend it"
        )
    return hub_view(HubModel(name, revision or None, key))


def local_view(source: str) -> DraftView:
    """The draft in a local directory or .safetensors file. Raises what `read_draft` raises."""
    draft = read_draft(source)
    tensors = {
        name: Stored(shape=tuple(place.shape), dtype=place.dtype) for name, place in draft.places.items()
    }
    return DraftView(
        source=source,
        tensors=tensors,
        config=draft.config,
        counting=draft.counting,
        read=draft.tensor,
        here=True,
    )


def hub_view(model: HubModel) -> DraftView:
    """A draft of the hub: its config.json, and of its weights the headers alone.

    Raises ArtifactError when it has none in safetensors, ConfigError or ServerError as the hub answers.
    """
    files = HubFiles(model)
    index = files.index()
    names = [SINGLE_FILE] if index is None else sorted(set(read_index(index).values()))
    places: dict[str, Place] = {}
    for file in names:
        for stored, place in read_header(files, file).items():
            if not stored.endswith(NOT_THE_DRAFTS):
                places[our_name(stored)] = place
    config, counting = _config(model)
    return DraftView(
        source=str(model),
        tensors={name: Stored(shape=place.shape, dtype=place.dtype) for name, place in places.items()},
        config=config,
        counting=counting,
        read=lambda name: _tensor(files, places[name]),
        here=False,
    )


def _config(model: HubModel) -> tuple[dict[str, Any], Counting | None]:
    path = fetched(model, CONFIG_FILE)
    if path is None:
        return {}, None
    try:
        stated = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise ArtifactError(f"{model}/{CONFIG_FILE}: can't be read as JSON: {error}") from error
    config, counting = flattened(stated, f"{model}/{CONFIG_FILE}")
    made = fetched(model, FILE_NAME)
    return config, (exported_counting(made.parent) if made else None) or counting


def _tensor(files: HubFiles, place: Place) -> torch.Tensor:
    """By a range request. Raises ArtifactError when other bytes come than the header promised."""
    dtype = next((dtype for dtype, name in NAMES.items() if name == place.dtype), None)
    data = files.read(place.file, place.start, place.end)
    if dtype is None or data is None or len(data) != place.end - place.start:
        have = 0 if data is None else len(data)
        raise ArtifactError(
            f"{files.place(place.file)}: `{place.name}` ({place.dtype}) is {place.end - place.start} bytes, "
            f"{have} of them came: it can't be read"
        )
    return torch.frombuffer(bytearray(data), dtype=dtype).view(place.shape)

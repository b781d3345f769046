"""Embedding, final norm and head of a model of the hub, without its shards.

Kimi-K2.5's three tensors are 4.7 GB, and the shards they are in some 10 GB each: so only their byte ranges
are fetched, as huggingface_hub itself reads headers, into a small checkpoint in its cache of assets. It is
complete or absent, by commit. A part of a file can't be checked against the file's sha256; its length is.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec

from eagle.verifier_tensors import INDEX_FILE, SINGLE_FILE, Place, locate, read_index, wanted_files
from synthgen.corpus.console import bar
from synthgen.corpus.files import SPARE, free_bytes, in_units, remove_asides, written_aside
from synthgen.corpus.lock import alone
from synthgen.corpus.sections import VerifierConfig
from synthgen.corpus.verifier_config import CONFIG_FILE, read_shape
from synthgen.corpus.verifier_files import (
    HubModel,
    fetched,
    hub_model,
    local_directory,
    package_for,
    refused,
    snapshot,
)
from synthgen.errors import DiskError, ServerError

PIECE_BYTES = 64 << 20
"""One request: what is asked again when a connection breaks."""
PAUSES_S = (1.0, 4.0, 16.0)
"""Between requests for a piece whose connection broke; huggingface_hub itself repeats refused ones."""
ANSWER_S = 60.0
"""A hub that sends nothing for so long is asked again."""
PARTIAL_CONTENT = 206


@dataclass(frozen=True, slots=True)
class HubFiles:
    """The files of a model at one commit."""

    model: HubModel

    def place(self, file: str) -> str:
        """As messages name it."""
        return f"{self.model}/{file}"

    def index(self) -> Path | None:
        """The index, through the cache; None when the model has one file."""
        return fetched(self.model, INDEX_FILE)

    def read(self, file: str, start: int, end: int) -> bytes | None:
        """By a range request, repeated when the connection breaks; None when the repository hasn't the file.

        Raises ServerError when the hub refuses, or sends something else than was asked for.
        """
        for pause_s in PAUSES_S:
            data = self._asked(file, start, end)
            if not isinstance(data, Exception):
                return data
            time.sleep(pause_s)
        data = self._asked(file, start, end)
        if isinstance(data, Exception):
            raise refused(self.model, file, data) from data
        return data

    def _asked(self, file: str, start: int, end: int) -> bytes | Exception | None:
        """The answer, or the error with which its connection broke."""
        hub = package_for(self.model.id, self.model.key)
        url = hub.hf_hub_url(self.model.id, file, revision=self.model.revision)
        headers = hub.utils.build_hf_headers() | {"Range": f"bytes={start}-{end - 1}"}
        try:
            with hub.utils.http_stream_backoff("GET", url, headers=headers, timeout=ANSWER_S) as answer:
                hub.utils.hf_raise_for_status(answer)
                if answer.status_code != PARTIAL_CONTENT:
                    raise ServerError(
                        f"{self.place(file)}: asked for bytes {start} to {end} the hub sends the whole file: "
                        f"a proxy or mirror drops the Range header: download it and set "
                        f"{self.model.key} to its directory"
                    )
                try:  # within the block: what the hub's client catches itself it can't repeat here
                    return bytes(answer.read())
                except hub.errors.HTTPError as error:
                    return cast(Exception, error)
        except hub.errors.RemoteEntryNotFoundError:
            return None
        except (OSError, ValueError, hub.errors.HTTPError) as error:
            raise refused(self.model, file, error) from error


def checkpoint_directory(verifier: VerifierConfig) -> Path:
    """Where the three tensors of the configured verifier are: its directory, or what is fetched of the hub's.

    Raises what `hub_model` and `weights_directory` raise.
    """
    return local_directory(verifier) or weights_directory(hub_model(verifier))


def weights_directory(model: HubModel) -> Path:
    """A directory with config.json and the three tensors, fetched unless the cache has them.

    A whole copy in huggingface_hub's cache, as vLLM makes it, is taken as it is.
    Raises what `snapshot`, `locate` and `HubFiles.read` raise; DiskError when the cache's disk is too small.
    """
    whole = snapshot(model)
    pinned = HubModel(model.id, whole.name)
    index = whole / INDEX_FILE
    files = wanted_files(read_index(index) if index.exists() else None)
    if files and all((whole / file).exists() for file in files):
        return whole
    hub = package_for(model.id)
    small = Path(hub.cached_assets_path("synthgen", namespace=model.id, subfolder=whole.name))
    with alone(small):  # all processes of a training come here at once
        if not (small / SINGLE_FILE).exists():
            remove_asides(small, SINGLE_FILE)
            shutil.copyfile(whole / CONFIG_FILE, small / CONFIG_FILE)
            _fetch(HubFiles(pinned), small)
    return small


def _fetch(files: HubFiles, directory: Path) -> None:
    places = locate(files, read_shape(directory)).all
    total = sum(place.end - place.start for place in places)
    if total * SPARE > free_bytes(directory):
        raise DiskError(
            f"{files.model}: embedding, final norm and head take {in_units(total)}, but the disk of "
            f"{directory} has {in_units(free_bytes(directory))} free: free some space, or set HF_HOME to a "
            f"larger disk"
        )
    pieces = [(place, low, high) for place in places for low, high in _pieces(place)]
    with (
        written_aside(directory / SINGLE_FILE) as aside,
        aside.open("wb") as out,
        bar(f"fetching {in_units(total)} of {files.model.id}", len(pieces)) as shown,
    ):
        _write_header(out, places)
        for place, low, high in pieces:
            out.write(_exactly(files, place.file, low, high))
            shown.advance()


def _pieces(place: Place) -> Iterator[tuple[int, int]]:
    for low in range(place.start, place.end, PIECE_BYTES):
        yield low, min(low + PIECE_BYTES, place.end)


def _exactly(files: HubFiles, file: str, low: int, high: int) -> bytes:
    data = files.read(file, low, high)
    if data is None or len(data) != high - low:
        have = 0 if data is None else len(data)
        raise ServerError(
            f"{files.place(file)}: of bytes {low} to {high} came {have}: run the same command again"
        )
    return data


def _write_header(out: BinaryIO, places: tuple[Place, ...]) -> None:
    """A safetensors header, filled up with spaces so that the tensors lie at multiples of 8."""
    entries: dict[str, Any] = {}
    at = 0
    for place in places:
        end = at + place.end - place.start
        entries[place.name] = {"dtype": place.dtype, "shape": place.shape, "data_offsets": (at, end)}
        at = end
    text = msgspec.json.encode(entries)
    text += b" " * (-len(text) % 8)
    out.write(len(text).to_bytes(8, "little") + text)

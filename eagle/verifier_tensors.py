"""Where the three tensors that training needs lie in a checkpoint: read from its index and headers alone.

Whatever else is in it (packed experts, scales, a vision tower) is passed over. What can't be used is refused
here, before a byte of a tensor is read: locally and on the hub alike.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from synthgen.corpus.verifier_config import VerifierShape
from synthgen.errors import ArtifactError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"
PLAIN_NAME = re.compile(r"\w[\w.+-]*")
PREFIXES = ("", "language_model.")
DTYPE_BYTES = {"BF16": 2, "F16": 2, "F32": 4}
"""What can be trained with, as safetensors names it."""
LENGTH_BYTES = 8
"""A safetensors file begins with the length of its header."""
MOST_HEADER_BYTES = 100_000_000
"""safetensors itself reads no longer header."""


class TensorFiles(Protocol):
    """The files of a checkpoint, wherever they are."""

    def place(self, file: str) -> str:
        """A file as messages name it."""

    def index(self) -> Path | None:
        """The index of a sharded checkpoint; None when it has none."""

    def read(self, file: str, start: int, end: int) -> bytes | None:
        """Bytes [start, end) of a file, fewer past its end; None when it isn't there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One tensor: its full name, the file it is in, and the bytes [start, end) of that file."""

    name: str
    file: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The three tensors; `head` is None when the embedding is the head, too."""

    embedding: Place
    norm: Place
    head: Place | None

    @property
    def all(self) -> tuple[Place, ...]:
        """Those that are stored."""
        return tuple(place for place in (self.embedding, self.norm, self.head) if place is not None)


def locate(files: TensorFiles, shape: VerifierShape) -> Places:
    """The places of embedding, final norm and head.

    `tie_word_embeddings: true` makes the embedding the head even beside a stored one, as vLLM and
    transformers do. Raises ArtifactError when one is missing, quantised, of another shape than config.json
    says, or where the index is wrong about it.
    """
    reader = _Reader(files)
    rows = (shape.vocab_size, shape.hidden_size)
    head = None if shape.tie_word_embeddings else reader.find(HEAD, rows)
    if head is None and shape.tie_word_embeddings is False:
        raise reader.lacks(HEAD, ", and config.json says that it isn't tied to the embedding")
    return Places(
        embedding=reader.need(EMBEDDING, rows), norm=reader.need(FINAL_NORM, (shape.hidden_size,)), head=head
    )


def read_index(path: Path) -> dict[str, str]:
    """The file of each tensor. Raises ArtifactError for what is no index, or leaves its directory."""
    try:
        weight_map = msgspec.convert(msgspec.json.decode(path.read_bytes())["weight_map"], dict[str, str])
    except (msgspec.DecodeError, msgspec.ValidationError, KeyError, TypeError) as error:
        raise ArtifactError(
            f"{path}: not an index with a weight_map ({type(error).__name__}: {error}): download it again"
        ) from error
    for name, file in weight_map.items():
        if not PLAIN_NAME.fullmatch(file):
            raise ArtifactError(
                f"{path}: weight_map puts `{name}` into {file!r}, which is no plain file name: don't use "
                f"this checkpoint"
            )
    return weight_map


def wanted_files(weight_map: dict[str, str] | None) -> set[str]:
    """The files in which the three tensors are."""
    if weight_map is None:
        return {SINGLE_FILE}
    keys = [prefix + key for prefix in PREFIXES for key in (EMBEDDING, FINAL_NORM, HEAD)]
    return {weight_map[key] for key in keys if key in weight_map}


class _Reader:
    """Looks names up in the index, then in the header of the file that the index names."""

    def __init__(self, files: TensorFiles) -> None:
        self._files = files
        index = files.index()
        self._map = None if index is None else read_index(index)
        self._headers: dict[str, dict[str, Place]] = {}

    def need(self, key: str, shape: tuple[int, ...]) -> Place:
        """The place of a tensor that must be there."""
        place = self.find(key, shape)
        if place is None:
            raise self.lacks(key, "")
        return place

    def lacks(self, key: str, why: str) -> ArtifactError:
        """What is said when no tensor of that name is there."""
        file = SINGLE_FILE if self._map is None else INDEX_FILE
        return ArtifactError(
            f"{self._files.place(file)}: no tensor `{key}`, with or without the prefix "
            f"`language_model.`{why}: name another checkpoint in verifier.model"
        )

    def find(self, key: str, shape: tuple[int, ...]) -> Place | None:
        """The place of a tensor under one of its names, None when it has none."""
        for name in (prefix + key for prefix in PREFIXES):
            file = SINGLE_FILE if self._map is None else self._map.get(name)
            place = None if file is None else self._header(file).get(name)
            if place is not None:
                self._require_usable(place, shape)
                return place
            if file is not None and self._map is not None:
                raise ArtifactError(
                    f"{self._files.place(INDEX_FILE)}: says that `{name}` is in {file}, but that file hasn't "
                    f"it: download both again"
                )
            self._require_unpacked(name)
        return None

    def _require_unpacked(self, name: str) -> None:
        stem = name.removesuffix("weight")
        names: Iterable[str] = self._headers[SINGLE_FILE] if self._map is None else self._map
        packed = sorted(other for other in names if other.startswith(stem))
        if packed:
            file = SINGLE_FILE if self._map is None else self._map[packed[0]]
            raise ArtifactError(f"{self._files.place(file)}: {_quantised(name, packed[0])}")

    def _require_usable(self, place: Place, shape: tuple[int, ...]) -> None:
        where = self._files.place(place.file)
        if place.dtype not in DTYPE_BYTES:
            raise ArtifactError(f"{where}: {_quantised(place.name, place.dtype)}")
        if place.shape != shape:
            raise ArtifactError(f"{where}: `{place.name}` is {place.shape}, config.json says {shape}")
        needed = math.prod(shape) * DTYPE_BYTES[place.dtype]
        if place.end - place.start != needed:
            raise ArtifactError(
                f"{where}: damaged: `{place.name}` has {place.end - place.start} bytes, {shape} in "
                f"{place.dtype} takes {needed}: download it again"
            )

    def _header(self, file: str) -> dict[str, Place]:
        if file not in self._headers:
            self._headers[file] = read_header(self._files, file)
        return self._headers[file]


def _quantised(name: str, how: str) -> str:
    return (
        f"`{name}` is quantised ({how}): embedding, final norm and head are needed in bf16, fp16 or fp32 "
        f"(other tensors may be anything): name a checkpoint in verifier.model that leaves them as they were"
    )


def read_header(files: TensorFiles, file: str) -> dict[str, Place]:
    """Every tensor of a safetensors file, by its name.

    Raises ArtifactError when the file isn't there, isn't whole, or is no such file.
    """
    start = files.read(file, 0, LENGTH_BYTES)
    if start is None:
        raise ArtifactError(
            f"{files.place(file)}: no such file, but {INDEX_FILE} names it: download the checkpoint again"
            if file != SINGLE_FILE
            else f"{files.place(file)}: neither {SINGLE_FILE} nor {INDEX_FILE} is there"
        )
    length = int.from_bytes(start, "little")
    text = files.read(file, LENGTH_BYTES, LENGTH_BYTES + length) if length <= MOST_HEADER_BYTES else None
    if text is None or len(start) < LENGTH_BYTES or len(text) < length:
        raise ArtifactError(
            f"{files.place(file)}: not a whole safetensors file (a Git LFS pointer?): download it again"
        )
    try:
        entries: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
        base = LENGTH_BYTES + length
        return {n: _place(n, file, base, e) for n, e in entries.items() if n != "__metadata__"}
    except (msgspec.DecodeError, msgspec.ValidationError, KeyError, TypeError, ValueError) as error:
        raise ArtifactError(f"{files.place(file)}: damaged header ({error}): download it again") from error


def _place(name: str, file: str, base: int, entry: dict[str, Any]) -> Place:
    start, end = entry["data_offsets"]
    return Place(
        name=name,
        file=file,
        dtype=entry["dtype"],
        shape=tuple(entry["shape"]),
        start=base + start,
        end=base + end,
    )

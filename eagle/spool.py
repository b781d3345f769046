"""Spool files: the hidden states of one request, as the connector writes and extraction reads them.

    token_ids  [T]        int64
    states     [T, 4, H]  of the tokens, in the order of layer_ids

and in the metadata the layer ids, the states' dtype and a crc32 of all that. A file is written aside and
renamed, so it is complete or absent; the checksum tells when it was damaged afterwards. crc32 and not
sha256: it is the faster one, and nobody forges a spool.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import zlib
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError, safe_open

from eagle.tensors import save_tensors
from synthgen.corpus.files import sync_directory
from synthgen.errors import ArtifactError

PREFIX = re.compile(r"[a-z0-9-]{1,40}")
STREAM_PREFIX = "stream-"
"""What a training's files begin with, before the number of its process, when it streams its states."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """A spool file: token_ids_T `[T]`, states_T4H `[T, 4, H]`, and what the server said they are.

    layer_ids: in the order of the states; empty where a file doesn't say. dtype: as torch calls it.
    """

    token_ids_T: torch.Tensor
    states_T4H: torch.Tensor
    layer_ids: tuple[int, ...]
    dtype: str


def file_name(request_id: str, prefix: object = None) -> str:
    """The spool file of a request. A client may choose its request id, so the id itself is no file name.

    `prefix` is a client's word too: what isn't a short plain name is passed over.
    """
    plain = isinstance(prefix, str) and PREFIX.fullmatch(prefix)
    begins = f"{prefix}-" if plain else ""
    return f"{begins}{hashlib.sha256(request_id.encode()).hexdigest()[:32]}.safetensors"


def write_states(path: Path, captured: Captured, *, durable: bool) -> None:
    """Write one request's states aside and rename them to `path`; a durable file outlives a power failure.

    Raises DiskError or OSError when that fails; then nothing is left.
    """
    metadata = {
        "layer_ids": json.dumps(captured.layer_ids),
        "dtype": captured.dtype,
        "crc32": checksum(captured),
    }
    aside = path.with_suffix(".tmp")
    path.parent.mkdir(parents=True, exist_ok=True)  # extraction removes an empty spool
    try:
        save_tensors({"token_ids": captured.token_ids_T, "states": captured.states_T4H}, aside, metadata)
        if durable:
            with aside.open("rb") as file:
                os.fsync(file.fileno())
        aside.replace(path)
        if durable:
            sync_directory(path.parent)
    finally:
        aside.unlink(missing_ok=True)


def read_states(path: Path) -> Captured:
    """A spool file. Raises ArtifactError when it is damaged, has no checksum or can't be read."""
    try:
        with safe_open(path, framework="pt") as file:
            said = file.metadata() or {}
            captured = Captured(
                token_ids_T=file.get_tensor("token_ids"),
                states_T4H=file.get_tensor("states"),
                layer_ids=msgspec.json.decode(said.get("layer_ids", "[]"), type=tuple[int, ...]),
                dtype=said.get("dtype", ""),
            )
    except (SafetensorError, msgspec.MsgspecError) as error:
        raise ArtifactError(f"{path}: damaged: {error}") from error
    except OSError as error:
        raise ArtifactError(f"{path}: can't be read: {error}") from error
    found, written = checksum(captured), said.get("crc32", "absent")
    if found != written:
        raise ArtifactError(
            f"{path}: damaged: the crc32 of what it holds is {found}, that of what was written {written}"
        )
    return captured


def checksum(captured: Captured) -> str:
    """8 hex digits: the crc32 of the layer ids, the dtype, the shape, the token ids and the states."""
    shape = list(captured.states_T4H.shape)
    found = zlib.crc32(json.dumps([captured.layer_ids, captured.dtype, shape]).encode())
    for tensor in (captured.token_ids_T, captured.states_T4H):
        found = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, found)
    return f"{found:08x}"

"""Hidden states on disk: shards of many samples, complete or absent.

A shard is one safetensors file, written aside and renamed:

    token_ids     [T]        int64, all samples end to end
    aux           [T, 3, H]  the three aux states, bfloat16 or fp8
    aux_scales    [T, 3]     float32, of fp8 states only
    final         [F, H]     the final state before the norm, of the tokens that keep it
    final_scales  [F]
    final_at      [F]        int64, which tokens of their sample those are
    starts        [N + 1]    int64, where each sample begins, and T
    final_starts  [N + 1]    the same in `final`, and F

and the sample ids in its metadata. `index.jsonl` beside the shards has one line a shard with its
sha256: a shard that isn't in the index, or whose digest differs, does not count.
"""

from __future__ import annotations

import hashlib
import itertools
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import torch
from safetensors import safe_open

from eagle.states import Rows, SampleStates
from eagle.tensors import save_tensors
from synthgen.corpus.files import sha256_of, written_aside
from synthgen.corpus.records import Record
from synthgen.errors import ArtifactError

INDEX_NAME = "index.jsonl"


class ShardEntry(Record, frozen=True, kw_only=True):
    """One line of the index."""

    file: str
    sha256: str
    num_tokens: int
    num_bytes: int
    sample_ids: tuple[str, ...]
    token_hashes: tuple[str, ...]
    """`token_hash` of each sample's ids."""


def token_hash(token_ids: Iterable[int]) -> str:
    """16 hex digits of the sha256 of token ids."""
    return hashlib.sha256(array("q", token_ids).tobytes()).hexdigest()[:16]


def write_shard(directory: Path, samples: list[SampleStates]) -> ShardEntry:
    """Write `samples` as the next shard of `directory` and enter it in the index; return the entry."""
    number = len(read_index(directory))
    path = directory / f"states-{number:05d}.safetensors"
    tensors = {
        "token_ids": torch.cat([s.token_ids_T for s in samples]).long(),
        "starts": _starts(len(s.token_ids_T) for s in samples),
        "final_at": torch.cat([s.final_at_F for s in samples]).long(),
        "final_starts": _starts(len(s.final) for s in samples),
        **_joined("aux", [s.aux for s in samples]),
        **_joined("final", [s.final for s in samples]),
    }
    ids = tuple(s.sample_id for s in samples)
    with written_aside(path) as aside:
        save_tensors(tensors, aside, metadata={"sample_ids": msgspec.json.encode(ids).decode()})
    entry = ShardEntry(
        file=path.name,
        sha256=sha256_of(path),
        num_tokens=len(tensors["token_ids"]),
        num_bytes=path.stat().st_size,
        sample_ids=ids,
        token_hashes=tuple(token_hash(s.token_ids_T.tolist()) for s in samples),
    )
    entries = [*read_index(directory), entry]
    with written_aside(directory / INDEX_NAME) as aside:
        aside.write_bytes(b"".join(msgspec.json.encode(e) + b"\n" for e in entries))
    return entry


def _starts(lengths: Iterable[int]) -> torch.Tensor:
    return torch.tensor(list(itertools.accumulate(lengths, initial=0)))


def _joined(name: str, parts: list[Rows]) -> dict[str, torch.Tensor]:
    """The states of several samples, and their scales if there are any."""
    tensors = {name: torch.cat([part.values for part in parts]).contiguous()}
    scales = [part.scales for part in parts if part.scales is not None]
    return tensors | ({f"{name}_scales": torch.cat(scales)} if scales else {})


def read_index(directory: Path) -> list[ShardEntry]:
    """The shards that count, in order; an empty list where there is no index."""
    path = directory / INDEX_NAME
    if not path.exists():
        return []
    try:
        return [msgspec.json.decode(line, type=ShardEntry) for line in path.read_bytes().splitlines()]
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ArtifactError(f"{path}: damaged: {error}. Remove {directory} to extract anew") from error


def verify_shard(directory: Path, entry: ShardEntry) -> None:
    """Raise ArtifactError unless the shard is there and its bytes are those that were written."""
    path = directory / entry.file
    if not path.exists():
        raise ArtifactError(f"{path}: listed in {INDEX_NAME} but missing: remove {directory} to extract anew")
    found = sha256_of(path)
    if found != entry.sha256:
        raise ArtifactError(
            f"{path}: sha256 is {found[:16]}…, the index says {entry.sha256[:16]}…: the file was damaged; "
            f"remove {directory} to extract anew"
        )


def read_shard(directory: Path, entry: ShardEntry) -> Iterator[SampleStates]:
    """Yield a shard's samples; the tensors are views of the memory-mapped file."""
    with safe_open(directory / entry.file, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 -- no mapping
    aux, final = (Rows(tensors[name], tensors.get(f"{name}_scales")) for name in ("aux", "final"))
    tokens = itertools.pairwise(tensors["starts"].tolist())
    finals = itertools.pairwise(tensors["final_starts"].tolist())
    for sample_id, (start, end), (first, last) in zip(entry.sample_ids, tokens, finals, strict=True):
        yield SampleStates(
            sample_id=sample_id,
            token_ids_T=tensors["token_ids"][start:end],
            aux=aux[start:end],
            final=final[first:last],
            final_at_F=tensors["final_at"][first:last],
            file=entry.file,
        )


def read_all(directory: Path) -> Iterator[SampleStates]:
    """Yield every sample of every shard, in order."""
    for entry in read_index(directory):
        yield from read_shard(directory, entry)

"""Hidden states on disk: shards of many samples, complete or absent.

A shard is one safetensors file, written aside and renamed:

    token_ids   [T]        int64, all samples end to end
    states      [T, 4, H]  the three aux states and the final state before the norm
    starts      [N + 1]    int64, where each sample begins, and T

and the sample ids in its metadata. `index.jsonl` beside the shards has one line a shard with its
sha256: a shard that isn't in the index, or whose digest differs, does not count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from safetensors import safe_open

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


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleStates:
    """The states of one sample: token_ids_T `[T]`, states_T4H `[T, 4, H]`."""

    sample_id: str
    token_ids_T: torch.Tensor
    states_T4H: torch.Tensor

    def __post_init__(self) -> None:
        tokens, states = tuple(self.token_ids_T.shape), tuple(self.states_T4H.shape)
        if len(states) != 3 or states[1] != 4 or tokens != states[:1]:
            raise ArtifactError(
                f"sample {self.sample_id}: states {states} don't fit token ids {tokens}; expected [T, 4, H]"
            )


def write_shard(directory: Path, samples: list[SampleStates]) -> ShardEntry:
    """Write `samples` as the next shard of `directory` and enter it in the index; return the entry."""
    number = len(read_index(directory))
    path = directory / f"states-{number:05d}.safetensors"
    lengths = torch.tensor([0] + [len(s.token_ids_T) for s in samples])
    tensors = {
        "token_ids": torch.cat([s.token_ids_T for s in samples]).long(),
        "states": torch.cat([s.states_T4H for s in samples]).contiguous(),
        "starts": lengths.cumsum(0),
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
    )
    entries = [*read_index(directory), entry]
    with written_aside(directory / INDEX_NAME) as aside:
        aside.write_bytes(b"".join(msgspec.json.encode(e) + b"\n" for e in entries))
    return entry


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
    with safe_open(directory / entry.file, framework="pt") as tensors:
        token_ids_T: torch.Tensor = tensors.get_tensor("token_ids")
        states_T4H: torch.Tensor = tensors.get_tensor("states")
        starts: list[int] = tensors.get_tensor("starts").tolist()
    for sample_id, start, end in zip(entry.sample_ids, starts, starts[1:], strict=False):
        yield SampleStates(
            sample_id=sample_id, token_ids_T=token_ids_T[start:end], states_T4H=states_T4H[start:end]
        )


def read_all(directory: Path) -> Iterator[SampleStates]:
    """Yield every sample of every shard, in order."""
    for entry in read_index(directory):
        yield from read_shard(directory, entry)

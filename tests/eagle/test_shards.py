"""Shards: what is written reads back, what is damaged is caught, what is half-written does not count."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from eagle.shards import read_all, read_index, read_shard, verify_shard, write_shard
from eagle.states import SampleStates
from synthgen.errors import ArtifactError


def sample(name: str, length: int) -> SampleStates:
    """States that tell their sample, token, tap and feature."""
    states = torch.arange(length * 4 * 3, dtype=torch.float32).reshape(length, 4, 3).bfloat16()
    return SampleStates.captured(name, torch.arange(length) + 100, states)


def same(one: SampleStates, other: SampleStates) -> bool:
    """Equal ids, tokens and states."""
    return (
        one.sample_id == other.sample_id
        and torch.equal(one.token_ids_T, other.token_ids_T)
        and torch.equal(one.aux.read(), other.aux.read())
        and torch.equal(one.final.read(), other.final.read())
    )


def test_samples_read_back_in_order_over_several_shards(tmp_path: Path) -> None:
    """Each with its own rows, bit for bit, in bfloat16."""
    samples = [sample("a", 3), sample("b", 1), sample("c", 5)]
    write_shard(tmp_path, samples[:2])
    write_shard(tmp_path, samples[2:])
    found = list(read_all(tmp_path))
    assert [entry.file for entry in read_index(tmp_path)] == [
        "states-00000.safetensors",
        "states-00001.safetensors",
    ]
    assert all(same(one, other) for one, other in zip(found, samples, strict=True))
    assert found[0].aux.read().dtype == torch.bfloat16


def test_the_index_states_sizes_and_ids(tmp_path: Path) -> None:
    """Four tokens of 4 x 3 x 2 bytes and their ids, and little more."""
    entry = write_shard(tmp_path, [sample("a", 3), sample("b", 1)])
    assert (entry.num_tokens, entry.sample_ids) == (4, ("a", "b"))
    assert 4 * 24 + 4 * 8 < entry.num_bytes < 1000


def test_a_shard_that_is_not_in_the_index_does_not_count(tmp_path: Path) -> None:
    """A crash between file and index leaves a file that the next shard replaces."""
    write_shard(tmp_path, [sample("a", 3)])
    (tmp_path / "states-00001.safetensors").write_bytes(b"half")
    assert [s.sample_id for s in read_all(tmp_path)] == ["a"]
    write_shard(tmp_path, [sample("b", 2)])
    assert [s.sample_id for s in read_all(tmp_path)] == ["a", "b"]


def test_one_changed_byte_is_caught(tmp_path: Path) -> None:
    """By the digest in the index, naming the file."""
    entry = write_shard(tmp_path, [sample("a", 3)])
    verify_shard(tmp_path, entry)
    path = tmp_path / entry.file
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(ArtifactError, match=r"states-00000\.safetensors: sha256 is"):
        verify_shard(tmp_path, entry)
    path.unlink()
    with pytest.raises(ArtifactError, match="missing"):
        verify_shard(tmp_path, entry)


def test_states_that_do_not_fit_their_tokens_are_refused() -> None:
    """Both shapes stand in the error."""
    with pytest.raises(
        ArtifactError, match=r"states \(3, 4, 2\) don't fit token ids \(2,\); expected \[T, 4, H\]"
    ):
        SampleStates.captured("x", torch.zeros(2), torch.zeros(3, 4, 2))


def test_reading_maps_the_file_instead_of_copying_it(tmp_path: Path) -> None:
    """While a sample is held, the kernel lists the shard among the process' mappings, around its data."""
    entry = write_shard(tmp_path, [sample("a", 3), sample("b", 4)])
    one, other = read_shard(tmp_path, entry)
    mapped = [
        range(*(int(end, 16) for end in line.split()[0].split("-")))
        for line in Path("/proc/self/maps").read_text().splitlines()
        if line.endswith(entry.file)
    ]
    for states in (one.aux.read(), other.aux.read(), one.final.read(), other.final.read()):
        assert any(states.data_ptr() in place for place in mapped)

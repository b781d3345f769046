"""Extraction: only a sample's own, finite states of the right size count."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from eagle.prefill import checked, take_states
from eagle.states import SampleStates
from synthgen.corpus.draft_sections import ExtractConfig
from synthgen.corpus.samples import Sample
from synthgen.errors import ArtifactError

SAMPLE = Sample(id="s-0", domain="d", token_ids=(5, 6, 7), spans=())


EXTRACT = ExtractConfig(
    aux_layers=(1, 2, 3),
    max_seq_tokens=64,
    shard_tokens=64,
    concurrency=1,
    states_dtype="bfloat16",
    final_states="all",
)


def states_of(ids: list[int], states: torch.Tensor) -> SampleStates:
    """What a spool file with these tensors gives for the sample."""
    return checked(SAMPLE, {"token_ids": torch.tensor(ids), "states": states}, 8, EXTRACT)


def test_a_samples_own_states_are_kept() -> None:
    """As they came; of a captured reply those of its last token lack, and a longer one is cut."""
    states_T4H = torch.arange(4 * 4 * 8.0).view(4, 4, 8)
    assert torch.equal(states_of([5, 6, 7], states_T4H[:3]).aux.read(), states_T4H[:3, :3])
    assert states_of([5, 6], states_T4H[:2]).token_ids_T.tolist() == [5, 6]
    assert states_of([5, 6, 7, 9], states_T4H).final_at_F.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("ids", "states", "message"),
    [
        ([5, 6, 8], torch.ones(3, 4, 8), "are of other token ids"),
        ([5], torch.ones(1, 4, 8), "are of other token ids"),
        ([5, 6, 7], torch.ones(3, 3, 8), r"states are \(3, 3, 8\), expected \[T, 4, 8\]"),
        ([5, 6, 7], torch.ones(3, 4, 9), r"states are \(3, 4, 9\), expected \[T, 4, 8\]"),
        ([5, 6, 7], torch.full((3, 4, 8), float("nan")), "not finite"),
    ],
)
def test_anything_else_is_refused(ids: list[int], states: torch.Tensor, message: str) -> None:
    """Other ids, a cut, another number of taps, another model, a NaN."""
    with pytest.raises(ArtifactError, match=message):
        states_of(ids, states)


def test_a_spool_file_is_taken_once(tmp_path: Path) -> None:
    """Read and removed."""
    save_file({"token_ids": torch.tensor([1]), "states": torch.zeros(1, 4, 2)}, tmp_path / "f.safetensors")
    assert take_states(tmp_path / "f.safetensors")["token_ids"].tolist() == [1]
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_spool_file_is_named(tmp_path: Path) -> None:
    """It can't be a half-written one, those have another name."""
    (tmp_path / "f.safetensors").write_bytes(b"12345678901234567890")
    with pytest.raises(ArtifactError, match=r"f\.safetensors: damaged"):
        take_states(tmp_path / "f.safetensors")

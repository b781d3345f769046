"""Extraction: only a sample's own, finite states of the right size count."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch

from eagle.prefill import checked, take_states
from eagle.spool import Captured, write_states
from eagle.states import SampleStates
from synthgen.corpus.draft_sections import ExtractConfig
from synthgen.corpus.samples import Sample
from synthgen.corpus.verifier_config import VerifierShape
from synthgen.errors import ArtifactError

SAMPLE = Sample(id="s-0", domain="d", token_ids=(5, 6, 7), spans=())


EXTRACT = ExtractConfig(
    backend="vllm",
    aux_layers=(1, 2, 3),
    max_seq_tokens=64,
    shard_tokens=64,
    concurrency=1,
    states_dtype="bfloat16",
    final_states="all",
)


SHAPE = VerifierShape(
    hidden_size=8, vocab_size=16, num_layers=6, rms_norm_eps=1e-6, bos_token_id=None, eos_token_id=None
)
OWN = (1, 2, 3, 6)


def states_of(ids: list[int], states: torch.Tensor, layers: tuple[int, ...] = OWN) -> SampleStates:
    """What a spool file with these tensors, of those layers, gives for the sample."""
    captured = Captured(token_ids_T=torch.tensor(ids), states_T4H=states, layer_ids=layers, dtype="bfloat16")
    return checked(SAMPLE, captured, SHAPE, EXTRACT)


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


@pytest.mark.parametrize("layers", [(1, 2, 4, 6), (1, 2, 3, 5), ()])
def test_states_of_other_layers_are_refused(layers: tuple[int, ...]) -> None:
    """Nothing else tells them apart: ids and shapes are the same. A file that doesn't say is none of ours."""
    with pytest.raises(ArtifactError, match=r"are of layers \[.*\], this run wants \[1, 2, 3, 6\]"):
        states_of([5, 6, 7], torch.ones(3, 4, 8), layers)


def spool_file(path: Path) -> Path:
    """One token's states."""
    one = Captured(
        token_ids_T=torch.tensor([1]), states_T4H=torch.zeros(1, 4, 2), layer_ids=OWN, dtype="float32"
    )
    write_states(path, one, durable=False)
    return path


async def healthy() -> bool:
    """A server that is there."""
    return True


def test_a_spool_file_is_taken_once(tmp_path: Path) -> None:
    """Read and removed, with what the server said of it."""
    path = spool_file(tmp_path / "f.safetensors")
    taken = asyncio.run(take_states(path, healthy))
    assert (taken.token_ids_T.tolist(), taken.layer_ids, taken.dtype) == ([1], (1, 2, 3, 6), "float32")
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_file_is_removed_too(tmp_path: Path) -> None:
    """The sample is asked for again, or left out: nobody would come for the file."""
    path = tmp_path / "f.safetensors"
    path.write_bytes(b"12345678901234567890")
    with pytest.raises(ArtifactError, match=r"f\.safetensors: damaged"):
        asyncio.run(take_states(path, healthy))
    assert list(tmp_path.iterdir()) == []


def test_files_that_do_not_come_hold_up_nobody(tmp_path: Path) -> None:
    """A hundred that wait leave a file that is there readable, and end when they are cancelled."""

    async def work() -> list[BaseException | Captured]:
        waiting = [
            asyncio.create_task(take_states(tmp_path / f"{n}.safetensors", healthy)) for n in range(100)
        ]
        await asyncio.sleep(0.1)
        await take_states(spool_file(tmp_path / "f.safetensors"), healthy)
        for task in waiting:
            task.cancel()
        return await asyncio.gather(*waiting, return_exceptions=True)

    ended = asyncio.run(asyncio.wait_for(work(), 20))
    assert {type(one) for one in ended} == {asyncio.CancelledError}

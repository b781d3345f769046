"""Checkpoints on disk."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from eagle.checkpoint import (
    Progress,
    checkpoints,
    load_checkpoint,
    load_progress,
    load_weights,
    save_checkpoint,
    stored_weights,
)
from eagle.draft import Draft, build_draft
from eagle.optim import Optimizers, build_optimizers
from eagle.vocab import build_vocab
from synthgen.errors import ArtifactError
from tests.eagle.tiny import VOCAB, counting_weights, tiny_config


def pair(directory: Path, vocab_size: int = 20, **settings: str) -> tuple[Draft, Optimizers]:
    config = tiny_config(directory, **settings)
    vocab = build_vocab(torch.ones(VOCAB), vocab_size)
    draft = build_draft(config.draft, counting_weights(), vocab, config.seed)
    return draft, build_optimizers(draft, config.train)


def updated(directory: Path) -> tuple[Draft, Optimizers]:
    draft, optimizers = pair(directory)
    for parameter in draft.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizers.step(1.0)
    return draft, optimizers


def at(step: int) -> Progress:
    return Progress(step=step, epoch=1, index=2, seconds=3.5, targets=99)


def test_everything_comes_back(tmp_path: Path) -> None:
    """Weights, optimizer tensors, random state and the place in the data are as they were."""
    draft, optimizers = updated(tmp_path)
    torch.manual_seed(5)
    path = save_checkpoint(tmp_path / "c", draft, optimizers, at(7), keep=2)
    expected = torch.rand(3)
    other, its_optimizers = pair(tmp_path)
    assert load_checkpoint(path, other, its_optimizers) == at(7)
    assert torch.equal(torch.rand(3), expected)
    for (name, weight), (_, found) in zip(draft.named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(weight, found), name
    before, after = optimizers.state(), its_optimizers.state()
    assert before.keys() == after.keys()
    assert len(before) == 8 + 3 * 8  # Muon's momentum; AdamW's two moments and step
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_only_masters_are_saved(tmp_path: Path) -> None:
    """What is gathered to compute with would lose what the updates are added to."""
    draft, optimizers = updated(tmp_path)
    draft.fc.bfloat16()
    with pytest.raises(TypeError, match=r"only float32 masters .*, not fc\.weight torch\.bfloat16"):
        save_checkpoint(tmp_path / "c", draft, optimizers, at(7), keep=2)
    assert checkpoints(tmp_path / "c") == []


def test_only_safetensors_and_json(tmp_path: Path) -> None:
    """Nothing in a checkpoint could run code when it is read."""
    path = save_checkpoint(tmp_path / "c", *updated(tmp_path), at(7), keep=2)
    assert path.name == "step-00000007"
    assert sorted(p.name for p in path.iterdir()) == [
        "optimizer.safetensors",
        "progress.json",
        "weights.safetensors",
    ]


def test_the_newest_two_are_kept(tmp_path: Path) -> None:
    """Of steps 4, 12 and 100, written in turn, the first is dropped; order is by step."""
    made = updated(tmp_path)
    for step in (4, 12, 100):
        save_checkpoint(tmp_path / "c", *made, at(step), keep=2)
    assert [p.name for p in checkpoints(tmp_path / "c")] == ["step-00000012", "step-00000100"]


def test_the_best_is_kept_besides_the_newest(tmp_path: Path) -> None:
    """Step 4 while it is the best; when 12 is, 4 goes."""
    made = updated(tmp_path)
    for step, best in ((4, 4), (8, 4), (12, 4)):
        save_checkpoint(tmp_path / "c", *made, at(step), keep=1, best=best)
    assert [p.name for p in checkpoints(tmp_path / "c")] == ["step-00000004", "step-00000012"]
    save_checkpoint(tmp_path / "c", *made, at(16), keep=1, best=12)
    assert [p.name for p in checkpoints(tmp_path / "c")] == ["step-00000012", "step-00000016"]


def test_a_half_written_one_does_not_count(tmp_path: Path) -> None:
    """What a killed process left aside is not a checkpoint, and the next one clears it away."""
    leftover = tmp_path / "c" / ".step-00000009.123.tmp"
    leftover.mkdir(parents=True)
    assert checkpoints(tmp_path / "c") == []
    save_checkpoint(tmp_path / "c", *updated(tmp_path), at(12), keep=2)
    assert [p.name for p in (tmp_path / "c").iterdir()] == ["step-00000012"]


def test_another_drafts_weights_are_refused(tmp_path: Path) -> None:
    """The error names the tensor with both shapes, or the one that isn't there."""
    path = save_checkpoint(tmp_path / "c", *updated(tmp_path), at(7), keep=2)
    with pytest.raises(ArtifactError, match=r"`lm_head\.weight` is \[20, 32\], .* has it \[10, 32\]"):
        load_weights(path, pair(tmp_path, vocab_size=10)[0])
    with pytest.raises(ArtifactError, match=r"`fc_norm\.0\.weight` is \[32\], .* has it not known"):
        load_weights(path, pair(tmp_path, draft__fc_norm="false")[0])


@pytest.mark.parametrize("name", ["weights.safetensors", "optimizer.safetensors", "progress.json"])
def test_damage_names_the_file(tmp_path: Path, name: str) -> None:
    """A torn file is reported with what to do, not as a traceback."""
    draft, optimizers = updated(tmp_path)
    path = save_checkpoint(tmp_path / "c", draft, optimizers, at(7), keep=2)
    (path / name).write_bytes((path / name).read_bytes()[:20])
    with pytest.raises(ArtifactError, match=f"{name}: damaged: .*Remove {path} to go on from the one before"):
        load_checkpoint(path, draft, optimizers)


def test_progress_alone_can_be_read(tmp_path: Path) -> None:
    """Exports state the step without loading the optimizer."""
    assert load_progress(save_checkpoint(tmp_path / "c", *updated(tmp_path), at(7), keep=2)) == at(7)


def test_stored_weights_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    """Read where they are wanted, in the type they are wanted in; another draft's are refused before."""
    draft, optimizers = pair(tmp_path)
    progress = Progress(step=1, epoch=0, index=1, seconds=1.0, targets=5)
    path = save_checkpoint(tmp_path / "checkpoints", draft, optimizers, progress, keep=1)
    found = stored_weights(path, draft, torch.bfloat16)
    assert found.keys() == dict(draft.named_parameters()).keys()
    for name, weight in draft.named_parameters():
        assert torch.equal(torch.cat([*found[name]]), weight.bfloat16())
    other, _ = pair(tmp_path, vocab_size=10)
    with pytest.raises(ArtifactError, match=r"`lm_head.weight` is \[20, 32\], this .* has it \[10, 32\]"):
        stored_weights(path, other, torch.bfloat16)

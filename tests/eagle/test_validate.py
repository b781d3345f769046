"""Validation against a loop written from the definition, and on a verifier that counts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from eagle.batches import Document, Kind
from eagle.draft import unroll
from eagle.feed import ShardFeed
from eagle.shards import read_all
from eagle.step import Objective, Trainee, train_step
from eagle.train import train
from eagle.validate import Acceptance, HeldOut, Validation, acceptance_of, best_of, since_best, validate
from eagle.vocab import load_vocab
from synthgen.corpus.config import RunConfig
from synthgen.errors import ArtifactError, TrainingError
from tests.eagle.test_train import final_weights, trainee_of, update_of
from tests.eagle.tiny import tiny_config, write_run


def trained(config: RunConfig, updates: int) -> Trainee:
    """A draft of a written run after so many updates on all its training samples."""
    trainee = trainee_of(config)
    for step in range(updates):
        train_step(trainee, update_of(config), step, updates)
    return trainee


def heldout_of(config: RunConfig) -> HeldOut:
    found = HeldOut.of(config)
    assert found is not None
    return found


def from_definition(document: Document, objective: Objective) -> list[tuple[Kind, list[bool]]]:
    """Of every slot whose first token is supervised: its kind, and whether each drafted token is right."""
    tokens, kinds = document.token_ids_T, document.next_kind_T.tolist()
    embeddings_TH, steps = objective.verifier.embedding_VH[tokens], objective.config.ttt_steps
    length, every_N = len(tokens), torch.arange(len(tokens))
    aux_T3H = document.states.aux.read()
    out = unroll(objective.draft, torch.float32, aux_T3H, embeddings_TH, every_N, (0, length), steps)
    drafted = objective.verifier.target_ids_K[F.linear(out, objective.draft.lm_head.weight).argmax(-1)]
    found = []
    for slot in range(length - 1):
        right = []
        for k, target in enumerate(range(slot + 1, min(slot + 1 + steps, length))):
            if not kinds[target]:
                break
            right.append(int(drafted[k, slot]) == (int(tokens[target]) + 3) % 24)
        if right:
            found.append((Kind(kinds[slot + 1]), right))
    return found


def length_of(slots: list[list[bool]], steps: int = 3) -> float:
    """1 + Σ_k P(the first k are right), over the slots that have k tokens to draft."""
    able = [[right for right in slots if len(right) >= k] for k in range(1, steps + 1)]
    return 1 + sum(sum(all(r[:k]) for r in of) / max(len(of), 1) for k, of in enumerate(able, 1))


@pytest.mark.parametrize("updates", [0, 12])
@pytest.mark.parametrize("batch_tokens", ["48", "400"])
def test_equals_the_definition(tmp_path: Path, updates: int, batch_tokens: str) -> None:
    """Whatever the batches, whole and by the kind of the first drafted token."""
    config = tiny_config(tmp_path, train__batch_tokens=batch_tokens, vocab__size="16")
    write_run(config, heldout=5)
    trainee, heldout = trained(config, updates), heldout_of(config)
    objective = trainee.objective
    found = validate(trainee, heldout, updates)
    slots = [slot for document in heldout.documents for slot in from_definition(document, objective)]
    assert found.whole.slots == len(slots)
    assert found.whole.length == pytest.approx(length_of([right for _, right in slots]))
    firsts = [right[0] for _, right in slots]
    assert found.whole.accuracy[0] == pytest.approx(sum(firsts) / len(firsts))
    for kind in (Kind.THINKING, Kind.RESPONSE):
        of_kind = [right for its_kind, right in slots if its_kind is kind]
        group = found.by_kind[kind.name.lower()]
        assert group.slots == len(of_kind)
        assert group.length == pytest.approx(length_of(of_kind))


def test_a_draft_that_has_learned_to_count_is_always_right(tmp_path: Path) -> None:
    """Three replies of 8, 9 and 10 tokens, four of each thinking: all three drafted tokens of every slot."""
    config = tiny_config(tmp_path, vocab__size="24", train__learning_rate="0.05")
    write_run(config, samples=24, heldout=3)
    found = validate(trained(config, 60), heldout_of(config), 60)
    assert found.whole == Acceptance(slots=27, length=4.0, accuracy=[1.0, 1.0, 1.0])
    assert {name: (group.slots, group.length) for name, group in found.by_kind.items()} == {
        "thinking": (12, 4.0),
        "response": (15, 4.0),
    }
    assert found.by_domain == {"count": found.whole}
    assert found.step == 60


def test_the_length_is_of_joint_prefixes() -> None:
    """Of 10 slots 6 begin right; of 8 with a second token 2 have both right: 1 + 0.6 + 0.25."""
    found = acceptance_of(torch.tensor([[6, 10, 6, 10], [2, 8, 5, 8]]))
    assert found.slots == 10
    assert found.length == pytest.approx(1.85)
    assert found.accuracy == pytest.approx([0.6, 0.625])
    assert acceptance_of(torch.zeros(2, 4)) == Acceptance(slots=0, length=1.0, accuracy=[0.0, 0.0])


def test_the_loss_is_trainings(tmp_path: Path) -> None:
    """On the very samples of an update it is that update's loss."""
    config = tiny_config(tmp_path)
    write_run(config)
    trainee = trained(config, 3)
    config.validation_path.write_bytes(config.train_path.read_bytes())
    found = validate(trainee, heldout_of(config), 3)
    metrics = train_step(trainee, update_of(config), 3, 4)
    assert found.loss == pytest.approx(metrics.loss)
    assert found.losses == pytest.approx(metrics.losses)


def test_a_loss_that_is_no_number_is_not_logged(tmp_path: Path) -> None:
    """States with a NaN among those held out: the error names step, samples and shards."""
    config = tiny_config(tmp_path)
    write_run(config, heldout=2)
    heldout = heldout_of(config)
    heldout.documents[1].states.aux.values[4] = torch.nan
    blamed = r"seed13-0 in states-00013\.safetensors"
    said = rf"validation after step 5: loss nan in 1 of 1 batches, .*{blamed}"
    with pytest.raises(TrainingError, match=said):
        validate(trained(config, 1), heldout, 5)


def test_nothing_is_changed(tmp_path: Path) -> None:
    """Weights, gradients and random state are what they were."""
    config = tiny_config(tmp_path)
    write_run(config, heldout=3)
    trainee = trained(config, 1)
    draft, random_state = trainee.objective.draft, torch.get_rng_state()
    before = [(p.clone(), None if p.grad is None else p.grad.clone()) for p in draft.parameters()]
    validate(trainee, heldout_of(config), 1)
    assert torch.equal(torch.get_rng_state(), random_state)
    for parameter, (weight, gradient) in zip(draft.parameters(), before, strict=True):
        assert torch.equal(parameter, weight)
        assert (parameter.grad is None) == (gradient is None)
        assert gradient is None or torch.equal(parameter.grad, gradient)  # type: ignore[arg-type]


def test_training_never_sees_what_is_held_out(tmp_path: Path) -> None:
    """With and without held-out samples among the states a run ends with the same vocabulary and weights."""
    alone, beside = (
        tiny_config(tmp_path / "a", train__epochs="1"),
        tiny_config(tmp_path / "b", train__epochs="1"),
    )
    write_run(alone)
    write_run(beside, heldout=4)
    trained_on = {outline.sample_id for outline in ShardFeed(beside).outlines}
    held = {document.sample_id for document in heldout_of(beside).documents}
    assert held == {"seed12-0", "seed13-0", "seed14-0", "seed15-0"}
    assert trained_on | held == {states.sample_id for states in read_all(beside.states_path)}
    assert not trained_on & held
    assert torch.equal(load_vocab(alone.vocab_path).t2d_V, load_vocab(beside.vocab_path).t2d_V)
    train(alone)
    train(beside)
    expected, found = final_weights(alone), final_weights(beside)
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_a_run_without_held_out_samples_has_no_validation(tmp_path: Path) -> None:
    """As with mix.heldout_fraction 0; states that lack those of held-out samples are an error."""
    config = tiny_config(tmp_path)
    write_run(config, samples=2)
    assert HeldOut.of(config) is None
    config.validation_path.write_bytes(config.train_path.read_bytes().replace(b"seed", b"other"))
    with pytest.raises(ArtifactError, match="none of the states is of a sample"):
        HeldOut.of(config)


def test_the_first_of_equals_is_best() -> None:
    """Lengths 2, 3, 3, 1: the second is, and two have passed since; without any there is none."""

    def with_length(step: int, length: float) -> Validation:
        whole = Acceptance(slots=1, length=length, accuracy=[])
        return Validation(step=step, seconds=0, loss=0, losses=[], whole=whole, by_domain={}, by_kind={})

    all_four = [with_length(step, length) for step, length in enumerate((2.0, 3.0, 3.0, 1.0), 1)]
    best = best_of(all_four)
    assert best is not None
    assert (best.step, since_best(all_four)) == (2, 2)
    assert (best_of([]), since_best([])) == (None, 0)

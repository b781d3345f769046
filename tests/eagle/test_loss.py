"""The loss against a loop written from its definition, and the acceptance it predicts."""

from __future__ import annotations

import pytest
import torch

from eagle.batches import Targets
from eagle.loss import (
    CHUNK_LOGITS,
    TargetLogits,
    VerifierHead,
    draft_ids,
    predicted_acceptance,
    prefix_counts,
    shares,
    step_losses,
    target_logits,
)

STEPS, SLOTS, TARGETS, HIDDEN, DRAFT, VERIFIER = 3, 7, 6, 8, 5, 9
TARGET_IDS = [0, 2, 3, 5, 8]


def problem() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, VerifierHead, Targets]:
    """Random outputs, head and final states; slots 0..6 and targets at tokens 1..6 of one document."""
    generator = torch.Generator().manual_seed(5)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    verifier = VerifierHead(
        embedding_VH=randn(VERIFIER, HIDDEN),
        norm_H=randn(HIDDEN).float(),
        eps=1e-6,
        head_VH=randn(VERIFIER, HIDDEN),
        target_ids_K=torch.tensor(TARGET_IDS),
        draft_ids_V=torch.tensor([0, -1, 1, 2, -1, 3, -1, -1, 4]),
    )
    targets_P = torch.arange(1, TARGETS + 1)
    slot_SP = targets_P - torch.arange(1, STEPS + 1)[:, None]
    targets = Targets(
        slots_N=torch.arange(SLOTS), targets_P=targets_P, row_SP=slot_SP.clamp(min=0), valid_SP=slot_SP >= 0
    )
    outputs_SNH = randn(STEPS, SLOTS, HIDDEN).requires_grad_()
    head_KH = randn(DRAFT, HIDDEN).requires_grad_()
    return outputs_SNH, head_KH, randn(TARGETS, HIDDEN), verifier, targets


def equal_shares(targets: Targets) -> torch.Tensor:
    """Each target's share of its step's mean, all weighing the same."""
    weight_P = torch.ones(len(targets.targets_P))
    return shares(targets, weight_P, targets.valid_SP.sum(1))


def from_definition(
    outputs_SNH: torch.Tensor, head_KH: torch.Tensor, logits_PV: torch.Tensor, targets: Targets, decay: float
) -> tuple[torch.Tensor, list[list[bool]]]:
    """Σ γ^s L_s / Σ γ^s, with L_s the mean of -Σ p log q over the targets, 0 for those outside."""
    total, hits = torch.zeros((), dtype=torch.float64), []
    for step in range(STEPS):
        terms, hit = [], []
        for p in range(TARGETS):
            if not targets.valid_SP[step, p]:
                continue
            log_q = (head_KH @ outputs_SNH[step, targets.row_SP[step, p]]).log_softmax(-1)
            best = int(logits_PV[p].argmax())
            hit.append(TARGET_IDS[int(log_q.argmax())] == best)
            ce = -(logits_PV[p, TARGET_IDS].softmax(-1) * log_q).sum()
            terms.append(ce if best in TARGET_IDS else 0 * ce)
        total = total + decay**step * torch.stack(terms).mean()
        hits.append(hit)
    return total / sum(decay**step for step in range(STEPS)), hits


@pytest.mark.parametrize("chunk_logits", [1 << 22, 1, 31], ids=["one chunk", "row by row", "two rows"])
@pytest.mark.parametrize("decay", [1.0, 0.8])
def test_equals_the_definition(decay: float, chunk_logits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Total, hits and both gradients equal those of the loop, however the rows are chunked."""
    monkeypatch.setitem(CHUNK_LOGITS, "cpu", chunk_logits)
    outputs_SNH, head_KH, final_PH, verifier, targets = problem()
    normed_PH = final_PH.float() * final_PH.float().pow(2).mean(-1, keepdim=True).add(1e-6).rsqrt()
    logits_PV = (normed_PH * verifier.norm_H).double() @ verifier.head_VH.T
    expected, hits = from_definition(outputs_SNH, head_KH, logits_PV, targets, decay)
    expected_grads = torch.autograd.grad(expected, (outputs_SNH, head_KH))

    losses = step_losses(
        outputs_SNH, head_KH, target_logits(verifier, final_PH), targets, equal_shares(targets), decay
    )
    grads = torch.autograd.grad(losses.total, (outputs_SNH, head_KH))
    torch.testing.assert_close(losses.total, expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(grads, expected_grads, rtol=1e-6, atol=1e-6)
    found = [losses.hits_SP[s][targets.valid_SP[s]].tolist() for s in range(STEPS)]
    assert found == hits
    assert any(any(row) for row in hits)


def test_gradcheck() -> None:
    """Numerical differentiation agrees with the gradient taken on the way."""
    outputs_SNH, head_KH, final_PH, verifier, targets = problem()
    says = target_logits(verifier, final_PH)
    assert torch.autograd.gradcheck(
        lambda outputs, head: step_losses(outputs, head, says, targets, equal_shares(targets), 0.8).total,
        (outputs_SNH, head_KH),
    )


def test_frozen_head_gets_no_gradient() -> None:
    """With a head that isn't trained only the outputs have one."""
    outputs_SNH, head_KH, final_PH, verifier, targets = problem()
    losses = step_losses(
        outputs_SNH, head_KH.detach(), target_logits(verifier, final_PH), targets, equal_shares(targets), 1.0
    )
    losses.total.backward()  # type: ignore[no-untyped-call]
    assert outputs_SNH.grad is not None
    assert head_KH.grad is None


def test_pruned_logits_are_of_the_normed_state() -> None:
    """State (3, 4) has rms sqrt(12.5); logits are its normed self times the rows of the draft's tokens."""
    verifier = VerifierHead(
        embedding_VH=torch.zeros(3, 2),
        norm_H=torch.tensor([1.0, 2.0]),
        eps=0.0,
        head_VH=torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]),
        target_ids_K=torch.tensor([0, 2]),
        draft_ids_V=torch.tensor([0, -1, 1]),
    )
    says = target_logits(verifier, torch.tensor([[3.0, 4.0], [-3.0, 4.0]]))
    expected = torch.tensor([[0.8485281, 3.1112698], [-0.8485281, 1.4142136]])
    torch.testing.assert_close(says.logits_PK, expected)
    assert says.best_P.tolist() == [1, -1]


def test_draft_ids_count_the_tokens_that_the_draft_has() -> None:
    """Of five tokens it has three: the second, the third and the last."""
    assert draft_ids(torch.tensor([False, True, True, False, True])).tolist() == [-1, 0, 1, -1, 2]


def test_target_outside_the_vocabulary_has_no_loss_and_misses() -> None:
    """Of two targets one is outside: the mean is over both, the loss only the other's."""
    targets = Targets(
        slots_N=torch.tensor([0, 1]),
        targets_P=torch.tensor([1, 2]),
        row_SP=torch.tensor([[0, 1]]),
        valid_SP=torch.tensor([[True, True]]),
    )
    says = TargetLogits(logits_PK=torch.tensor([[2.0, 0.0], [5.0, 1.0]]), best_P=torch.tensor([0, -1]))
    losses = step_losses(
        torch.tensor([[[1.0, 0.0], [9.0, 9.0]]]), torch.eye(2), says, targets, equal_shares(targets), 1.0
    )
    # p = softmax(2, 0) = (0.88079708, 0.11920292); -log softmax(1, 0) = (0.31326169, 1.31326169)
    assert losses.total.item() == pytest.approx(0.43246461 / 2)
    assert losses.hits_SP.tolist() == [[True, False]]


def test_no_targets_at_a_step_leaves_the_others() -> None:
    """A document too short for step 1 has the loss of step 0, at half the weight."""
    targets = Targets(
        slots_N=torch.tensor([0]),
        targets_P=torch.tensor([1]),
        row_SP=torch.tensor([[0], [0]]),
        valid_SP=torch.tensor([[True], [False]]),
    )
    says = TargetLogits(logits_PK=torch.tensor([[0.0, 0.0]]), best_P=torch.tensor([0]))
    losses = step_losses(torch.zeros(2, 1, 2), torch.eye(2), says, targets, equal_shares(targets), 1.0)
    assert losses.total.item() == pytest.approx(0.69314718 / 2)
    assert losses.losses_S.tolist() == pytest.approx([0.69314718, 0.0])


def test_a_target_weighs_what_it_is_given() -> None:
    """Weights 1 and 3 of a whole of 8, of which other batches have the rest: shares 1/8 and 3/8."""
    targets = Targets(
        slots_N=torch.tensor([0, 1]),
        targets_P=torch.tensor([1, 2]),
        row_SP=torch.tensor([[0, 1], [0, 0]]),
        valid_SP=torch.tensor([[True, True], [False, True]]),
    )
    found_SP = shares(targets, torch.tensor([1.0, 3.0]), torch.tensor([8.0, 4.0]))
    assert found_SP.tolist() == [[0.125, 0.375], [0.0, 0.75]]


def test_prefixes_and_predicted_acceptance() -> None:
    """Four slots that hit 2, 1, 0 and 2 of two steps: P1 = 3/4, P2 = 2/4, so 2.25 tokens a step."""
    targets_P = torch.arange(1, 6)
    slot_SP = targets_P - torch.arange(1, 3)[:, None]
    valid_SP = (slot_SP >= 0) & (slot_SP < 4)
    targets = Targets(
        slots_N=torch.arange(4), targets_P=targets_P, row_SP=slot_SP.clamp(0, 3), valid_SP=valid_SP
    )
    hits_SP = torch.tensor([[1, 1, 0, 1, 0], [0, 1, 0, 1, 1]], dtype=torch.bool)
    prefix_hits_S, prefix_slots_S = prefix_counts(hits_SP, targets)
    assert (prefix_hits_S.tolist(), prefix_slots_S.tolist()) == ([3, 2], [4, 4])
    assert predicted_acceptance(prefix_hits_S, prefix_slots_S) == pytest.approx(2.25)

"""Attention of the training-time test against a loop written from its definition."""

from __future__ import annotations

import pytest
import torch

from eagle.attention import SCORES_AT_ONCE, Piece, Starts, pieces_of, ttt_attention

CPU = torch.device("cpu")
Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def naive(
    q_NAD: torch.Tensor,
    k_TGD: torch.Tensor,
    v_TGD: torch.Tensor,
    later_k_SNGD: torch.Tensor,
    later_v_SNGD: torch.Tensor,
    slots_N: torch.Tensor,
    starts: Starts,
) -> torch.Tensor:
    """For each slot and head: softmax over its document up to itself and over its own later entries."""
    groups = q_NAD.shape[1] // k_TGD.shape[1]
    rows = []
    for n, t in enumerate(slots_N.tolist()):
        start = max(s for s in starts if s <= t)
        heads = []
        for a in range(q_NAD.shape[1]):
            g = a // groups
            keys = torch.cat((k_TGD[start : t + 1, g], later_k_SNGD[:, n, g]))
            values = torch.cat((v_TGD[start : t + 1, g], later_v_SNGD[:, n, g]))
            scores = keys @ q_NAD[n, a] / q_NAD.shape[-1] ** 0.5
            heads.append(scores.softmax(-1) @ values)
        rows.append(torch.stack(heads))
    return torch.stack(rows)


def inputs(
    later: int, heads: int, kv_heads: int, dtype: torch.dtype = torch.float64
) -> tuple[Inputs, torch.Tensor, Starts]:
    """Queries, keys and values of block 0, later keys and values; six active slots in three documents."""
    generator = torch.Generator().manual_seed(later)
    slots_N = torch.tensor([1, 2, 3, 6, 9, 10])
    starts = (0, 4, 5, 11)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()

    block, diagonals = (11, kv_heads, 8), (later, 6, kv_heads, 8)
    tensors = randn(6, heads, 8), randn(*block), randn(*block), randn(*diagonals), randn(*diagonals)
    return tensors, slots_N, starts


@pytest.mark.parametrize("scores_at_once", [1, 40, 1 << 20], ids=["a-slot", "a-few", "documents"])
@pytest.mark.parametrize("later", [0, 1, 3])
@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (4, 2), (6, 1)])
def test_equals_the_loop(
    monkeypatch: pytest.MonkeyPatch, scores_at_once: int, later: int, heads: int, kv_heads: int
) -> None:
    """Output and every gradient equal the naive loop's, however many slots are taken at once."""
    monkeypatch.setitem(SCORES_AT_ONCE, "cpu", scores_at_once)
    tensors, slots_N, starts = inputs(later, heads, kv_heads)
    pieces = pieces_of(slots_N, starts, heads, CPU)
    expected = naive(*tensors, slots_N, starts)
    upstream = torch.randn(expected.shape, dtype=expected.dtype, generator=torch.Generator().manual_seed(9))
    expected_grads = torch.autograd.grad(expected, tensors, upstream, allow_unused=True)
    found = ttt_attention(*tensors, slots_N, pieces)
    found_grads = torch.autograd.grad(found, tensors, upstream)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    for grad, expected_grad in zip(found_grads, expected_grads, strict=True):
        want = torch.zeros_like(grad) if expected_grad is None else expected_grad
        torch.testing.assert_close(grad, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)], ids=["float32", "bfloat16"]
)
def test_holds_in_training_precision(dtype: torch.dtype, tolerance: float) -> None:
    """In float32 and bfloat16 it stays within that type's rounding of the float64 loop."""
    tensors, slots_N, starts = inputs(2, 4, 2)
    expected = naive(*tensors, slots_N, starts)
    upstream = torch.ones_like(expected)
    expected_grads = torch.autograd.grad(expected, tensors, upstream)
    low, _, _ = inputs(2, 4, 2, dtype)
    found = ttt_attention(*low, slots_N, pieces_of(slots_N, starts, 4, CPU))
    found_grads = torch.autograd.grad(found, low, upstream.to(dtype))
    assert found.dtype is dtype
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)
    for grad, want in zip(found_grads, expected_grads, strict=True):
        torch.testing.assert_close(grad.double(), want, rtol=4 * tolerance, atol=4 * tolerance)


def test_gradcheck() -> None:
    """Numerical differentiation agrees with the hand-written backward."""
    tensors, slots_N, starts = inputs(2, 2, 1)
    pieces = pieces_of(slots_N, starts, 2, CPU)
    assert torch.autograd.gradcheck(
        lambda q, k, v, later_k, later_v: ttt_attention(q, k, v, later_k, later_v, slots_N, pieces), tensors
    )


def test_pieces_end_with_their_document_and_see_no_later_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots 1, 2, 3 of a document of four tokens, none of one of one token, 6, 9, 10 of one of six.

    40 scores of two heads are 5 rows of the first document, 3 of the last; with 24 there are 3 and 2.
    """
    slots_N, starts = torch.tensor([1, 2, 3, 6, 9, 10]), (0, 4, 5, 11)
    monkeypatch.setitem(SCORES_AT_ONCE, "cpu", 40)
    assert pieces_of(slots_N, starts, 2, CPU) == [Piece(0, 3, 0, 4), Piece(3, 6, 5, 11)]
    monkeypatch.setitem(SCORES_AT_ONCE, "cpu", 24)
    expected = [Piece(0, 3, 0, 4), Piece(3, 5, 5, 10), Piece(5, 6, 5, 11)]
    assert pieces_of(slots_N, starts, 2, CPU) == expected

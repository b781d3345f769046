"""Muon against torch's own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from eagle.muon import Muon, orthogonalised


@pytest.mark.parametrize("shape", [(24, 40), (40, 24), (16, 16)])
def test_updates_are_torchs(shape: tuple[int, int]) -> None:
    """Three updates with decay leave the very weights and momentum that `torch.optim.Muon` leaves."""
    generator = torch.Generator().manual_seed(3)
    start = torch.randn(shape, generator=generator)
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    own = Muon([ours], lr=0.02, weight_decay=0.1, rank=0, world=1)
    known = torch.optim.Muon([theirs], lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for _ in range(3):
        ours.grad = torch.randn(shape, generator=generator)
        theirs.grad = ours.grad.clone()
        own.step()
        known.step()  # type: ignore[no-untyped-call]
    assert torch.equal(ours, theirs)
    assert torch.equal(own.state[ours]["momentum_buffer"], known.state[theirs]["momentum_buffer"])


def test_singular_values_come_near_one() -> None:
    """Whatever they were, from 0.05 to 5: Newton-Schulz leaves them between 0.6 and 1.3."""
    left, _ = torch.linalg.qr(torch.randn(32, 12, generator=torch.Generator().manual_seed(1)))
    right, _ = torch.linalg.qr(torch.randn(12, 12, generator=torch.Generator().manual_seed(2)))
    matrix = left @ torch.diag(torch.logspace(-1.3, 0.7, 12)) @ right
    values = torch.linalg.svdvals(orthogonalised(matrix.bfloat16()).float())
    assert values.min() > 0.6
    assert values.max() < 1.3


@pytest.mark.parametrize("shape", [(24, 40), (40, 24)])
def test_in_float32_an_update_is_exact_to_its_rounding(shape: tuple[int, int]) -> None:
    """Against the polynomial written out in float64; in bfloat16 the same update is a hundredth off."""
    start, gradient = torch.randn((2, *shape), generator=torch.Generator().manual_seed(5))
    x = gradient.double() / gradient.double().norm()
    for _ in range(5):
        x = 3.4445 * x - 4.7750 * (x @ x.T) @ x + 2.0315 * (x @ x.T) @ (x @ x.T) @ x
    expected = start.double() - 0.02 * 0.2 * 40**0.5 * x
    off = {}
    for dtype in (torch.float32, torch.bfloat16):
        matrix = nn.Parameter(start.clone())
        matrix.grad = gradient.clone()
        Muon([matrix], lr=0.02, weight_decay=0.0, rank=0, world=1, dtype=dtype).step()
        wrong = (matrix.detach().double() - expected).norm() / (start.double() - expected).norm()
        off[dtype] = float(wrong)
    assert off[torch.float32] < 1e-5
    assert 1e-3 < off[torch.bfloat16] < 3e-2


def test_the_half_of_a_matrix_is_something_else() -> None:
    """Why processes that keep parts gather the matrix first: of a part, the update would be another."""
    matrix = torch.randn(24, 40, generator=torch.Generator().manual_seed(4)).bfloat16()
    off = (orthogonalised(matrix)[:12] - orthogonalised(matrix[:12])).float().norm()
    assert off > 0.2 * orthogonalised(matrix)[:12].float().norm()

"""Muon: momentum, orthogonalised by Newton-Schulz, as `torch.optim.Muon` computes it, on one process or many.

torch's always orthogonalises in bfloat16. Here it is in the dtype that training computes in: float32 keeps a
float32 training reproducible to float32's rounding, and a CPU without bfloat16 in its instructions takes
several times as long for it.

The orthogonalisation takes a whole matrix: of a part of one it would be something else. With many processes
each does it for some of the matrices, and sends the others what came out; so it costs each of them less, and
the update is the one that a single process makes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn

from eagle.tensors import part_like, whole

MOMENTUM = 0.95
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
EPS = 1e-7
BUFFER = "momentum_buffer"


class Muon(torch.optim.Optimizer):
    """Over matrices, whole or FSDP2's parts; rates are scaled to match AdamW's.

    world: the processes that have the same matrices and make the same update. dtype: what it is computed in.
    """

    def __init__(
        self,
        matrices: Iterable[nn.Parameter],
        *,
        lr: float,
        weight_decay: float,
        rank: int,
        world: int,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        super().__init__(matrices, {"lr": lr, "weight_decay": weight_decay})
        self.rank, self.world, self.dtype = rank, world, dtype

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update of all matrices, as many at a time as there are processes."""
        with torch.no_grad():
            for group in self.param_groups:
                for low in range(0, len(group["params"]), self.world):
                    self._update(group["params"][low : low + self.world], group["lr"], group["weight_decay"])

    def _update(self, matrices: list[nn.Parameter], lr: float, weight_decay: float) -> None:
        """One update of at most a matrix a process."""
        updates = self._orthogonal([self._momentum(matrix) for matrix in matrices])
        for matrix, update in zip(matrices, updates, strict=True):
            matrix.mul_(1 - lr * weight_decay)
            matrix.add_(update, alpha=-lr * 0.2 * math.sqrt(max(matrix.shape)))

    def _momentum(self, matrix: nn.Parameter) -> torch.Tensor:
        """Nesterov's, in the dtype of the orthogonalisation."""
        state = self.state[matrix]
        if BUFFER not in state:
            state[BUFFER] = torch.zeros_like(matrix)
        state[BUFFER].lerp_(matrix.grad, 1 - MOMENTUM)
        return matrix.grad.lerp(state[BUFFER], MOMENTUM).to(self.dtype)  # type: ignore[union-attr]

    def _orthogonal(self, momenta: list[torch.Tensor]) -> list[torch.Tensor]:
        """Each matrix orthogonalised: by this process if it is its turn, else by another."""
        if self.world == 1:
            return [orthogonalised(momentum) for momentum in momenta]
        updates = []
        for turn, momentum in enumerate(momenta):
            full = whole(momentum)
            updates.append(orthogonalised(full) if turn == self.rank else torch.empty_like(full))
        for turn, update in enumerate(updates):
            dist.broadcast(update, turn)
        return [part_like(m, update) for m, update in zip(momenta, updates, strict=True)]


def orthogonalised(matrix: torch.Tensor) -> torch.Tensor:
    """`matrix`'s singular vectors with singular values near 1, in `matrix`'s dtype."""
    a, b, c = COEFFICIENTS
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / x.norm().clamp(min=EPS)
    for _ in range(ITERATIONS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.T if tall else x).contiguous()

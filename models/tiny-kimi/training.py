"""Training loop of the tiny verifier: Muon for the hidden matrices, AdamW for the rest, linear decay to zero.

A step is a few micro-batches of one length each, taken from a shuffled pool that was sorted by length:
little is padded and `torch.compile` sees only a handful of shapes.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from corpus import Row
from network import TinyKimi
from torch import Tensor
from torch.nn import functional

log = logging.getLogger(__name__)

LENGTHS = (64, 96, 128, 176, 256, 448)


@dataclass(frozen=True)
class Plan:
    """How long and how fast to train; `steps` makes a run repeatable, `minutes` bounds it by the clock."""

    minutes: float
    steps: int | None = None
    tokens_per_micro_batch: int = 4096
    micro_batches: int = 2
    muon_rate: float = 0.01
    adam_rate: float = 0.005
    weight_decay: float = 0.02
    warmup_steps: int = 60
    prompt_weight: float = 0.1
    balance_rate: float = 0.002
    save_every_minutes: float = 6.0


class Muon(torch.optim.Optimizer):
    """Momentum orthogonalized by Newton-Schulz steps, for matrices of one shape at once.

    `torch.optim.Muon` takes the 229 small matrices of this network one by one, four times as long.
    """

    def __init__(
        self, parameters: Iterable[Tensor], rate: float, momentum: float = 0.95, decay: float = 0.0
    ) -> None:
        super().__init__(parameters, {"lr": rate, "momentum": momentum, "weight_decay": decay})
        self.by_shape: dict[tuple[int, ...], list[Tensor]] = {}
        for parameter in self.param_groups[0]["params"]:
            self.by_shape.setdefault(tuple(parameter.shape), []).append(parameter)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One update; the rate is scaled as for AdamW (root mean square 0.2)."""
        group = self.param_groups[0]
        for shape, members in self.by_shape.items():
            gradients = torch.stack([member.grad for member in members if member.grad is not None])
            state = self.state[members[0]]
            momentum = state.setdefault("momentum", torch.zeros_like(gradients))
            momentum.lerp_(gradients, 1 - group["momentum"])
            update = orthogonal(gradients.lerp(momentum, group["momentum"])).to(gradients.dtype)
            rate = group["lr"] * 0.2 * max(shape) ** 0.5
            for member, change in zip(members, update, strict=True):
                member.mul_(1 - group["lr"] * group["weight_decay"]).add_(change, alpha=-rate)


def orthogonal(matrices: Tensor) -> Tensor:
    """Nearly orthogonal matrices with the singular vectors of the given ones (quintic Newton-Schulz)."""
    wide = matrices.bfloat16()
    tall = wide.shape[-2] > wide.shape[-1]
    wide = wide.mT if tall else wide
    wide = wide / (wide.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = wide @ wide.mT
        wide = 3.4445 * wide + (2.0315 * gram @ gram - 4.775 * gram) @ wide
    result: Tensor = wide.mT if tall else wide
    return result


# --- batches ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Batch:
    """Inputs, targets and the loss weight of every target."""

    inputs: Tensor
    targets: Tensor
    weights: Tensor


def collate(rows: list[Row], length: int, pad: int, prompt_weight: float) -> Batch:
    """Rows padded on the right to one length; targets inside the prompt weigh little."""
    tokens = torch.full((len(rows), length + 1), pad)
    weights = torch.zeros(len(rows), length)
    for i, row in enumerate(rows):
        size = len(row.tokens)
        tokens[i, :size] = torch.tensor(row.tokens)
        weights[i, : row.begin - 1] = prompt_weight
        weights[i, row.begin - 1 : size - 1] = 1.0
    return Batch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), weights)


def batches(rows: Iterator[Row], plan: Plan, pad: int, seed: int, pool_size: int = 6000) -> Iterator[Batch]:
    """Micro-batches of about the same number of tokens in random order."""
    rng = random.Random(f"batches {seed}")
    waiting: dict[int, list[Row]] = {length: [] for length in LENGTHS}
    while True:
        ready: list[Batch] = []
        for _ in range(pool_size):
            row = next(rows)
            length = next((limit for limit in LENGTHS if len(row.tokens) <= limit + 1), None)
            if length is None:
                continue
            waiting[length].append(row)
            if len(waiting[length]) == plan.tokens_per_micro_batch // length:
                ready.append(collate(waiting[length], length, pad, plan.prompt_weight))
                waiting[length] = []
        rng.shuffle(ready)
        yield from ready


# --- the loop -----------------------------------------------------------------------------------------------


def token_loss(states: Tensor, head: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted sum of the cross-entropy, and the share of the assistant's tokens predicted right."""
    logits = functional.linear(states, head).float().flatten(0, 1)
    each = functional.cross_entropy(logits, targets.flatten(), reduction="none")
    own = weights.flatten() > 0.5 * weights.max()
    hits = ((logits.detach().argmax(-1) == targets.flatten()) & own).sum()
    return (each * weights.flatten()).sum(), hits / own.sum()


def schedule(progress: float, step: int, warmup: int) -> float:
    """Factor of the learning rates: a short rise, then straight down to zero."""
    return min(1.0, (step + 1) / warmup) * max(0.0, 1.0 - progress)


def optimizers(model: TinyKimi, plan: Plan) -> tuple[Muon, torch.optim.AdamW]:
    """Muon for matrices between hidden states; AdamW for embedding, head, norms and the routers."""
    hidden = [
        parameter for name, parameter in model.model.layers.named_parameters()
        if parameter.ndim == 2 and not name.endswith("mlp.gate.weight")
    ]  # fmt: skip
    ids = {id(parameter) for parameter in hidden}
    rest = [parameter for parameter in model.parameters() if id(parameter) not in ids]
    muon = Muon(hidden, plan.muon_rate, decay=plan.weight_decay)
    return muon, torch.optim.AdamW(rest, plan.adam_rate, (0.9, 0.98), weight_decay=0.0, fused=True)


def balance(model: TinyKimi, loads: list[Tensor], rate: float) -> None:
    """DeepSeek-V3's rule: raise the choice bias of experts with less than the mean load, lower the others."""
    for mixture, load in zip(model.mixtures(), loads, strict=True):
        mixture.gate.e_score_correction_bias += rate * (load.mean() - load).sign()


class Trainer:
    """Holds all that a crash must not lose."""

    def __init__(self, model: TinyKimi, plan: Plan, progress_file: Path) -> None:
        self.model, self.plan, self.file = model, plan, progress_file
        self.optimizers = optimizers(model, plan)
        self.step, self.seconds, self.tokens = 0, 0.0, 0
        for layer in model.model.layers:
            layer.compile()
        self.loss: Callable[..., tuple[Tensor, Tensor]] = torch.compile(token_loss)

    def save(self) -> None:
        """Write the state aside and put it in place."""
        states = [optimizer.state_dict() for optimizer in self.optimizers]
        aside = self.file.with_suffix(".tmp")
        numbers = {"step": self.step, "seconds": self.seconds, "tokens": self.tokens}
        torch.save({"model": self.model.state_dict(), "optimizers": states, **numbers}, aside)
        aside.replace(self.file)

    def resume(self) -> None:
        """Go on from a saved state if there is one."""
        if not self.file.exists():
            return
        state = torch.load(self.file, weights_only=True)
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.step, self.seconds, self.tokens = state["step"], state["seconds"], state["tokens"]
        log.info("resumed at step %d", self.step)

    def progress(self) -> float:
        """Share of the run that is done."""
        if self.plan.steps is not None:
            return self.step / self.plan.steps
        return self.seconds / (60 * self.plan.minutes)

    def one_step(self, source: Iterator[Batch]) -> tuple[float, float]:
        """Gradients of a few micro-batches, then one update; gives the loss and the share predicted right."""
        group = [next(source) for _ in range(self.plan.micro_batches)]
        total = float(sum(batch.weights.sum() for batch in group))
        loss_sum, right, loads = 0.0, 0.0, None
        for batch in group:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                states, load = self.model(batch.inputs)
                loss, hits = self.loss(
                    states, self.model.lm_head.weight, batch.targets, batch.weights / total
                )
            torch.autograd.backward(loss)
            loads = load if loads is None else [old + new for old, new in zip(loads, load, strict=True)]
            loss_sum, right = loss_sum + float(loss.detach()), right + float(hits) / len(group)
        factor = schedule(self.progress(), self.step, self.plan.warmup_steps)
        for optimizer, rate in zip(self.optimizers, (self.plan.muon_rate, self.plan.adam_rate), strict=True):
            optimizer.param_groups[0]["lr"] = rate * factor
            optimizer.step()
            optimizer.zero_grad()
        balance(self.model, loads or [], self.plan.balance_rate * factor)
        self.tokens += sum(batch.inputs.numel() for batch in group)
        self.step += 1
        return loss_sum, right

    def run(self, source: Iterator[Batch], keep: Callable[[TinyKimi], None]) -> None:
        """Train to the end of the plan; `keep` writes a usable checkpoint now and then."""
        started, before, saved = time.monotonic(), self.seconds, self.seconds
        first_tokens = self.tokens
        while self.progress() < 1.0:
            loss, right = self.one_step(source)
            self.seconds = before + time.monotonic() - started
            if self.step % 20 == 0:
                pace = (self.tokens - first_tokens) / (self.seconds - before)
                log.info("step %d %4.1f%% loss %.4f right %.4f %.0f tokens/s",
                         self.step, 100 * self.progress(), loss, right, pace)  # fmt: skip
            if self.seconds - saved > 60 * self.plan.save_every_minutes:
                saved = self.seconds
                self.save()
                keep(self.model)
        self.save()
        keep(self.model)

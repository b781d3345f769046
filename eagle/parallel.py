"""Training on many processes: who they are, what they agree on, and torch's own engines.

`torchrun` starts the processes and tells each its place in the environment. DDP keeps everything on each of
them; FSDP2 keeps a part of the weights, gradients and optimizer state on each, and gathers the weights for
the length of an update's passes. Gradients are summed, never averaged: an update's loss is a sum over all
its batches, and every batch brings its own part. Nothing is sent but tensors of numbers.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from eagle.feed import Rank
from synthgen.corpus.console import console
from synthgen.corpus.draft_sections import TrainConfig
from synthgen.errors import ArtifactError, ConfigError, SynthgenError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket, Store

COLLECTIVE_S = 1800.0
"""A process that the others have waited for so long is lost."""
BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
CLAIMS = "synthgen/errors"
"""A counter that the processes share: the one whose error comes first says it, the others end silently."""


@dataclass(frozen=True, slots=True)
class World:
    """The processes of a training, seen from one of them, and its device."""

    rank: Rank
    device: torch.device

    @property
    def is_first(self) -> bool:
        """Whether this process writes and speaks for all."""
        return self.rank.number == 0

    def sums(self, values: Sequence[float]) -> list[float]:
        """Each value summed over all processes."""
        return self._reduced(values, dist.ReduceOp.SUM)

    def any(self, flag: bool) -> bool:
        """Whether any process says so."""
        return self._reduced([flag], dist.ReduceOp.MAX)[0] > 0

    def wait(self) -> None:
        """Go on when all processes have come here."""
        self.any(False)

    def require_same_step(self, step: int) -> None:
        """Raise ArtifactError unless all processes go on from the same step."""
        last, minus_first = self._reduced([step, -step], dist.ReduceOp.MAX)
        if last != -minus_first:
            raise ArtifactError(
                f"one process finds a checkpoint of step {-minus_first:.0f}, another of step {last:.0f}: "
                f"run_dir must lie on a disk that all nodes share"
            )

    def _reduced(self, values: Sequence[float], how: dist.ReduceOp.RedOpType) -> list[float]:
        if self.rank.world == 1:
            return list(values)
        packed = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(packed, how)
        reduced: list[float] = packed.tolist()
        return reduced


@contextlib.contextmanager
def joined(config: TrainConfig, stall_s: float = 0.0) -> Iterator[World]:
    """Join the processes that torchrun started, and leave them at the end; alone where it started none.

    stall_s: for how long a process may keep the others waiting for its data.

    An error of the house's tree is said by one process, whichever has it first; only the first process
    says anything else. Raises ConfigError when this machine hasn't the configured device.
    """
    number, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if "RANK" not in os.environ or world == 1:
        yield World(Rank(), device_of(config))
        return
    console.quiet = number > 0
    store, _, _ = next(rendezvous("env://"))
    try:
        with _said_once(store):  # inside: what is wrong is claimed before the others find this process gone
            device = device_of(config, int(os.environ.get("LOCAL_RANK", "0")))
            if device.type == "cuda":
                torch.cuda.set_device(device)
            dist.init_process_group(
                BACKENDS[device.type],
                store=store,
                rank=number,
                world_size=world,
                timeout=datetime.timedelta(seconds=COLLECTIVE_S + stall_s),
            )
            yield World(Rank(number, world), device)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


@contextlib.contextmanager
def _said_once(store: Store) -> Iterator[None]:
    try:
        yield
    except (SynthgenError, OSError):
        console.quiet = _claims(store, 1) > 1
        raise
    except RuntimeError:  # as a collective raises it when another process has ended
        if _claims(store, 0) == 0:
            raise
        raise SystemExit(SynthgenError.exit_code) from None


def _claims(store: Store, own: int) -> int:
    """How many errors there are, with `own` more. Where torchrun doesn't keep the store, the first process
    does: when it can't be asked, that process has ended and has said why."""
    try:
        return store.add(CLAIMS, own)
    except RuntimeError:
        return own + 1


def device_of(config: TrainConfig, local: int | None = None) -> torch.device:
    """The configured device, for process number `local` of this machine.

    Raises ConfigError when this machine hasn't it.
    """
    if config.device == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError(
            "train.device is cuda, but torch finds no CUDA device here: set it to cpu, or run where one is"
        )
    if local is not None and local >= torch.cuda.device_count():
        raise ConfigError(
            f"process {local} of this machine has no GPU: there are {torch.cuda.device_count()}; lower "
            f"torchrun's --nproc-per-node (or train.processes)"
        )
    return torch.device("cuda") if local is None else torch.device("cuda", local)


def shared(module: nn.Module, world: World, config: TrainConfig, dtype: torch.dtype) -> nn.Module:
    """`module` under `config.parallel`; alone, as it is. `dtype`: what it computes in.

    Under FSDP2 its parameters become the parts that this process keeps, and are gathered in `dtype`.
    """
    if world.rank.world == 1:
        return module
    if config.parallel == "ddp":
        engine = DistributedDataParallel(module, gradient_as_bucket_view=True)
        engine.register_comm_hook(None, lambda _, bucket: _summed(bucket))
        return engine
    fsdp = importlib.import_module("torch.distributed.fsdp")  # a second of CPU time
    sharded = fsdp.fully_shard(
        module,
        mesh=init_device_mesh(world.device.type, (world.rank.world,)),
        reshard_after_forward=False,
        mp_policy=fsdp.MixedPrecisionPolicy(
            param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False
        ),
    )
    sharded.set_force_sum_reduction_for_comms(True)
    sharded.set_gradient_divide_factor(1.0)
    return module


def _summed(bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    reducing = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    summed: torch.futures.Future[torch.Tensor] = reducing.then(lambda future: future.value()[0])
    return summed


def let_go(module: nn.Module) -> None:
    """Keep only this process's parts of the weights again, after passes that no backward followed: FSDP2
    leaves the gathered ones, in what they compute in, as the module's parameters."""
    if hasattr(module, "reshard"):
        module.reshard()  # type: ignore[operator]


@contextlib.contextmanager
def accumulating(module: nn.Module, *, last: bool) -> Iterator[None]:
    """A pass that adds to this process's gradients; the `last` of an update sums them over all processes.

    So an update costs one gathering and one summing, however many batches a process has.
    """
    with contextlib.ExitStack() as stack:
        if isinstance(module, DistributedDataParallel) and not last:
            stack.enter_context(module.no_sync())
        elif hasattr(module, "set_is_last_backward"):  # FSDP2
            module.set_requires_gradient_sync(last)  # type: ignore[operator]
            module.set_reshard_after_backward(last)  # type: ignore[operator]
            module.set_is_last_backward(last)  # type: ignore[operator]
        yield

"""One optimizer step without weights, states or a GPU: what it takes of memory and computation.

The draft is built on torch's meta device, where tensors have shapes and no values, and unrolled forward
and backward at the run's batch_tokens and ttt_steps. Everything is "at most": every token is supervised,
documents are as long as they may be.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from rich.box import SIMPLE_HEAD
from rich.table import Table
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from eagle.attention import Starts, pieces_of
from eagle.draft import Draft, unroll
from eagle.draft_files import HEAD
from eagle.loss import CHUNK_LOGITS
from eagle.muon import ITERATIONS, Muon
from eagle.optim import Optimizers, build_optimizers
from eagle.tensors import DTYPES
from synthgen.corpus.config import RunConfig
from synthgen.corpus.console import tables
from synthgen.corpus.files import in_units
from synthgen.corpus.records import Record
from synthgen.corpus.verifier_config import VerifierShape, state_bytes_per_token
from synthgen.corpus.verifier_files import shape_at_hand
from synthgen.errors import ConfigError

META = torch.device("meta")
MASTER_BYTES = 4
STATE_BYTES = 2
"""A batch's states are bfloat16, however they are stored."""
LOGIT_COPIES = 3
"""In float32 while a chunk's loss is taken: logits, probabilities, and one in between."""
SCORE_COPIES = 2
"""In float32 while attention's gradients are taken: probabilities, and their gradients."""
ADAM_MOMENTS, MUON_MOMENTS = 2, 1


class Sizes(Record, frozen=True, kw_only=True):
    """What the verifier gives: its hidden size, and its vocabulary where that is known."""

    hidden_size: int
    vocab_size: int | None
    tied: bool


class DryRun(Record, frozen=True, kw_only=True):
    """What one step takes. Bytes are of one process, FLOPs of one step; a multiply-add is two."""

    hidden_size: int
    vocab_size: int | None
    """The verifier's; None when neither its config.json nor plan.vocab_size says it."""
    step_tokens: int
    ttt_steps: int
    parameters: dict[str, int]
    """By module, in the order of the checkpoint."""
    trained: int
    frozen: int
    memory_bytes: dict[str, int]
    flops: dict[str, int]
    states_bytes: int
    """Read for one step: from disk, as they are stored; with train.stream a server makes them meanwhile."""

    @property
    def total_bytes(self) -> int:
        """All parts at once."""
        return sum(self.memory_bytes.values())


def dry_run(config: RunConfig) -> DryRun:
    """Size one step of `config`; nothing is loaded, nothing written.

    Raises ConfigError when neither the verifier's config.json nor `plan` gives the hidden size.
    """
    sizes = sizes_of(config)
    with META:
        draft = Draft(config.draft, sizes.hidden_size, config.vocab.size)
    draft.lm_head.weight.requires_grad_(config.train.head == "trained")
    optimizers = build_optimizers(draft, config.train)
    unrolled, activation_bytes = unroll_costs(
        draft, starts_of(config), DTYPES[config.train.compute_dtype], config.train.ttt_steps
    )
    parameters = count_parameters(draft)
    trained = sum(p.numel() for p in optimizers.named.values())
    batches = config.train.batches_per_step
    passes = {name: count * batches for name, count in (unrolled | loss_flops(config, sizes)).items()}
    stored = state_bytes_per_token(sizes.hidden_size, config.extract.states_dtype)
    return DryRun(
        hidden_size=sizes.hidden_size,
        vocab_size=sizes.vocab_size,
        step_tokens=batches * config.train.batch_tokens,
        ttt_steps=config.train.ttt_steps,
        parameters=parameters,
        trained=trained,
        frozen=sum(parameters.values()) - trained,
        memory_bytes=memory_of(config, sizes, draft, optimizers, activation_bytes),
        flops=passes | {"optimizer": optimizer_flops(optimizers)},
        states_bytes=batches * config.train.batch_tokens * stored,
    )


def sizes_of(config: RunConfig) -> Sizes:
    """The verifier's sizes, from its config.json when that is here, otherwise from `plan`."""
    shape: VerifierShape | None = shape_at_hand(config.verifier)
    if shape is not None:
        return Sizes(
            hidden_size=shape.hidden_size,
            vocab_size=shape.vocab_size,
            tied=bool(shape.tie_word_embeddings),
        )
    if config.plan.hidden_size is None:
        raise ConfigError(
            f"the config.json of verifier.model {config.verifier.model} isn't here and plan.hidden_size is "
            f"null: set one of them, or the draft can't be sized"
        )
    return Sizes(hidden_size=config.plan.hidden_size, vocab_size=config.plan.vocab_size, tied=False)


def starts_of(config: RunConfig) -> Starts:
    """A full batch of documents of train.max_seq_tokens, the last one shorter where they don't fit."""
    total = config.train.batch_tokens
    return (*range(0, total, config.train.max_seq_tokens), total)


def count_parameters(draft: Draft) -> dict[str, int]:
    """Parameters of each module that has some, by its name without `.weight`."""
    return {name.removesuffix(".weight"): p.numel() for name, p in draft.named_parameters()}


def unroll_costs(draft: Draft, starts: Starts, dtype: torch.dtype, steps: int) -> tuple[dict[str, int], int]:
    """FLOPs of the unrolled steps as torch counts them, and the bytes that they keep for the backward.

    The casts of the weights are not among those bytes.
    """
    hidden_size, tokens = len(draft.norm.weight), starts[-1]
    kept: dict[int, torch.UntypedStorage] = {}
    masters = {p.untyped_storage()._cdata for p in draft.parameters()}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in masters:
            kept[storage._cdata] = storage
        return tensor

    aux_T3H = torch.empty(tokens, 3, hidden_size, dtype=dtype, device=META)
    embeddings_TH = torch.empty(tokens, hidden_size, dtype=dtype, device=META)
    slots_N = torch.arange(tokens)
    with FlopCounterMode(display=False) as counter:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            outputs_SNH = unroll(draft, dtype, aux_T3H, embeddings_TH, slots_N, starts, steps)
        forward = counter.get_total_flops()
        kept_bytes = sum(storage.nbytes() for storage in kept.values())
        outputs_SNH.backward(torch.empty_like(outputs_SNH))  # type: ignore[no-untyped-call]
        backward = counter.get_total_flops() - forward
    flops = {"unroll forward": forward, "unroll backward": backward}
    return flops, kept_bytes - cast_bytes(draft, dtype)


def cast_bytes(draft: Draft, dtype: torch.dtype) -> int:
    """The weights of all but the head in `dtype`, where that isn't the masters' own."""
    if dtype is torch.float32:
        return 0
    return dtype.itemsize * sum(p.numel() for name, p in draft.named_parameters() if name != HEAD)


def loss_flops(config: RunConfig, sizes: Sizes) -> dict[str, int]:
    """FLOPs outside the unroll: the verifier's logits at P targets, and the draft's at each of S steps.

    2·P·H·V for the verifier; 2·S·P·H·K for the draft's logits, as much again for the gradient of their
    inputs, and once more for that of the head when it is trained.
    """
    targets = config.train.batch_tokens * sizes.hidden_size
    passes = 3 if config.train.head == "trained" else 2
    drafted = passes * 2 * config.train.ttt_steps * targets * config.vocab.size
    verifier = {} if sizes.vocab_size is None else {"verifier logits": 2 * targets * sizes.vocab_size}
    return verifier | {"draft logits and gradients": drafted}


def optimizer_flops(optimizers: Optimizers) -> int:
    """Matrix products of Muon's orthogonalisation; AdamW has none.

    For a matrix of m × n, m ≤ n, each of five steps takes X·Xᵀ, its square and a product with X:
    4·m²·n + 2·m³.
    """
    shapes = [sorted(p.shape) for p in _of_kind(optimizers, Muon)]
    return sum(ITERATIONS * (4 * m * m * n + 2 * m**3) for m, n in shapes)


def memory_of(
    config: RunConfig, sizes: Sizes, draft: Draft, optimizers: Optimizers, activation_bytes: int
) -> dict[str, int]:
    """Bytes by part. The verifier's are left out when its vocabulary isn't known."""
    train, hidden = config.train, sizes.hidden_size
    dtype = DTYPES[train.compute_dtype]
    trained = sum(p.numel() for p in optimizers.named.values())
    adam = sum(p.numel() for p in _of_kind(optimizers, torch.optim.AdamW))
    head = config.vocab.size * hidden
    rows = 0 if sizes.vocab_size is None else sizes.vocab_size * (1 if sizes.tied else 2)
    return {
        "master weights": MASTER_BYTES * sum(p.numel() for p in draft.parameters()),
        "gradients": MASTER_BYTES * trained,
        "optimizer state": MASTER_BYTES * (ADAM_MOMENTS * adam + MUON_MOMENTS * (trained - adam)),
        f"{train.compute_dtype} casts": cast_bytes(draft, dtype)
        + (0 if dtype is torch.float32 else head * dtype.itemsize),
        "verifier embedding and head": rows * hidden * dtype.itemsize,
        "activations": activation_bytes,
        "attention": _score_bytes(config),
        "loss": _loss_bytes(config, sizes),
        "batch": train.batch_tokens * hidden * 4 * STATE_BYTES,
    }


def _score_bytes(config: RunConfig) -> int:
    """The most scores that exist at once, every token being a slot."""
    heads, device = config.draft.num_attention_heads, torch.device(config.train.device)
    pieces = pieces_of(torch.arange(config.train.batch_tokens), starts_of(config), heads, device)
    return SCORE_COPIES * MASTER_BYTES * heads * max((p.high - p.low) * (p.end - p.start) for p in pieces)


def _loss_bytes(config: RunConfig, sizes: Sizes) -> int:
    """Outputs and their gradient, the head's gradient, the verifier's pruned logits, one chunk of logits."""
    train, item = config.train, DTYPES[config.train.compute_dtype].itemsize
    outputs = 2 * train.ttt_steps * train.batch_tokens * sizes.hidden_size * item
    head = MASTER_BYTES * config.vocab.size * sizes.hidden_size if train.head == "trained" else 0
    pruned = train.batch_tokens * config.vocab.size * item
    return outputs + head + pruned + LOGIT_COPIES * MASTER_BYTES * CHUNK_LOGITS[train.device]


def _of_kind(optimizers: Optimizers, kind: type[torch.optim.Optimizer]) -> Iterable[nn.Parameter]:
    parts = [part for part in optimizers.parts if isinstance(part, kind)]
    return [p for part in parts for group in part.param_groups for p in group["params"]]


def print_dry_run(found: DryRun) -> None:
    """Three tables, at most 100 columns wide."""
    parameters = {name: f"{count:,}" for name, count in found.parameters.items()}
    memory = {name: in_units(size) for name, size in found.memory_bytes.items()}
    flops = {name: f"{count / 1e12:,.2f} TFLOP" for name, count in found.flops.items()}
    whole = sum(found.flops.values()) / 1e12
    _print_table(
        f"parameters: {found.trained + found.frozen:,}, {found.trained:,} trained, {found.frozen:,} frozen",
        parameters,
    )
    _print_table(f"memory of one process: at most {in_units(found.total_bytes)}", memory)
    _print_table(
        f"a step of {found.step_tokens:,} tokens, ttt_steps {found.ttt_steps}: at most {whole:,.2f} TFLOP, "
        f"{in_units(found.states_bytes)} of states read",
        flops,
    )
    if found.vocab_size is None:
        tables().print(
            "the verifier's embedding, head and logits are not counted: its config.json isn't here, and "
            "plan.vocab_size is null"
        )


def _print_table(title: str, rows: dict[str, str]) -> None:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_header=False)
    table.add_column("what", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    for row in rows.items():
        table.add_row(*row)
    out = tables()
    out.print(title)
    out.print(table)

"""The sections of a run's YAML that the draft's stages read: states, vocabulary, training, acceptance."""

from __future__ import annotations

import math
from typing import Literal

from synthgen.corpus.sections import Section, positive


class ExtractConfig(Section, frozen=True, kw_only=True):
    """The verifier's hidden states that the draft is trained on."""

    aux_layers: tuple[int, int, int]
    """vLLM's ids: k is the state before layer index k. Kimi-K2.5: 2, 30, 58."""
    max_seq_tokens: int
    """Samples are cut to this many tokens."""
    shard_tokens: int
    """Tokens in one file of states."""
    concurrency: int
    states_dtype: Literal["bfloat16", "float8_e4m3fn"]
    """How states are stored; float8 takes half the bytes, with a scale for each token and tap."""
    final_states: Literal["all", "supervised"]
    """Where the final state is kept: at all tokens, or only where a supervised one follows."""

    def __post_init__(self) -> None:
        positive(self, "max_seq_tokens", "shard_tokens", "concurrency")
        if not 0 < self.aux_layers[0] < self.aux_layers[1] < self.aux_layers[2]:
            raise ValueError(f"aux_layers {list(self.aux_layers)} must be positive and rising")


class VocabConfig(Section, frozen=True, kw_only=True):
    """The draft's vocabulary: the verifier's tokens that the supervised text uses most."""

    size: int

    def __post_init__(self) -> None:
        positive(self, "size")


class DraftConfig(Section, frozen=True, kw_only=True):
    """The draft: one Llama decoder layer on the verifier's hidden size."""

    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rope_theta: float
    max_position_embeddings: int
    rms_norm_eps: float
    norm_before_residual: bool
    """Whether the residual starts after the hidden norm (speculators) or before it (EAGLE-3)."""
    fc_norm: bool
    """EAGLE-3.1: an RMSNorm for each aux state before `fc`."""
    norm_output: bool
    """EAGLE-3.1: the next step is fed the state after the final norm instead of before it."""

    def __post_init__(self) -> None:
        positive(self, "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads {self.num_attention_heads} is no multiple of num_key_value_heads "
                f"{self.num_key_value_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} is odd: rotary embedding turns pairs")


class SpanWeights(Section, frozen=True, kw_only=True):
    """What a supervised token weighs in the loss, by the kind of its span."""

    thinking: float
    response: float
    tool: float

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not 0 <= (weight := getattr(self, name)) < math.inf:
                raise ValueError(f"{name} is {weight}, expected 0 or more")
        if self.thinking == self.response == self.tool == 0:
            raise ValueError("thinking, response and tool are all 0: nothing would be learned")


class TrainConfig(Section, frozen=True, kw_only=True):
    """EAGLE-3 training."""

    device: Literal["cpu", "cuda"]
    compute_dtype: Literal["bfloat16", "float32"]
    """Weights are float32 masters whatever this is."""
    epochs: int
    batch_tokens: int
    """Tokens packed into one batch, the memory of one forward and backward pass."""
    batches_per_step: int
    """Batches in one update, over all processes; a multiple of their number. So what is learned doesn't
    depend on how many there are."""
    max_seq_tokens: int
    """A longer sample is cut; no more than batch_tokens."""
    ttt_steps: int
    """Training-time-test steps; step s is trained on what serving sees at draft position s."""
    ttt_decay: float
    """Weight of step s is ttt_decay ** s, normalised to sum 1."""
    span_weights: SpanWeights
    optimizer: Literal["muon", "adamw"]
    """muon: Muon for the layer's matrices and AdamW for the rest."""
    learning_rate: float
    adamw_learning_rate: float
    """For what Muon does not take; unused with adamw."""
    weight_decay: float
    warmup_fraction: float
    """Part of the steps over which the rate rises; then it falls linearly to zero."""
    grad_clip_norm: float
    head: Literal["trained", "frozen"]
    """The draft head starts as the verifier's rows; frozen keeps it there."""
    checkpoint_steps: int
    """Steps between checkpoints; the last step always has one."""
    keep_checkpoints: int
    """The newest so many are kept, and besides them the one that validated best."""
    validate_steps: int
    """Steps between validations on the samples that are held out, if mix.heldout_fraction leaves any; the
    last step always has one."""
    patience: int | None
    """Validations in a row without a new best acceptance length after which training ends; null: never."""
    log_steps: int
    trackers: tuple[Literal["tensorboard", "trackio", "wandb"], ...]
    """Where the log's numbers go besides the log: tensorboard writes draft/tensorboard; wandb stays offline
    unless WANDB_MODE says otherwise."""

    def __post_init__(self) -> None:
        positive(
            self,
            "epochs",
            "batch_tokens",
            "batches_per_step",
            "max_seq_tokens",
            "ttt_steps",
            "ttt_decay",
            "learning_rate",
            "grad_clip_norm",
            "checkpoint_steps",
            "keep_checkpoints",
            "validate_steps",
            "log_steps",
        )
        if self.patience is not None:
            positive(self, "patience")
        if len(set(self.trackers)) < len(self.trackers):
            raise ValueError(f"trackers {list(self.trackers)} has one twice")
        if not 0 <= self.warmup_fraction < 1:
            raise ValueError(f"warmup_fraction {self.warmup_fraction} is not in [0, 1)")
        if self.max_seq_tokens > self.batch_tokens:
            raise ValueError(
                f"max_seq_tokens {self.max_seq_tokens} is more than batch_tokens {self.batch_tokens}: "
                f"a sample must fit in a batch"
            )


class AcceptConfig(Section, frozen=True, kw_only=True):
    """The live measurement of the draft: greedy, on the held-out prompts."""

    num_draft_tokens: int
    max_tokens: int
    prompts: int
    """Held-out prompts for the acceptance length."""
    concurrency: int
    """Requests in flight while acceptance is counted."""
    single_prompts: int
    """Prompts sent one at a time to compare outputs and speed with and without the draft."""
    rounds: int
    """Times the speed comparison is repeated; servers take turns."""
    untrained: bool
    """Whether the same draft before training is measured too."""
    servers_at_once: bool
    """Whether all servers fit beside each other; false starts one after the other."""

    def __post_init__(self) -> None:
        positive(self, "num_draft_tokens", "max_tokens", "prompts", "concurrency", "single_prompts", "rounds")

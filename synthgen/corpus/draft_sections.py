"""The sections of a run's YAML that the draft's stages read: states, vocabulary, training, acceptance."""

from __future__ import annotations

import math
from typing import Literal

from synthgen.corpus.sections import Section, positive


class ExtractConfig(Section, frozen=True, kw_only=True):
    """The verifier's hidden states that the draft is trained on."""

    backend: Literal["vllm", "transformers"]
    """What computes states that did not come with the replies: a capturing server, or transformers in the
    process itself, for a verifier that fits beside it. Dtype and device are `server`'s either way."""
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
    from_draft: str | None
    """A draft whose vocabulary is kept, in place of choosing one; `size` is then that draft's."""

    def __post_init__(self) -> None:
        positive(self, "size")


class YarnScaling(Section, frozen=True, kw_only=True):
    """YaRN (arXiv 2309.00071), as vLLM applies it to Llama."""

    rope_type: Literal["yarn"]
    factor: float
    """How many times longer the context is than `original_max_position_embeddings`."""
    original_max_position_embeddings: int
    beta_fast: float
    """Dimensions that turn more often within the original context keep their frequency. The paper's: 32."""
    beta_slow: float
    """Those that turn less often are slowed down by `factor`; between, it is blended. The paper's: 1."""
    attention_factor: float | None
    """What cos and sin are multiplied with; null is the paper's 0.1 ln(factor) + 1."""

    def __post_init__(self) -> None:
        positive(self, "factor", "original_max_position_embeddings", "beta_slow")
        if self.factor < 1:
            raise ValueError(f"factor {self.factor} is less than 1: YaRN only lengthens a context")
        if self.beta_fast <= self.beta_slow:
            raise ValueError(f"beta_fast {self.beta_fast} must be more than beta_slow {self.beta_slow}")
        if self.attention_factor is not None:
            positive(self, "attention_factor")


class DraftConfig(Section, frozen=True, kw_only=True):
    """The draft: one Llama decoder layer on the verifier's hidden size."""

    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rope_theta: float
    rope_scaling: YarnScaling | None
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
        if (rope := self.rope_scaling) is not None:
            reach = rope.factor * rope.original_max_position_embeddings
            if self.max_position_embeddings > reach:
                raise ValueError(
                    f"max_position_embeddings {self.max_position_embeddings} is more than rope_scaling's "
                    f"factor {rope.factor} x original_max_position_embeddings "
                    f"{rope.original_max_position_embeddings}: vLLM turns no further position"
                )


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

    init_from: str | None
    """A draft that training goes on from: a directory or .safetensors file, see eagle/draft_files.py; null
    begins with a fresh one."""
    device: Literal["cpu", "cuda"]
    compute_dtype: Literal["bfloat16", "float32"]
    """Of all products, Muon's too; weights are float32 masters whatever this is. A CPU that has no bfloat16
    in its instructions (AMX, AVX512-BF16) is several times as fast in float32."""
    epochs: int
    batch_tokens: int
    """Tokens packed into one batch, the memory of one forward and backward pass."""
    batches_per_step: int
    """Batches in one update, over all processes; a multiple of their number. So what is learned doesn't
    depend on how many there are."""
    processes: int
    """Processes that `synthgen run` starts for training, one a GPU; `eagle train` takes as many as torchrun
    starts."""
    parallel: Literal["ddp", "fsdp"]
    """With many processes: ddp keeps the draft and its optimizer state whole on each, fsdp a part on each."""
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
    """The draft head starts as the verifier's rows, or as init_from's; frozen keeps it there."""
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
    stream: bool
    """Whether a capturing server makes the hidden states while they are trained on, anew in each epoch, and
    not `eagle extract` all of them before: then the disk need not hold them."""
    stream_spool_mib: int
    """Room for streamed states, in MiB, for each process: those asked for, in the spool and in memory, until
    they are trained on. While a sample is read or a batch packed, its states are there twice."""
    trackers: tuple[Literal["tensorboard", "trackio", "wandb"], ...]
    """Where the log's numbers go besides the log: tensorboard writes draft/tensorboard; wandb stays offline
    unless WANDB_MODE says otherwise."""

    def __post_init__(self) -> None:
        positive(
            self,
            "epochs",
            "batch_tokens",
            "batches_per_step",
            "processes",
            "max_seq_tokens",
            "ttt_steps",
            "ttt_decay",
            "learning_rate",
            "grad_clip_norm",
            "checkpoint_steps",
            "keep_checkpoints",
            "validate_steps",
            "log_steps",
            "stream_spool_mib",
        )
        if self.batches_per_step % self.processes:
            raise ValueError(
                f"batches_per_step {self.batches_per_step} is no multiple of processes {self.processes}"
            )
        if self.patience is not None:
            positive(self, "patience")
            if self.stream:
                raise ValueError(
                    f"patience {self.patience} and stream can't go together: streamed states are never "
                    f"validated on: set patience to null, or stream to false"
                )
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
    """The measurement of the draft: greedy, on the held-out prompts."""

    num_draft_tokens: tuple[int, ...]
    """Draft tokens of the servers that acceptance is counted on, one server each; with the first, speed is
    measured. Lengths for fewer follow from the server that drafts the next more."""
    max_tokens: int
    prompts: int
    """Held-out prompts for the acceptance length."""
    concurrency: int
    """Requests in flight while acceptance is counted."""
    single_prompts: int
    """Of these, the prompts that outputs and speed are compared on, with and without the draft."""
    concurrencies: tuple[int, ...]
    """Requests in flight while they are compared, rising. The first is 1: greedy replies must be the same
    there."""
    rounds: int
    """Times the comparison is repeated; servers take turns."""
    untrained: bool
    """Whether the same draft before training is measured too."""
    servers_at_once: bool
    """Whether all servers fit beside each other; false starts one after the other."""
    offline_replies: bool
    """Whether a capturing server, one more start, gives the states of the counted replies, so that the draft
    is judged offline on the same tokens."""

    def __post_init__(self) -> None:
        positive(self, "max_tokens", "prompts", "concurrency", "single_prompts", "rounds")
        counts = self.num_draft_tokens
        if not counts or min(counts) < 1 or len(set(counts)) < len(counts):
            raise ValueError(f"num_draft_tokens {list(counts)} must be one or more, and all different")
        if self.concurrencies[:1] != (1,) or list(self.concurrencies) != sorted(set(self.concurrencies)):
            raise ValueError(f"concurrencies {list(self.concurrencies)} must rise and begin with 1")

"""The sections of a run's YAML, as frozen types: every key, with its unit and what it does.

Every key is required, so that the file shows the whole run. Paths are relative to the directory the
command is run in. Values of one section that can't go together are refused here.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every section of the YAML."""


class VerifierConfig(Section, frozen=True, kw_only=True):
    """The model that is served, whose tokens and hidden states the draft learns."""

    model: str
    """Directory, or hub id, as vLLM takes it."""
    revision: str | None
    """Hub revision; null for a directory."""
    served_name: str
    """The name under which requests ask for it."""
    think_end: str | None
    """The one token that closes thinking (`</think>`); null for a model that doesn't think."""
    tool_section: str | None
    """The one token that opens the tool-call section; null for a model without."""
    trust_remote_code: bool
    """Whether vLLM may run code that ships with the checkpoint. Nothing else ever does."""


OnBadRow = Literal["refuse", "skip"]


class PromptsConfig(Section, frozen=True, kw_only=True):
    """Which prompts are sent."""

    files: tuple[str, ...]
    """JSONL, Parquet (.parquet) or CSV (.csv) files; `synthgen prompts` shows what is understood of them."""
    field: str | None
    """The column that holds the prompt, as text or messages; null finds it by the file's first row."""
    on_bad_row: OnBadRow
    """refuse: a row that gives no prompt is an error before anything is sent; skip: it is left out."""
    limit: int | None
    """At most this many prompts become traces; null takes all that are not held out."""
    heldout: int
    """This many prompts are kept from the corpus, chosen by hash, for the acceptance."""

    def __post_init__(self) -> None:
        _positive(self, "heldout")
        if self.limit is not None:
            _positive(self, "limit")
        if not self.files:
            raise ValueError("files is empty: name at least one file of prompts")


class ServerConfig(Section, frozen=True, kw_only=True):
    """A vLLM that stages start for themselves, unless `base_urls` names some that run already."""

    base_urls: tuple[str, ...]
    """For instance [http://127.0.0.1:8000/v1]; several share the requests; empty starts one."""
    api_key_env: str
    """Name of the environment variable that holds the key, if the server wants one."""
    host: str
    port: int
    """First port; a stage with several servers uses the ones after it."""
    device: Literal["cpu", "cuda"]
    dtype: Literal["bfloat16", "float16", "float32", "auto"]
    max_model_len_tokens: int
    max_num_seqs: int
    """Requests that vLLM runs at once (--max-num-seqs)."""
    max_num_batched_tokens: int
    """Tokens in one forward pass (--max-num-batched-tokens)."""
    kv_cache_gib: int
    """KV-cache space on the CPU, in GiB; on a GPU gpu_memory_fraction holds."""
    gpu_memory_fraction: float
    tensor_parallel_size: int
    enforce_eager: bool
    reasoning_parser: str | None
    tool_call_parser: str | None
    extra_args: tuple[str, ...]
    """Further arguments of the vLLM server, as they are."""
    start_timeout_s: float

    def __post_init__(self) -> None:
        for name in (
            "max_model_len_tokens",
            "max_num_seqs",
            "max_num_batched_tokens",
            "kv_cache_gib",
            "tensor_parallel_size",
            "start_timeout_s",
        ):
            _positive(self, name)
        if not 1 <= self.port <= 65500:
            raise ValueError(f"port {self.port} is not between 1 and 65500")


class GenerateConfig(Section, frozen=True, kw_only=True):
    """How replies are sampled and sent for."""

    temperature: float
    top_p: float
    max_tokens: int
    """Longest reply, thinking included, in tokens."""
    thinking: bool
    samples_per_prompt: int
    concurrency: int | Literal["auto"]
    """Requests in flight on each server; auto finds it from the server's own metrics."""
    max_concurrency: int
    """Auto never goes over this, on each server."""
    stream: bool
    """Whether replies are streamed: for links with a proxy that cuts silent connections."""
    retry_attempts: int
    """Tries of one request, the first included."""
    retry_seconds: float
    """Longest time spent on one request's retries."""
    seconds_per_token: float
    """Time limit of a request: 60 s and this for each token of max_tokens."""
    down_wait_s: float
    """A server that is gone is waited for this long before the run ends."""
    segment_mib: int
    """A journal goes on in a new file after this many MiB."""
    metrics_port: int | None
    """Port of a Prometheus endpoint on the loopback address; null for none."""

    def __post_init__(self) -> None:
        for name in (
            "max_tokens",
            "samples_per_prompt",
            "max_concurrency",
            "retry_attempts",
            "seconds_per_token",
            "segment_mib",
        ):
            _positive(self, name)
        if self.concurrency != "auto":
            _positive(self, "concurrency")
        if self.temperature < 0 or not 0 < self.top_p <= 1:
            raise ValueError(f"temperature {self.temperature} or top_p {self.top_p} is out of range")
        if self.temperature == 0 and self.samples_per_prompt > 1:
            raise ValueError("temperature 0 gives the same reply each time: set samples_per_prompt to 1")


class ExtractConfig(Section, frozen=True, kw_only=True):
    """The verifier's hidden states that the draft is trained on."""

    aux_layers: tuple[int, int, int]
    """vLLM's ids: k is the state before layer index k. Kimi-K2.5: 2, 30, 58."""
    max_seq_tokens: int
    """Samples are cut to this many tokens."""
    shard_tokens: int
    """Tokens in one file of states."""
    concurrency: int

    def __post_init__(self) -> None:
        for name in ("max_seq_tokens", "shard_tokens", "concurrency"):
            _positive(self, name)
        if not 0 < self.aux_layers[0] < self.aux_layers[1] < self.aux_layers[2]:
            raise ValueError(f"aux_layers {list(self.aux_layers)} must be positive and rising")


class VocabConfig(Section, frozen=True, kw_only=True):
    """The draft's vocabulary: the verifier's tokens that the supervised text uses most."""

    size: int

    def __post_init__(self) -> None:
        _positive(self, "size")


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
        for name in ("intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim"):
            _positive(self, name)
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads {self.num_attention_heads} is no multiple of num_key_value_heads "
                f"{self.num_key_value_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} is odd: rotary embedding turns pairs")


class TrainConfig(Section, frozen=True, kw_only=True):
    """EAGLE-3 training."""

    device: Literal["cpu", "cuda"]
    compute_dtype: Literal["bfloat16", "float32"]
    """Weights are float32 masters whatever this is."""
    epochs: int
    batch_tokens: int
    """Tokens packed into one optimizer step."""
    max_seq_tokens: int
    """A longer sample is cut; no more than batch_tokens."""
    ttt_steps: int
    """Training-time-test steps; step s is trained on what serving sees at draft position s."""
    ttt_decay: float
    """Weight of step s is ttt_decay ** s, normalised to sum 1."""
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
    log_steps: int

    def __post_init__(self) -> None:
        for name in (
            "epochs",
            "batch_tokens",
            "max_seq_tokens",
            "ttt_steps",
            "ttt_decay",
            "learning_rate",
            "grad_clip_norm",
            "checkpoint_steps",
            "log_steps",
        ):
            _positive(self, name)
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
        for name in ("num_draft_tokens", "max_tokens", "prompts", "concurrency", "single_prompts", "rounds"):
            _positive(self, name)


class PlanConfig(Section, frozen=True, kw_only=True):
    """What a plan takes for granted until a stage has measured it on this machine."""

    hidden_size: int | None
    """Of the verifier, while verifier.model is no directory here; null reads its config.json."""
    load_s: float
    """From starting a server to its first reply."""
    generate_tokens_per_s: float
    """Output tokens a second of all requests in flight."""
    prefill_tokens_per_s: float
    """Tokens a second of the pass that extracts hidden states."""
    train_tokens_per_s: float

    def __post_init__(self) -> None:
        for name in ("load_s", "generate_tokens_per_s", "prefill_tokens_per_s", "train_tokens_per_s"):
            _positive(self, name)
        if self.hidden_size is not None:
            _positive(self, "hidden_size")


def _positive(section: Section, name: str) -> None:
    value = getattr(section, name)
    if value <= 0:
        raise ValueError(f"{name} {value} must be more than 0")

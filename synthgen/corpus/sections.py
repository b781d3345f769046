"""The sections of a run's YAML, as frozen types: every key, with its unit and what it does.

Every key is required, so that the file shows the whole run. Paths are relative to the directory the
command is run in. Values of one section that can't go together are refused here.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from synthgen.corpus.verdicts import DropReason


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every section of the YAML."""


def positive(section: Section, *names: str) -> None:
    """Raise ValueError naming the first of these keys that is not above zero."""
    for name in names:
        value = getattr(section, name)
        if value <= 0:
            raise ValueError(f"{name} {value} must be more than 0")


class VerifierConfig(Section, frozen=True, kw_only=True):
    """The model that is served, whose tokens and hidden states the draft learns."""

    model: str
    """Directory, or hub id (org/name), as vLLM takes it; what is a directory here is never taken as an id."""
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

    sources: tuple[str, ...]
    """JSONL, Parquet (.parquet) or CSV (.csv) files, and hub datasets as hub:ID:SPLIT or hub:ID:CONFIG:SPLIT,
    with ID@REVISION to pin one; `synthgen prompts` shows what is understood of them."""
    field: str | None
    """The column that holds the prompt, as text or messages; null finds it by the source's first row."""
    on_bad_row: OnBadRow
    """refuse: a row that gives no prompt is an error before anything is sent; skip: it is left out."""
    near_duplicates: float | None
    """Of two prompts whose words are this much alike (Jaccard index of 3-word shingles, by MinHash), one is
    dropped; 1 is the same words; null drops only equal prompts."""
    exclude: tuple[str, ...]
    """Sources whose prompts, or near duplicates of them, must not be used: benchmarks, held-out sets."""
    caps: dict[str, int]
    """At most this many prompts of a domain (of open-perfectblend: of a source)."""
    strata: Literal["proportional", "even"]
    """How `limit` is shared out among domains: as large as each is, or the same as far as they last."""
    limit: int | None
    """At most this many prompts become traces; null takes all that are not held out."""
    heldout: int
    """This many prompts are kept from the corpus, chosen by hash, for the acceptance."""

    def __post_init__(self) -> None:
        positive(self, "heldout")
        if self.limit is not None:
            positive(self, "limit")
        if not self.sources:
            raise ValueError("sources is empty: name at least one file or hub dataset of prompts")
        if self.near_duplicates is not None and not 0 < self.near_duplicates <= 1:
            raise ValueError(f"near_duplicates {self.near_duplicates} is not above 0 and at most 1")
        for domain, most in self.caps.items():
            if most < 0:
                raise ValueError(f"caps.{domain} {most} is negative")


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
        positive(
            self,
            "max_model_len_tokens",
            "max_num_seqs",
            "max_num_batched_tokens",
            "kv_cache_gib",
            "tensor_parallel_size",
            "start_timeout_s",
        )
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
    capture: bool
    """Whether the server, which then needs the connector, hands over the hidden states with each reply."""
    stream: bool
    """Whether replies are streamed: for links with a proxy that cuts silent connections."""
    retry_attempts: int
    """Tries of one request, the first included."""
    retry_seconds: float
    """Longest time spent on one request's retries."""
    seconds_per_token: float
    """Time limit of a request: 60 s and this for each token of max_tokens."""
    down_wait_s: float
    """A server that is gone is waited for this long before the run ends; by extraction, too."""
    segment_mib: int
    """A journal goes on in a new file after this many MiB."""
    metrics_port: int | None
    """Port of a Prometheus endpoint on the loopback address; null for none."""

    def __post_init__(self) -> None:
        positive(
            self,
            "max_tokens",
            "samples_per_prompt",
            "max_concurrency",
            "retry_attempts",
            "seconds_per_token",
            "segment_mib",
        )
        if self.concurrency != "auto":
            positive(self, "concurrency")
        if self.temperature < 0 or not 0 < self.top_p <= 1:
            raise ValueError(f"temperature {self.temperature} or top_p {self.top_p} is out of range")
        if self.capture and self.stream:
            raise ValueError("capture and stream can't go together: a streamed reply doesn't name its states")
        if self.temperature == 0 and self.samples_per_prompt > 1:
            raise ValueError("temperature 0 gives the same reply each time: set samples_per_prompt to 1")


class ScreenConfig(Section, frozen=True, kw_only=True):
    """Which traces are kept from the dataset; they stay in the corpus."""

    drop: tuple[DropReason, ...]
    """The rules that drop a trace; what the others find is only noted."""
    max_seq_tokens: int
    """A trace with more tokens, prompt and reply, is over-long."""

    def __post_init__(self) -> None:
        positive(self, "max_seq_tokens")


class MixPart(Section, frozen=True, kw_only=True):
    """One part of the dataset. It has `traces` or `replies`, not both."""

    name: str
    share: float
    """Part of the dataset that comes from here; all shares make 1."""
    traces: tuple[str, ...] | None
    """Traces of these prompt sources; [] takes all that no other part names."""
    replies: str | None
    """A file or hub dataset of conversations whose replies are used as they are."""

    def __post_init__(self) -> None:
        positive(self, "share")
        if (self.traces is None) == (self.replies is None):
            raise ValueError(f"part {self.name!r} must have either traces or replies, and null for the other")


class MixConfig(Section, frozen=True, kw_only=True):
    """How traces and other replies become one dataset."""

    unit: Literal["tokens", "rows"]
    """What shares are of: supervised tokens, or rows."""
    parts: tuple[MixPart, ...]
    heldout_fraction: float
    """Part of the prompts whose samples are held out of training, for validation."""

    def __post_init__(self) -> None:
        names = [part.name for part in self.parts]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"parts must be there and have names of their own, these are {names}")
        sources = [source for part in self.parts for source in part.traces or ()]
        twice = next((source for source in sources if sources.count(source) > 1), None)
        if twice is not None:
            raise ValueError(f"traces of {twice!r} are named by two parts: a source belongs to one")
        total = sum(part.share for part in self.parts)
        if abs(total - 1) > 1e-6:
            raise ValueError(f"the shares of parts make {total:g}, not 1")
        if sum(part.traces == () for part in self.parts) > 1:
            raise ValueError("only one part can have traces: [], which takes what no other part names")
        if not 0 <= self.heldout_fraction < 1:
            raise ValueError(f"heldout_fraction {self.heldout_fraction} is not in [0, 1)")

    @property
    def replies(self) -> tuple[MixPart, ...]:
        """The parts whose replies others wrote."""
        return tuple(part for part in self.parts if part.replies is not None)


class ExportConfig(Section, frozen=True, kw_only=True):
    """What a dataset card says that nothing else knows."""

    title: str
    license: str | None
    """Licence of the dataset as the hub writes it (apache-2.0, cc-by-4.0, other); null leaves it open."""


class PlanConfig(Section, frozen=True, kw_only=True):
    """What a plan takes for granted until a stage has measured it on this machine."""

    hidden_size: int | None
    """Of the verifier, while its config.json isn't here; null reads that."""
    vocab_size: int | None
    """The same of its vocabulary, for `eagle train --dry-run`."""
    load_s: float
    """From starting a server to its first reply."""
    generate_tokens_per_s: float
    """Output tokens a second of all requests in flight."""
    prefill_tokens_per_s: float
    """Tokens a second of the pass that extracts hidden states."""
    train_tokens_per_s: float

    def __post_init__(self) -> None:
        positive(self, "load_s", "generate_tokens_per_s", "prefill_tokens_per_s", "train_tokens_per_s")
        positive(self, *(name for name in ("hidden_size", "vocab_size") if getattr(self, name) is not None))

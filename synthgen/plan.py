"""What a run costs, before it starts: rows, tokens, bytes and hours of each stage, each with its formula.

Everything is "at most" (each reply as long as allowed) until a stage has run; then its own figures hold,
and its speed replaces the assumed one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from synthgen.corpus.config import RunConfig
from synthgen.corpus.files import free_bytes, in_units
from synthgen.corpus.manifest import Manifest, read_manifest
from synthgen.corpus.verifier_config import STATE_BYTES, read_shape
from synthgen.errors import ConfigError
from synthgen.prompt_figures import CORPUS
from synthgen.selection import chosen_figures

TAPS = 4
"""Hidden states of a token: three aux states and the final one."""
TRACE_BYTES_PER_TOKEN = 14
"""A journal's line: seven digits and a comma for each id, and six of text."""
ADAM_BYTES = 12
"""A trained parameter in a checkpoint: float32 weight and two float32 moments."""
CHECKPOINTS = 3
"""Two are kept while the next is written."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A speed, or a server's start, and whether it was measured."""

    value: float
    measured: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What times are computed with."""

    load_s: Rate
    generate: Rate
    prefill: Rate
    train: Rate


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """One stage."""

    name: str
    rows: int
    tokens: int
    disk_bytes: int
    starts: int
    """Servers that are loaded, one after the other."""
    load_s: float
    """Of all starts; the same however many rows there are."""
    work_s: float
    measured: bool
    """Whether its speed was measured here."""
    formulas: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A run's stages, in order."""

    run_dir: str
    stages: tuple[StagePlan, ...]
    free_bytes: int
    load_rate: Rate

    @property
    def disk_bytes(self) -> int:
        """Of all stages together."""
        return sum(stage.disk_bytes for stage in self.stages)

    @property
    def load_s(self) -> float:
        """Fixed: what the servers' starts take."""
        return sum(stage.load_s for stage in self.stages)

    @property
    def work_s(self) -> float:
        """Marginal: what grows with the rows."""
        return sum(stage.work_s for stage in self.stages)

    @property
    def rows_worth_the_load(self) -> int:
        """Rows from which on the work takes longer than the starts."""
        rows = max(stage.rows for stage in self.stages)
        return math.ceil(self.load_s * rows / self.work_s) if self.work_s else 0

    def stage(self, name: str) -> StagePlan:
        """The stage of that name."""
        return next(stage for stage in self.stages if stage.name == name)


def plan(config: RunConfig, *, free: int | None = None) -> Plan:
    """The plan of a run. Raises InputError for broken prompts, ConfigError when no size is known."""
    prompts = chosen_figures(config).require_corpus(config.prompts).ends[CORPUS]
    rows = prompts * config.generate.samples_per_prompt
    hidden, rates = _hidden_size(config), rates_of(config)
    generate = _generate(config, rows, rates)
    extract = _extract(config, generate, hidden, rates)
    return Plan(
        run_dir=config.run_dir,
        stages=(
            generate,
            extract,
            _train(config, extract, hidden, rates),
            _accept(config, rates),
        ),
        free_bytes=free_bytes(config.run_path) if free is None else free,
        load_rate=rates.load_s,
    )


def rates_of(config: RunConfig) -> Rates:
    """The speeds that earlier stages of this run measured; the assumed ones for the rest."""
    corpus, states = read_manifest(config.corpus_path), read_manifest(config.states_path)
    trained = read_manifest(config.checkpoints_path)
    loads = [made.speed.load_s for made in (corpus, states) if made and made.speed and made.speed.load_s]
    return Rates(
        load_s=Rate(max(loads), True) if loads else Rate(config.plan.load_s),
        generate=_rate(corpus, config.plan.generate_tokens_per_s),
        prefill=_rate(states, config.plan.prefill_tokens_per_s),
        train=_rate(trained, config.plan.train_tokens_per_s),
    )


def _rate(made: Manifest | None, assumed: float) -> Rate:
    return Rate(made.speed.tokens_per_s, True) if made and made.speed else Rate(assumed)


def _generate(config: RunConfig, rows: int, rates: Rates) -> StagePlan:
    made = read_manifest(config.corpus_path)
    per_row, why = config.generate.max_tokens, f"generate.max_tokens {config.generate.max_tokens:,}"
    if made is not None and made.figures["traces"]:
        written = made.figures["thinking_tokens"] + made.figures["response_tokens"]
        per_row = math.ceil(written / made.figures["traces"])
        why = f"{per_row:,} tokens a reply, the mean of {made.figures['traces']:,} traces"
    tokens = rows * per_row
    return StagePlan(
        name="generate",
        rows=rows,
        tokens=tokens,
        disk_bytes=tokens * TRACE_BYTES_PER_TOKEN,
        starts=0 if config.server.base_urls else 1,
        load_s=0.0 if config.server.base_urls else rates.load_s.value,
        work_s=tokens / rates.generate.value,
        measured=rates.generate.measured,
        formulas={
            "rows": f"{rows // config.generate.samples_per_prompt:,} prompts × generate.samples_per_prompt "
            f"{config.generate.samples_per_prompt}",
            "tokens": f"{rows:,} rows × {why}",
            "disk": f"{tokens:,} tokens × {TRACE_BYTES_PER_TOKEN} bytes of JSON",
            "work": f"{tokens:,} tokens / {rates.generate.value:,.0f} a second",
        },
    )


def _extract(config: RunConfig, generate: StagePlan, hidden: int, rates: Rates) -> StagePlan:
    made = read_manifest(config.states_path)
    tokens = generate.rows * config.extract.max_seq_tokens
    why = f"{generate.rows:,} rows × extract.max_seq_tokens {config.extract.max_seq_tokens:,}"
    if made is not None and made.complete:
        tokens, why = made.figures["tokens"], "as extracted"
    per_token = TAPS * hidden * STATE_BYTES
    return StagePlan(
        name="extract",
        rows=generate.rows,
        tokens=tokens,
        disk_bytes=tokens * per_token,
        starts=1,
        load_s=rates.load_s.value,
        work_s=tokens / rates.prefill.value,
        measured=rates.prefill.measured,
        formulas={
            "tokens": why,
            "disk": f"{tokens:,} tokens × {TAPS} states × hidden size {hidden:,} × {STATE_BYTES} bytes "
            f"({in_units(config.extract.max_seq_tokens * per_token)} for the longest sample)",
            "work": f"{tokens:,} tokens / {rates.prefill.value:,.0f} a second",
        },
    )


def _train(config: RunConfig, extract: StagePlan, hidden: int, rates: Rates) -> StagePlan:
    tokens = extract.tokens * config.train.epochs
    trained = trained_parameters(config, hidden)
    return StagePlan(
        name="train",
        rows=extract.rows,
        tokens=tokens,
        disk_bytes=CHECKPOINTS * trained * ADAM_BYTES,
        starts=0,
        load_s=0.0,
        work_s=tokens / rates.train.value,
        measured=rates.train.measured,
        formulas={
            "tokens": f"{extract.tokens:,} tokens × train.epochs {config.train.epochs}",
            "disk": f"{CHECKPOINTS} checkpoints × {trained:,} trained parameters × {ADAM_BYTES} bytes",
            "work": f"{tokens:,} tokens / {rates.train.value:,.0f} a second",
        },
    )


def _accept(config: RunConfig, rates: Rates) -> StagePlan:
    settings = config.accept
    servers = 2 + settings.untrained
    starts = 1 if settings.servers_at_once else servers
    drafted = settings.prompts * (1 + settings.untrained)
    rows = drafted + 2 * settings.single_prompts * settings.rounds
    tokens = rows * settings.max_tokens
    return StagePlan(
        name="accept",
        rows=rows,
        tokens=tokens,
        disk_bytes=0,
        starts=starts,
        load_s=starts * rates.load_s.value,
        work_s=tokens / rates.generate.value,
        measured=False,
        formulas={
            "rows": f"accept.prompts {settings.prompts} × {1 + settings.untrained} drafts + "
            f"accept.single_prompts {settings.single_prompts} × 2 servers × accept.rounds {settings.rounds}",
            "tokens": f"{rows:,} rows × accept.max_tokens {settings.max_tokens:,}",
            "work": f"{tokens:,} tokens / {rates.generate.value:,.0f} a second (one at a time is slower)",
        },
    )


def trained_parameters(config: RunConfig, hidden: int) -> int:
    """Of the draft: one Llama layer on twice the hidden size, `fc`, norms, and the head if trained."""
    draft = config.draft
    queries, keys = draft.num_attention_heads * draft.head_dim, draft.num_key_value_heads * draft.head_dim
    attention = 2 * hidden * (queries + 2 * keys) + queries * hidden
    norms = 4 * hidden + (3 * hidden if draft.fc_norm else 0)
    head = config.vocab.size * hidden if config.train.head == "trained" else 0
    return attention + 3 * hidden * draft.intermediate_size + 3 * hidden * hidden + norms + head


def _hidden_size(config: RunConfig) -> int:
    model = Path(config.verifier.model)
    if model.is_dir():
        return read_shape(model).hidden_size
    if config.plan.hidden_size is None:
        raise ConfigError(
            f"verifier.model {config.verifier.model} is no directory here and plan.hidden_size is null: set "
            f"one of them, or the hidden states can't be sized"
        )
    return config.plan.hidden_size


def as_figures(made: Plan) -> dict[str, Any]:
    """A plan as JSON: what `synthgen plan --json` prints."""
    return {
        "stages": {
            stage.name: {
                "rows": stage.rows,
                "tokens": stage.tokens,
                "disk_bytes": stage.disk_bytes,
                "load_s": stage.load_s,
                "work_s": round(stage.work_s, 1),
                "measured": stage.measured,
            }
            for stage in made.stages
        },
        "disk_bytes": made.disk_bytes,
        "free_bytes": made.free_bytes,
        "load_s": made.load_s,
        "work_s": round(made.work_s, 1),
        "rows_worth_the_load": made.rows_worth_the_load,
    }

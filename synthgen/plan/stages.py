"""What a run costs, before it starts: rows, tokens, bytes and hours of each stage, each with its formula.

Everything is "at most" (each reply as long as allowed) until a stage has run; then its own figures hold,
and its speed replaces the assumed one.
"""

from __future__ import annotations

import math

from synthgen.corpus.config import RunConfig
from synthgen.corpus.files import free_bytes, in_units
from synthgen.corpus.manifest import Manifest, read_manifest
from synthgen.corpus.verifier_config import TAPS, state_bytes_per_token
from synthgen.corpus.verifier_files import shape_at_hand
from synthgen.errors import ConfigError
from synthgen.plan.costs import Plan, Rate, Rates, Replies, StagePlan
from synthgen.seeds.selection import chosen_figures

TRACE_BYTES_PER_TOKEN = 14
"""A journal's line: seven digits and a comma for each id, and six of text."""
ADAM_BYTES = 12
"""A trained parameter in a checkpoint: float32 weight and two float32 moments."""
FORWARD_SHARE = 1 / 3
"""What a validated token takes of the time of a trained one: a forward pass, and no gradients."""


def plan(config: RunConfig, *, free: int | None = None) -> Plan:
    """The plan of a run. Raises InputError for broken prompts, ConfigError when no size is known."""
    figures = chosen_figures(config).require_corpus(config.prompts)
    replies = Replies.of(figures.turns, config.generate.samples_per_prompt)
    hidden, rates = _hidden_size(config), rates_of(config)
    extract = _extract(config, replies, hidden, rates)
    return Plan(
        run_dir=config.run_dir,
        stages=(
            _generate(config, replies, hidden, rates),
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


def _generate(config: RunConfig, replies: Replies, hidden: int, rates: Rates) -> StagePlan:
    made, samples = read_manifest(config.corpus_path), config.generate.samples_per_prompt
    per_reply, why = config.generate.max_tokens, f"generate.max_tokens {config.generate.max_tokens:,}"
    if made is not None and made.figures["traces"]:
        written = made.figures["thinking_tokens"] + made.figures["response_tokens"]
        per_reply = math.ceil(written / made.figures["traces"])
        why = f"{per_reply:,} tokens a reply, the mean of {made.figures['traces']:,} traces"
    tokens, written = replies.count * per_reply, replies.written * per_reply
    again = f" ({written - tokens:,} of them again, before later turns)" if written > tokens else ""
    spool_bytes, spool_why = _spool(config, replies, hidden)
    return StagePlan(
        name="generate",
        rows=replies.rows,
        tokens=tokens,
        disk_bytes=written * TRACE_BYTES_PER_TOKEN + spool_bytes,
        starts=0 if config.server.base_urls else 1,
        load_s=0.0 if config.server.base_urls else rates.load_s.value,
        work_s=tokens / rates.generate.value,
        measured=rates.generate.measured,
        formulas={
            "rows": f"{replies.rows // samples:,} prompts × generate.samples_per_prompt {samples}",
            "tokens": f"{replies} × {why}",
            "disk": f"{written:,} tokens{again} × {TRACE_BYTES_PER_TOKEN} bytes of JSON" + spool_why,
            "work": f"{tokens:,} tokens / {rates.generate.value:,.0f} a second",
        },
    )


def _spool(config: RunConfig, replies: Replies, hidden: int) -> tuple[int, str]:
    """Bytes of the states that come with the replies, in bfloat16 until they are packed."""
    if not config.generate.capture:
        return 0, ""
    tokens = replies.count * config.extract.max_seq_tokens  # the connector writes no more of a reply
    per_token = state_bytes_per_token(hidden, "bfloat16")
    return tokens * per_token, f", and captured states of {tokens:,} tokens × {per_token:,} bytes"


def _native_share(config: RunConfig) -> float:
    return sum(part.share for part in config.mix.parts if part.traces is not None)


def _dataset_rows(config: RunConfig, replies: Replies) -> tuple[int, str]:
    """Rows that are trained on or held out, and where the figure is from."""
    made = read_manifest(config.dataset_path)
    if made is not None:
        rows = made.figures["rows"] + made.figures["heldout_rows"]
        return rows, f"{rows:,} rows of the dataset"
    native = _native_share(config)
    if not native or native > 1 - 1e-6:
        return replies.count, str(replies)
    return math.ceil(replies.count / native), f"({replies} / {native:g}, the traces' share of the dataset)"


def _extract(config: RunConfig, replies: Replies, hidden: int, rates: Rates) -> StagePlan:
    made = read_manifest(config.states_path)
    rows, rows_why = _dataset_rows(config, replies)
    tokens = rows * config.extract.max_seq_tokens
    why = f"{rows_why} × extract.max_seq_tokens {config.extract.max_seq_tokens:,}"
    if made is not None and made.complete:
        tokens, why = made.figures["tokens"], "as extracted"
    dtype = config.extract.states_dtype
    per_token = state_bytes_per_token(hidden, dtype)
    captured = min(_native_share(config), 1.0) if config.generate.capture else 0.0
    sent = round(tokens * (1 - captured))
    if config.train.stream:
        trained = rows - _heldout_rows(config, rows)  # nothing is validated
        if trained < rows:
            why += f" × {trained:,} of {rows:,} rows, which aren't held out,"
        return _streamed(config, trained, tokens * trained // max(rows, 1), why, rates)
    starts = 1 if sent and not config.server.base_urls else 0
    return StagePlan(
        name="extract",
        rows=rows,
        tokens=tokens,
        disk_bytes=sent * per_token,
        starts=starts,
        load_s=starts * rates.load_s.value,
        work_s=sent / rates.prefill.value,
        measured=rates.prefill.measured,
        formulas={
            "tokens": why,
            "disk": f"{sent:,} tokens × {TAPS} states × hidden size {hidden:,} in {dtype} "
            f"({in_units(config.extract.max_seq_tokens * per_token)} for the longest sample)"
            + ("; captured ones take the place of what they were captured into" if captured else ""),
            "work": f"{sent:,} tokens / {rates.prefill.value:,.0f} a second",
        },
    )


def _streamed(config: RunConfig, rows: int, tokens: int, why: str, rates: Rates) -> StagePlan:
    """States that are made while they are trained on: all of them in each epoch, few on the disk."""
    train = config.train
    epochs, spool_mib = train.epochs, train.stream_spool_mib * train.processes
    starts = 0 if config.server.base_urls else 1
    return StagePlan(
        name="extract",
        rows=rows,
        tokens=tokens * epochs,
        disk_bytes=spool_mib << 20,
        starts=starts,
        load_s=starts * rates.load_s.value,
        work_s=tokens * epochs / rates.prefill.value,
        measured=rates.prefill.measured,
        formulas={
            "tokens": f"{why} × train.epochs {epochs}: with train.stream anew in each, while training",
            "disk": f"train.stream_spool_mib {train.stream_spool_mib:,}"
            + (f" × train.processes {train.processes}" if train.processes > 1 else ""),
            "work": f"{tokens * epochs:,} tokens / {rates.prefill.value:,.0f} a second, beside the training",
        },
    )


def _heldout_rows(config: RunConfig, rows: int) -> int:
    """How many of the dataset's rows are held out of training."""
    made = read_manifest(config.dataset_path)
    return made.figures["heldout_rows"] if made else round(rows * config.mix.heldout_fraction)


def _train(config: RunConfig, extract: StagePlan, hidden: int, rates: Rates) -> StagePlan:
    train = config.train
    held_rows = 0 if train.stream else _heldout_rows(config, extract.rows)
    once = extract.tokens // train.epochs if train.stream else extract.tokens
    held = round(once * held_rows / max(extract.rows, 1))
    tokens = (once - held) * train.epochs
    updates = math.ceil(tokens / (train.batch_tokens * train.batches_per_step))
    validations = math.ceil(updates / train.validate_steps) if held else 0
    validated = validations * held
    trained = trained_parameters(config, hidden)
    checkpoints = train.keep_checkpoints + 1 + (held > 0)
    return StagePlan(
        name="train",
        rows=extract.rows - held_rows,
        tokens=tokens,
        disk_bytes=checkpoints * trained * ADAM_BYTES,
        starts=0,
        load_s=0.0,
        work_s=(tokens + FORWARD_SHARE * validated) / rates.train.value,
        measured=rates.train.measured,
        formulas={
            "tokens": f"{once - held:,} tokens × train.epochs {train.epochs}"
            + (f"; {held:,} more are held out" if held else ""),
            "disk": f"{checkpoints} checkpoints (train.keep_checkpoints, {'best, ' if held else ''}and the "
            f"next) × {trained:,} trained parameters × {ADAM_BYTES} bytes",
            "work": f"({tokens:,} tokens"
            + (f" + a third of {validations:,} validations × {held:,}" if held else "")
            + f") / {rates.train.value:,.0f} a second",
        },
    )


def _accept(config: RunConfig, rates: Rates) -> StagePlan:
    settings = config.accept
    drafts = len(settings.num_draft_tokens) + settings.untrained
    main = 1 if settings.servers_at_once else 2 + settings.untrained
    starts = main + len(settings.num_draft_tokens) - 1 + settings.offline_replies
    passes = settings.rounds * len(settings.concurrencies)
    rows = settings.prompts * drafts + 2 * settings.single_prompts * passes
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
            "rows": f"accept.prompts {settings.prompts} × {drafts} drafts + accept.single_prompts "
            f"{settings.single_prompts} × 2 servers × accept.rounds {settings.rounds} × "
            f"{len(settings.concurrencies)} accept.concurrencies",
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
    if shape := shape_at_hand(config.verifier):
        return shape.hidden_size
    if config.plan.hidden_size is None:
        raise ConfigError(
            f"verifier.model {config.verifier.model} is no directory here and plan.hidden_size is null: set "
            f"one of them, or the hidden states can't be sized"
        )
    return config.plan.hidden_size

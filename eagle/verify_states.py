"""Whether stored hidden states are what training takes them for.

Always: every shard's checksum, finite values, the token ids of the dataset, no sample missing, final
states that are not normed already. A *probe* takes a few samples and compares the verifier's most likely
next token, as its norm and head give it from the stored final state, with the one a live server names
(`prompt_logprobs`), or with what it sampled where that was greedy. A *reference* computes all four states
anew through transformers and compares them tap by tap; that alone sees aux layers that are off by one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from eagle.extract import wanted_samples
from eagle.shards import ShardEntry, read_index, read_shard, verify_shard
from eagle.states import SampleStates
from eagle.taps import TapPoints
from eagle.transformers_backend import load_verifier, states_from
from eagle.verifier import VerifierWeights, weights_of
from synthgen.client.control import Control, api_key
from synthgen.client.launch import plain, serving_url
from synthgen.corpus.config import RunConfig
from synthgen.corpus.console import bar
from synthgen.corpus.journal import read_journal
from synthgen.corpus.manifest import read_manifest, require_manifest
from synthgen.corpus.records import Record
from synthgen.corpus.samples import DatasetRow, Sample
from synthgen.corpus.verifier_files import shape_of
from synthgen.errors import ArtifactError

PROBE_AGREEMENT = {"bfloat16": 0.995, "float8_e4m3fn": 0.95}
"""Part of the probed tokens on which state and server must agree, by how states are stored.

Against a live SmolLM2-135M 99.8 % do in bfloat16, and 3.7 % of a set that is shifted by one. In fp8 tokens
that are nearly as likely change places: 96.9 % stayed the same.
"""
TAP_ERROR = {"bfloat16": 0.02, "float8_e4m3fn": 0.05}
"""Largest median relative error of a tap against the reference, by how it is stored."""
LOGITS_AT_ONCE = 1 << 22
NORMED_WITHIN = 0.02


class Probe(Record, frozen=True, kw_only=True):
    """How often the verifier's own next token is the most likely one by the stored final state."""

    against: str
    """`server` or `greedy replies`."""
    samples: int
    tokens: int
    agreement: float


class TapError(Record, frozen=True, kw_only=True):
    """Relative error of one tap's states, per token."""

    tap: str
    median: float
    worst: float


class StatesReport(Record, frozen=True, kw_only=True):
    """What was looked at, and everything that is wrong."""

    shards: int
    samples: int
    tokens: int
    probe: Probe | None
    taps: tuple[TapError, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checks:
    """What is compared beyond the shards themselves."""

    samples: int
    """Of the dataset, evenly spread, for probe and reference."""
    live: bool
    """Ask a server; otherwise only greedy replies are probed."""
    reference: bool


def verify_states(config: RunConfig, checks: Checks) -> StatesReport:
    """Look at all shards and at some samples closely.

    Raises ArtifactError when there are no states or no dataset, ServerError when the live probe can't be
    made; whatever is wrong with the states themselves is in the report.
    """
    require_manifest(config.dataset_path, "synthgen mix CONFIG")
    if config.train.stream and read_manifest(config.states_path) is None:
        raise ArtifactError(
            f"{config.states_path}: there are no states: with train.stream none are stored. To check what "
            f"the server captures, run `eagle extract CONFIG` first; training doesn't need it"
        )
    require_manifest(config.states_path, "eagle extract CONFIG")
    samples = {sample.id: sample for sample in wanted_samples(config)}
    problems: list[str] = []
    entries = read_index(config.states_path)
    picked = spread(sorted(samples), checks.samples)
    close: list[SampleStates] = []
    found: set[str] = set()
    with bar("verify", len(entries)) as progress:
        for entry in entries:
            for states in _sound(config, entry, problems):
                found.add(states.sample_id)
                problems += _problems_of(states, samples.get(states.sample_id))
                if states.sample_id in picked:
                    close.append(states)
            progress.advance()
    if missing := sorted(samples.keys() - found):
        problems.append(f"{len(missing)} samples of the dataset have no states, the first is {missing[0]}")
    problems += _normed(close, weights_of(config.verifier))
    probe = _probe(config, close, checks.live)
    taps = _tap_errors(config, close) if checks.reference else ()
    stored = config.extract.states_dtype
    problems += _probe_problems(probe, PROBE_AGREEMENT[stored])
    problems += _tap_problems(taps, TAP_ERROR[stored])
    return StatesReport(
        shards=len(entries),
        samples=len(found),
        tokens=sum(entry.num_tokens for entry in entries),
        probe=probe,
        taps=taps,
        problems=tuple(problems),
    )


def spread(ids: list[str], count: int) -> set[str]:
    """`count` of the ids, evenly."""
    count = min(count, len(ids))
    return {ids[i * len(ids) // count] for i in range(count)}


def _sound(config: RunConfig, entry: ShardEntry, problems: list[str]) -> Iterator[SampleStates]:
    """The samples of a shard whose bytes are those that were written."""
    try:
        verify_shard(config.states_path, entry)
    except ArtifactError as error:
        problems.append(str(error))
        return
    yield from read_shard(config.states_path, entry)


def _problems_of(states: SampleStates, sample: Sample | None) -> Iterator[str]:
    if not (states.aux.is_finite and states.final.is_finite):
        yield f"sample {states.sample_id}: has states that are not finite"
    found = tuple(states.token_ids_T.tolist())
    if sample is not None and found not in (sample.token_ids, sample.token_ids[:-1]):
        yield f"sample {states.sample_id}: its states are of other token ids than the dataset has"


def _normed(close: list[SampleStates], weights: VerifierWeights) -> Iterator[str]:
    """RMSNorm leaves `y / weight` with a root mean square of 1 at every token; before it, none has."""
    parts = [states.final.read().float() / weights.norm_H.float() for states in close]
    if parts and bool(((torch.cat(parts).square().mean(-1).sqrt() - 1).abs() < NORMED_WITHIN).all()):
        yield "final states: are after the verifier's final norm; they must be taken before it"


def _probe_problems(probe: Probe | None, least: float) -> Iterator[str]:
    if probe is not None and probe.agreement < least:
        yield (
            f"final states: only {probe.agreement:.2%} of {probe.tokens:,} most likely next tokens are those "
            f"of the {probe.against}, expected {least:.1%}: they are shifted, or of another layer"
        )


def _tap_problems(taps: tuple[TapError, ...], most: float) -> Iterator[str]:
    for tap in taps:
        if not tap.median <= most:
            yield (
                f"{tap.tap}: median relative error {tap.median:.2%} against transformers, expected at most "
                f"{most:.0%}: another layer, another norm state, or another checkpoint"
            )


def _probe(config: RunConfig, close: list[SampleStates], live: bool) -> Probe | None:
    """Compare most likely next tokens; None when there is nothing to compare with."""
    if live:
        with serving_url(config, plain(config)) as base_url:
            control = Control(base_url, api_key(config.server.api_key_env))
            control.require_model(config.verifier.served_name)
            name = config.verifier.served_name
            wanted = [control.likeliest(name, states.token_ids_T.tolist()) for states in close]
            return _agreement(config, close, wanted, "server")
    greedy = _greedy_next(config, {states.sample_id for states in close})
    chosen = [states for states in close if states.sample_id in greedy]
    return _agreement(config, chosen, [greedy[s.sample_id] for s in chosen], "greedy replies")


def _greedy_next(config: RunConfig, wanted: set[str]) -> dict[str, list[int | None]]:
    """The token after each one of greedy samples, where the verifier chose it itself."""
    chosen = {}
    sides = (config.train_path, config.validation_path)
    for row in itertools.chain.from_iterable(read_journal(side, DatasetRow) for side in sides):
        if row.id in wanted and row.sampling is not None and row.sampling.temperature == 0:
            after: list[int | None] = [None] * len(row.token_ids)
            for span in row.spans:
                after[span.start - 1 : span.end - 1] = row.token_ids[span.start : span.end]
            chosen[row.id] = after
    return chosen


def _agreement(
    config: RunConfig, close: list[SampleStates], wanted: list[list[int | None]], against: str
) -> Probe | None:
    """`wanted[i][t]` is the token that should be the most likely after token t of sample i."""
    weights, eps = weights_of(config.verifier), shape_of(config.verifier).rms_norm_eps
    same = tokens = 0
    for states, after in zip(close, wanted, strict=True):
        known = [
            (row, token)
            for row, at in enumerate(states.final_at_F.tolist())
            if at < len(after) and (token := after[at]) is not None
        ]
        if known:
            rows, expected = (torch.tensor(column) for column in zip(*known, strict=True))
            same += int(as_likely(states.final.read()[rows], expected, weights, eps).sum())
            tokens += len(known)
    if not tokens:
        return None
    return Probe(against=against, samples=len(close), tokens=tokens, agreement=same / tokens)


def likeliest(final_FH: torch.Tensor, weights: VerifierWeights, eps: float) -> torch.Tensor:
    """`[F]` most likely next tokens from final states before the norm, `[F, H]`."""
    return torch.cat([logits_PV.argmax(-1) for logits_PV in _logits(final_FH, weights, eps)])


def as_likely(
    final_FH: torch.Tensor, expected_F: torch.Tensor, weights: VerifierWeights, eps: float
) -> torch.Tensor:
    """`[F]` bool: whether the expected next token is as likely as any, but for one step of bfloat16.

    A verifier computes in bfloat16, where logits near 24 are an eighth apart: of two tokens with the same or
    neighbouring logits another batch may choose the other.
    """
    parts = zip(_logits(final_FH, weights, eps), torch.split(expected_F, _rows(weights)), strict=True)
    return torch.cat([_within_a_step(logits_PV, expected_P) for logits_PV, expected_P in parts])


def _within_a_step(logits_PV: torch.Tensor, expected_P: torch.Tensor) -> torch.Tensor:
    best_P = logits_PV.amax(-1).float()
    expected_logit_P = logits_PV.gather(1, expected_P[:, None]).squeeze(1).float()
    return best_P - expected_logit_P <= torch.finfo(torch.bfloat16).eps * best_P.abs()


def _logits(final_FH: torch.Tensor, weights: VerifierWeights, eps: float) -> Iterator[torch.Tensor]:
    """Those of final states before the norm, a few rows `[P, V]` at a time."""
    for part_PH in torch.split(final_FH, _rows(weights)):
        normed_PH = F.rms_norm(part_PH.float(), part_PH.shape[-1:], weights.norm_H.float(), eps)
        yield F.linear(normed_PH.to(weights.head_VH.dtype), weights.head_VH)


def _rows(weights: VerifierWeights) -> int:
    return max(1, LOGITS_AT_ONCE // len(weights.head_VH))


def _tap_errors(config: RunConfig, close: Iterable[SampleStates]) -> tuple[TapError, ...]:
    """Each tap against transformers, at the tokens whose states are kept."""
    taps = TapPoints(aux=config.extract.aux_layers, num_layers=shape_of(config.verifier).num_layers)
    model = load_verifier(config.verifier)
    errors: list[list[torch.Tensor]] = [[], [], [], []]
    for states in close:
        want_T4H = states_from(model, states.token_ids_T, taps.aux)
        found = [*states.aux.read().unbind(1), states.final.read()]
        wanted = [*want_T4H[:, :3].unbind(1), want_T4H[states.final_at_F, 3]]
        for tap, (have, want) in enumerate(zip(found, wanted, strict=True)):
            errors[tap].append((have.float() - want).norm(dim=-1) / want.norm(dim=-1))
    names = [*(f"aux layer {layer}" for layer in taps.aux), "final state"]
    joined = [(name, torch.cat(parts)) for name, parts in zip(names, errors, strict=True) if parts]
    return tuple(
        TapError(tap=name, median=float(all_.median()), worst=float(all_.max())) for name, all_ in joined
    )

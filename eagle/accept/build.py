"""The report, from what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eagle.accept.live import Counted, lengths_by_draft_tokens
from eagle.accept.report import AcceptanceReport, AtConcurrency, Offline
from eagle.accept.servers import DRAFTED, UNTRAINED
from eagle.accept.speed import compare
from eagle.accept.steps import Breakdown, PromptSteps, breakdown_of
from eagle.accept.visit import Measured
from synthgen.corpus.config import RunConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineFigures:
    """The draft on hidden states, and why where there is none."""

    replies: Offline | None = None
    heldout: Offline | None = None
    not_measured: tuple[str, ...] = ()


def prompt_steps(config: RunConfig, measured: Measured) -> list[PromptSteps]:
    """The steps of every prompt on each drafted server whose replies show them."""
    assert measured.markers is not None
    return [
        one
        for name, counted in measured.counted.items()
        if counted.shows_steps
        for one in counted.prompt_steps(name, measured.markers, thinking=config.generate.thinking)
    ]


def report_of(config: RunConfig, measured: Measured, offline: OfflineFigures) -> AcceptanceReport:
    """Put what was measured into a report."""
    drafted, untrained = measured.counted[DRAFTED], measured.counted.get(UNTRAINED)
    overall = drafted.whole
    served = [one.whole for name, one in measured.counted.items() if name != UNTRAINED]
    by_concurrency = compare(measured.rounds)
    single = by_concurrency[0]
    with_base = single.undrafted is not None
    return AcceptanceReport(
        acceptance_length=overall.acceptance_length,
        rate_by_position=tuple(overall.rate_by_position),
        length_by_domain=_by_domain(drafted),
        length_by_draft_tokens=lengths_by_draft_tokens(served),
        acceptance_length_untrained=untrained.whole.acceptance_length if untrained else None,
        prompts=len(measured.prompts),
        num_draft_tokens=drafted.num_draft_tokens,
        live=_live(config, measured),
        offline=offline.replies,
        heldout=offline.heldout,
        lossless=single.same_replies == single.compared_replies if with_base else None,
        same_replies=single.same_replies if with_base else None,
        compared_replies=single.compared_replies if with_base else None,
        tokens_per_s=single.drafted.tokens_per_s,
        tokens_per_s_undrafted=single.undrafted.tokens_per_s if single.undrafted else None,
        speedup=single.speedup,
        speedup_by_round=single.speedup_by_round,
        by_concurrency=by_concurrency,
        warnings=tuple(measured.warnings),
        not_measured=(*_left_out(measured, by_concurrency), *offline.not_measured),
    )


def _by_domain(counted: Counted) -> dict[str, float]:
    """A domain whose replies were too short to draft for has no length."""
    return {name: one.acceptance_length for name, one in counted.by_domain.items() if one.drafts}


def _live(config: RunConfig, measured: Measured) -> Breakdown | None:
    drafted = measured.counted[DRAFTED]
    if not drafted.shows_steps:
        return None
    assert measured.markers is not None
    steps = drafted.prompt_steps(DRAFTED, measured.markers, thinking=config.generate.thinking)
    return breakdown_of(steps, drafted.num_draft_tokens, config.seed)


def _left_out(measured: Measured, by_concurrency: Sequence[AtConcurrency]) -> list[str]:
    """What the servers gave no figures for."""
    said = []
    if by_concurrency[0].undrafted is None:
        said.append("speed-up and sameness of replies: there is no undrafted server (--base-url)")
    for name, counted in measured.counted.items():
        if not counted.shows_steps:
            said.append(
                f"{name}, by span and by prompt: its replies came in {counted.steps_seen:,} events, while it "
                f"counted {counted.whole.drafts:,.0f} drafts: steps came together in one event, or others "
                f"use it; accept.concurrency 1 may help"
            )
    return said

"""What the draft is worth: acceptance by position, domain and span, and the speed-up at each concurrency.

Live figures are the server's counters and the replies' own steps; offline ones walk the verifier's states.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from synthgen.report.charts import Curve, count_axis, curves, height_axis, share_axis
from synthgen.report.page import charts, key_figures, note, table

UNSEEN = "–"


class Steps(msgspec.Struct, frozen=True):
    """Some verify steps."""

    steps: int
    length: float
    rate_by_position: tuple[float, ...]


class Interval(msgspec.Struct, frozen=True):
    """Where a figure lies with a confidence of 95 %."""

    low: float
    high: float


class Groups(msgspec.Struct, frozen=True):
    """Verify steps of all, by domain and by span."""

    whole: Steps
    interval: Interval | None
    by_domain: dict[str, Steps]
    by_span: dict[str, Steps]


class Offline(msgspec.Struct, frozen=True):
    """The draft on states of the verifier."""

    walked: Groups


class Walk(NamedTuple):
    """A way to know the verify steps one by one: its column, its curve, the curve's colour, and the steps."""

    title: str
    curve: str
    kind: str
    steps: Groups


class DraftTokens(msgspec.Struct, frozen=True):
    """The length with so many draft tokens."""

    num_draft_tokens: int
    length: float
    served: bool


class Speed(msgspec.Struct, frozen=True):
    """How fast a server answers."""

    tokens_per_s: float
    seconds_mean: float
    seconds_p95: float


class AtConcurrency(msgspec.Struct, frozen=True):
    """With and without the draft, so many requests at a time."""

    concurrency: int
    drafted: Speed
    undrafted: Speed | None
    speedup: float | None
    speedup_by_round: tuple[float, ...]


class AcceptFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What `eagle accept` measured; earlier versions measured less."""

    acceptance_length: float
    rate_by_position: tuple[float, ...]
    length_by_domain: dict[str, float]
    length_by_draft_tokens: tuple[DraftTokens, ...] = ()
    prompts: int
    num_draft_tokens: int
    acceptance_length_untrained: float | None = None
    live: Groups | None = None
    offline: Offline | None = None
    heldout: Offline | None = None
    same_replies: int | None = None
    compared_replies: int | None = None
    speedup: float | None = None
    by_concurrency: tuple[AtConcurrency, ...] = ()
    warnings: tuple[str, ...] = ()
    not_measured: tuple[str, ...] = ()

    @property
    def walks(self) -> list[Walk]:
        """Those that were measured."""
        sides = (
            ("Live replies", "live", "response", self.live),
            ("Offline, same replies", "offline", "thinking", self.offline.walked if self.offline else None),
            ("Offline, validation", "validation", "tool", self.heldout.walked if self.heldout else None),
        )
        return [Walk(title, curve, kind, steps) for title, curve, kind, steps in sides if steps is not None]


def acceptance(figures: AcceptFigures | None) -> str:
    """The section of a report."""
    if figures is None:
        return ""
    return (
        key_figures(_key(figures))
        + charts(_drawn(figures))
        + _by_group("By span", "Span", figures, "by_span")
        + _by_group("By domain", "Domain", figures, "by_domain")
        + _speeds(figures)
        + "".join(note(f"Warning: {said}") for said in figures.warnings)
        + "".join(note(f"Not measured: {said}") for said in figures.not_measured)
    )


def _key(figures: AcceptFigures) -> Iterable[tuple[str, str]]:
    yield "Acceptance length", f"{figures.acceptance_length:.2f}"
    if figures.live is not None and figures.live.interval is not None:
        interval = figures.live.interval
        yield "95 % of bootstraps", f"{interval.low:.2f} to {interval.high:.2f}"
    if figures.acceptance_length_untrained is not None:
        yield "Untrained", f"{figures.acceptance_length_untrained:.2f}"
    yield "Draft tokens", f"{figures.num_draft_tokens}"
    yield "Prompts", f"{figures.prompts:,}"
    if figures.speedup is not None:
        yield "Speed-up, one at a time", f"{figures.speedup:.2f}×"
    if figures.same_replies is not None:
        yield "Same replies", f"{figures.same_replies:,} of {figures.compared_replies:,}"


def _drawn(figures: AcceptFigures) -> Iterable[tuple[str, str]]:
    positions = [Curve(name="counters", kind="plain", points=_places(figures.rate_by_position))]
    for walk in figures.walks:
        rates = walk.steps.whole.rate_by_position
        positions.append(Curve(name=walk.curve, kind=walk.kind, points=_places(rates)))
    x = count_axis("draft position", 1, len(figures.rate_by_position))
    title = "Part of the drafts accepted, by position"
    yield title, curves(title, positions, x, share_axis("accepted"))
    lengths = [(one.num_draft_tokens, one.length) for one in figures.length_by_draft_tokens]
    if len(lengths) > 1:
        title = "Acceptance length, by draft tokens"
        x = count_axis("draft tokens", lengths[0][0], lengths[-1][0])
        y = height_axis("tokens a step", max(length for _, length in lengths))
        yield title, curves(title, [Curve(name="counters", kind="plain", points=lengths)], x, y)
    ratios = [(one.concurrency, one.speedup) for one in figures.by_concurrency if one.speedup is not None]
    if len(ratios) > 1:
        title = "Speed-up, by concurrency"
        x = count_axis("requests at a time", 0, ratios[-1][0])
        y = height_axis("times the tokens/s", max(1.0, *(ratio for _, ratio in ratios)))
        even = Curve(name="no draft", kind="plain", points=[(ratios[0][0], 1.0), (ratios[-1][0], 1.0)])
        yield title, curves(title, [even, Curve(name="draft", kind="response", points=ratios)], x, y)


def _places(rates: Iterable[float]) -> list[tuple[float, float]]:
    return [(float(position), rate) for position, rate in enumerate(rates, 1)]


def _by_group(title: str, first: str, figures: AcceptFigures, groups: str) -> str:
    """Lengths of each span or domain, by each way to know them."""
    counted = {"Counters": figures.length_by_domain} if groups == "by_domain" else {}
    walked: dict[str, dict[str, Steps]] = {walk.title: getattr(walk.steps, groups) for walk in figures.walks}
    lengths = counted | {
        name: {group: found.length for group, found in side.items()} for name, side in walked.items()
    }
    names = list(dict.fromkeys(group for side in lengths.values() for group in side))
    if not names:
        return ""
    rows = [
        [name, *(f"{side[name]:.3f}" if name in side else UNSEEN for side in lengths.values())]
        for name in names
    ]
    return f"<h3>{title}</h3>" + note("Tokens a verify step.") + table([first, *lengths], rows)


def _speeds(figures: AcceptFigures) -> str:
    if not figures.by_concurrency:
        return ""
    rows = []
    for one in figures.by_concurrency:
        without, rounds = one.undrafted, one.speedup_by_round
        spread = f"{one.speedup:.2f} ({min(rounds):.2f} to {max(rounds):.2f})" if one.speedup else UNSEEN
        rows.append(
            [
                f"{one.concurrency}",
                f"{one.drafted.tokens_per_s:,.1f}",
                f"{without.tokens_per_s:,.1f}" if without else UNSEEN,
                spread,
                f"{one.drafted.seconds_mean:.2f}",
                f"{without.seconds_mean:.2f}" if without else UNSEEN,
                f"{one.drafted.seconds_p95:.2f}",
                f"{without.seconds_p95:.2f}" if without else UNSEEN,
            ]
        )
    head = ["At a time", "Tokens/s", "Without", "Ratio (rounds)", "Mean s", "Without", "P95 s", "Without"]
    return "<h3>Speed</h3>" + note("Output tokens a second, and seconds a request.") + table(head, rows)

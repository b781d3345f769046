"""The comparison as figures: each draft's acceptance length and its ratio to the first one's, with intervals.

Intervals are of 95 %, by bootstrap over prompts; a ratio's prompts are drawn in pairs, so that what makes a
prompt easy or hard for all drafts is not in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from eagle.accept.bootstrap import (
    Interval,
    PromptYield,
    acceptance_length,
    length_interval,
    ratio_interval,
)
from eagle.accept.steps import PromptSteps
from synthgen.corpus.records import Record

WHOLE = "all"


class TrainedOn(Record, frozen=True, kw_only=True):
    """What an arm's draft was trained on."""

    rows: int
    supervised_tokens: int
    by_part: dict[str, int]
    """Supervised tokens."""
    batch_tokens: int
    """What a batch holds at most, prompts included: longer where prompts are, so that updates are equal."""
    updates: int
    loss_last: float
    """Of the last tenth of its updates, on its own text: arms' losses can't be compared."""
    seconds: float


class Compared(Record, frozen=True, kw_only=True):
    """Some of the replies: all, those of a domain, or parts of them in one kind of span."""

    prompts: int
    """Those that both drafts, this and the first, took a step on."""
    steps: int
    length: float
    """Tokens of a verify step, by the steps in the replies."""
    interval: Interval | None
    ratio: float | None
    """To the first draft's on the same prompts; None for the first itself."""
    ratio_interval: Interval | None


class Draft(Record, frozen=True, kw_only=True):
    """One draft."""

    name: str
    path: str
    trained_on: TrainedOn | None
    """None for a given one."""
    counted_length: float
    """The acceptance length by the server's counters, with what was accepted beyond the replies' ends."""
    rate_by_position: tuple[float, ...]
    """By the counters."""
    groups: dict[str, Compared]
    """`all`, then `domain …` and `span …`; empty when the replies don't show their steps."""


class Comparison(Record, frozen=True, kw_only=True):
    """Drafts side by side; ratios are to the first."""

    num_draft_tokens: int
    prompts: int
    supervised_tokens: int
    """Of each arm."""
    drafts: tuple[Draft, ...]
    warnings: tuple[str, ...]

    @property
    def findings(self) -> tuple[str, ...]:
        """What came out, a sentence for each draft but the first."""
        return tuple(self._finding(draft) for draft in self.drafts[1:])

    def _finding(self, draft: Draft) -> str:
        base, whole = self.drafts[0].name, draft.groups.get(WHOLE)
        if whole is None or whole.ratio is None:
            return f"{draft.name} against {base}: not known, the replies don't show their steps"
        said = f"{draft.name} against {base}: {whole.ratio - 1:+.1%} tokens a step"
        if (at := whole.ratio_interval) is None:
            return said
        certain = "" if at.low > 1 or at.high < 1 else ": no difference is established"
        return f"{said} (95 % interval {at.low - 1:+.1%} to {at.high - 1:+.1%}){certain}"


@dataclass(frozen=True, slots=True)
class Side:
    """What a draft gave on each prompt, in some part of the replies."""

    yields: dict[str, PromptYield]
    """By prompt; without those where it took no step."""

    def with_other(self, other: Side) -> tuple[list[PromptYield], list[PromptYield]]:
        """The same of both, on the prompts that both took a step on."""
        both = [name for name in self.yields if name in other.yields]
        return [self.yields[name] for name in both], [other.yields[name] for name in both]


def groups_of(
    steps: Sequence[PromptSteps], base: Sequence[PromptSteps] | None, seed: int
) -> dict[str, Compared]:
    """The figures of a draft, of all replies and by domain and span, against the first's (`base`)."""
    found = {}
    for name, chosen in _groups(steps).items():
        side = _side(steps, chosen)
        if compared := compare(side, None if base is None else _side(base, chosen), seed):
            found[name] = compared
    return found


def compare(side: Side, base: Side | None, seed: int) -> Compared | None:
    """One group of replies; None when no step was taken on it."""
    yields, others = side.with_other(side if base is None else base)
    if not yields:
        return None
    length = acceptance_length(yields)
    return Compared(
        prompts=len(yields),
        steps=sum(one.steps for one in yields),
        length=length,
        interval=length_interval(yields, seed=seed),
        ratio=None if base is None else length / acceptance_length(others),
        ratio_interval=None if base is None else ratio_interval(yields, others, seed=seed),
    )


_Choice = Callable[[PromptSteps], Iterable[int] | None]
"""The steps of a prompt that belong to a group, None for a prompt that doesn't."""


def _groups(steps: Sequence[PromptSteps]) -> dict[str, _Choice]:
    """Domains and spans where there are several."""
    groups: dict[str, _Choice] = {WHOLE: lambda one: one.accepted}
    domains = sorted({one.domain for one in steps})
    spans = list(dict.fromkeys(span for one in steps for span in one.steps_by_span))
    for domain in domains if len(domains) > 1 else ():
        groups[f"domain {domain}"] = _of_domain(domain)
    for span in spans if len(spans) > 1 else ():
        groups[f"span {span}"] = _of_span(span)
    return groups


def _of_domain(domain: str) -> _Choice:
    return lambda one: one.accepted if one.domain == domain else None


def _of_span(span: str) -> _Choice:
    return lambda one: one.of_span(span)


def _side(steps: Sequence[PromptSteps], chosen: _Choice) -> Side:
    taken = ((one.id, list(chosen(one) or ())) for one in steps)
    return Side({name: PromptYield(sum(some) + len(some), len(some)) for name, some in taken if some})

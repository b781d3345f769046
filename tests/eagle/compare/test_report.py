"""Lengths, ratios and their intervals, of literal steps."""

from __future__ import annotations

import msgspec
import pytest

from eagle.accept.bootstrap import Interval
from eagle.accept.steps import PromptSteps
from eagle.compare.report import Compared, Comparison, Draft, groups_of


def steps(number: int, accepted: tuple[int, ...], domain: str = "math", thinking: int = 0) -> PromptSteps:
    """The steps of one reply, the first `thinking` of them in its thinking."""
    spans = {"thinking": thinking, "response": len(accepted) - thinking}
    return PromptSteps(
        id=f"p{number}",
        domain=domain,
        draft="d",
        num_draft_tokens=3,
        accepted=accepted,
        steps_by_span={name: count for name, count in spans.items() if count},
    )


BASE = [steps(n, (n % 3,) * 4, "code" if n < 5 else "math", thinking=2) for n in range(20)]
"""Lengths 1, 2 and 3 by turns."""
DOUBLE = [steps(n, (1 + 2 * (n % 3),) * 2, "code" if n < 5 else "math", thinking=1) for n in range(20)]
"""The same tokens on every prompt in half as many steps."""


def test_a_ratio_is_paired_by_prompt() -> None:
    """Twice as long on every prompt is twice in every draw, though lengths themselves are uncertain."""
    whole = groups_of(DOUBLE, BASE, seed=1)["all"]
    assert whole.ratio == pytest.approx(2.0)
    assert whole.ratio_interval == Interval(low=2.0, high=2.0)
    assert whole.interval is not None
    assert whole.interval.low < whole.length < whole.interval.high
    assert whole.length == pytest.approx(2 * (7 * 1 + 7 * 2 + 6 * 3) / 20)


def test_the_paired_interval_of_literal_numbers() -> None:
    """Ten prompts of 4 steps: one draft takes 8 tokens on each, the other 12 on half of them, 8 on the rest.

    The ratio is 1.25, and by theory lies within 1.25 plus or minus 1.96 · 0.25 / √10.
    """
    base = [steps(n, (1, 1, 1, 1)) for n in range(10)]
    better = [steps(n, (2, 2, 2, 2) if n % 2 else (1, 1, 1, 1)) for n in range(10)]
    whole = groups_of(better, base, seed=5)["all"]
    assert whole.ratio == 1.25
    assert whole.ratio_interval is not None
    assert whole.ratio_interval.low == pytest.approx(1.095, abs=0.03)
    assert whole.ratio_interval.high == pytest.approx(1.405, abs=0.03)


def test_only_prompts_that_both_have_are_compared() -> None:
    """A reply whose steps can't be told from its events is missing on one side."""
    whole = groups_of(DOUBLE[:12], BASE[4:], seed=1)["all"]
    assert (whole.prompts, whole.steps) == (8, 16)
    assert whole.ratio == pytest.approx(2.0)


def test_groups_are_domains_and_spans_where_there_are_several() -> None:
    """The first draft has no ratio; one domain alone is no group."""
    groups = groups_of(BASE, None, seed=1)
    assert list(groups) == ["all", "domain code", "domain math", "span thinking", "span response"]
    assert groups["all"].ratio is None
    assert groups["domain code"].prompts == 5
    assert groups["span thinking"].steps == 40
    assert list(groups_of(BASE[5:], None, seed=1)) == ["all", "span thinking", "span response"]
    assert groups_of([], None, seed=1) == {}


def draft(name: str, ratio: float | None, interval: Interval | None) -> Draft:
    """A draft with this ratio over all replies."""
    whole = Compared(prompts=9, steps=90, length=2.0, interval=None, ratio=ratio, ratio_interval=interval)
    return Draft(
        name=name,
        path=name,
        trained_on=None,
        counted_length=2.0,
        rate_by_position=(0.6, 0.4),
        groups={"all": whole},
    )


def test_the_finding_says_whether_a_difference_is_established() -> None:
    """In words, with its interval."""
    drafts = (
        draft("generic", None, None),
        draft("native", 1.123, Interval(low=1.08, high=1.16)),
        draft("mix", 1.02, Interval(low=0.99, high=1.05)),
        draft("odd", 0.9, None),
        msgspec.structs.replace(draft("blind", None, None), groups={}),
    )
    found = Comparison(num_draft_tokens=2, prompts=9, supervised_tokens=100, drafts=drafts, warnings=())
    assert found.findings == (
        "native against generic: +12.3% tokens a step (95 % interval +8.0% to +16.0%)",
        "mix against generic: +2.0% tokens a step (95 % interval -1.0% to +5.0%)"
        ": no difference is established",
        "odd against generic: -10.0% tokens a step",
        "blind against generic: not known, the replies don't show their steps",
    )

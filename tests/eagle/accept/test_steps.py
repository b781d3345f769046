"""Steps of streamed replies."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle.accept.bootstrap import PromptYield
from eagle.accept.steps import (
    PromptSteps,
    StepFigures,
    accepted_of,
    breakdown_of,
    figures_of,
    reply_spans,
    spans_of_steps,
)
from synthgen.client.control import Markers
from synthgen.corpus.samples import Span, SpanKind

MARKERS = Markers(think_end=90, tool_section=91)


def steps(id: str, domain: str, accepted: tuple[int, ...], **spans: int) -> PromptSteps:
    """A prompt's steps at three draft tokens."""
    return PromptSteps(
        id=id, domain=domain, draft="drafted", num_draft_tokens=3, accepted=accepted, steps_by_span=spans
    )


def test_the_first_event_is_the_prompts() -> None:
    """It is drafted for by nobody; each other one is a step."""
    assert accepted_of((1, 4, 1, 2)) == (3, 0, 1)
    assert accepted_of((1,)) == ()
    assert accepted_of(()) == ()


def test_a_step_is_where_its_first_token_is() -> None:
    """Tokens 0 to 4 are thinking, and 5 to 7 response: the step that begins at 4 reaches over the bound."""
    spans = (Span(start=0, end=5, kind=SpanKind.THINKING), Span(start=5, end=8, kind=SpanKind.RESPONSE))
    assert spans_of_steps((1, 3, 2, 2), spans) == {"thinking": 2, "response": 1}
    assert spans_of_steps((1,), spans) == {}


@pytest.mark.parametrize(
    ("ids", "thinking", "found"),
    [
        ([1, 90, 2], True, [("thinking", 0, 2), ("response", 2, 3)]),
        ([1, 90, 2], False, [("response", 0, 3)]),
        ([1, 2], True, [("thinking", 0, 2)]),
        ([1, 90, 2, 91, 3], True, [("thinking", 0, 2), ("response", 2, 3), ("tool", 3, 5)]),
        ([1, 91, 3, 90], True, [("thinking", 0, 1), ("tool", 1, 4)]),
    ],
)
def test_spans_are_those_of_traces(ids: list[int], thinking: bool, found: list[tuple[str, int, int]]) -> None:
    """`</think>` belongs to the thinking; a tool section ends it, and an end behind that is the tool's."""
    spans = reply_spans(ids, MARKERS, thinking=thinking)
    assert [(str(one.kind), one.start, one.end) for one in spans] == found


def test_figures_by_domain_and_span() -> None:
    """Two prompts, five steps that accept 3, 0, 1, 2 and 0 tokens."""
    found = breakdown_of(
        [steps("a", "math", (3, 0, 1), thinking=2, response=1), steps("b", "code", (2, 0), response=2)],
        positions=3,
        seed=7,
    )
    assert found is not None
    assert (found.prompts, found.whole) == (
        2,
        StepFigures(steps=5, length=1 + 6 / 5, rate_by_position=(3 / 5, 2 / 5, 1 / 5)),
    )
    assert found.by_domain == {
        "code": StepFigures(steps=2, length=2.0, rate_by_position=(0.5, 0.5, 0.0)),
        "math": StepFigures(steps=3, length=1 + 4 / 3, rate_by_position=(2 / 3, 1 / 3, 1 / 3)),
    }
    assert found.by_span == {
        "thinking": StepFigures(steps=2, length=2.5, rate_by_position=(0.5, 0.5, 0.5)),
        "response": StepFigures(steps=3, length=2.0, rate_by_position=(2 / 3, 1 / 3, 0.0)),
    }
    assert found.interval is not None
    assert found.interval.low < found.whole.length < found.interval.high


def test_replies_of_one_token_have_no_figures() -> None:
    """Nothing was drafted for them; that isn't a length of 1."""
    assert figures_of((), 3) is None
    assert breakdown_of([steps("a", "math", ())], 3, 7) is None


def test_a_record_whose_spans_do_not_add_up_is_refused() -> None:
    """Each step is in one span."""
    with pytest.raises(ValueError, match="2 steps, but"):
        steps("a", "math", (1, 0), thinking=1)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40))
def test_a_length_is_one_and_the_rates(accepted: list[int]) -> None:
    """What the counters' formula says: 1 + accepted / drafts."""
    found = figures_of(accepted, 3)
    assert found is not None
    assert found.length == pytest.approx(1 + sum(found.rate_by_position))
    one = steps("a", "d", tuple(accepted), response=len(accepted))
    assert one.gained == PromptYield(sum(accepted) + len(accepted), len(accepted))

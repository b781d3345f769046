"""Samples: literal spans and masks for each way a reply can end."""

from __future__ import annotations

from typing import Any

import pytest

from synthgen.corpus.records import Finish, Message, Sampling, Timing, Trace, TruncatedIn, seed_id
from synthgen.corpus.samples import Sample, Span, SpanKind, sample_of
from synthgen.corpus.token_ids import encode_ids

THINK_END, TOOL = 90, 91


def trace(output: list[int], **changes: Any) -> Trace:
    """A trace with prompt ids 1, 2, 3."""
    fields: dict[str, Any] = {
        "seed_id": "abc",
        "sample_index": 0,
        "source": "f.jsonl",
        "domain": "math",
        "messages": (Message(role="user", content="hi"),),
        "prompt_token_ids": (1, 2, 3),
        "output": encode_ids(output),
        "think_end": output.index(THINK_END) if THINK_END in output else None,
        "tool_start": output.index(TOOL) if TOOL in output else None,
        "thinking": None,
        "response": None,
        "finish": Finish.STOP,
        "truncated_in": None,
        "sampling": Sampling(temperature=1.0, top_p=1.0, max_tokens=8, thinking=True),
        "server": "0",
        "timing": Timing(started_at=0.0, seconds=1.0),
    }
    return Trace(**{**fields, **changes})


def mask(sample: Sample) -> str:
    """One letter a token: t thinking, r response, c tool call, . unsupervised."""
    letters = ["."] * len(sample.token_ids)
    names = {SpanKind.THINKING: "t", SpanKind.RESPONSE: "r", SpanKind.TOOL: "c"}
    for span in sample.spans:
        letters[span.start : span.end] = names[span.kind] * (span.end - span.start)
    return "".join(letters)


def binary_mask(sample: Sample) -> str:
    """One digit a token: 1 is supervised."""
    return "".join("0" if letter == "." else "1" for letter in mask(sample))


NO_THINKING = Sampling(temperature=1.0, top_p=1.0, max_tokens=8, thinking=False)


@pytest.mark.parametrize(
    ("output", "changes", "expected"),
    [
        ([5, 6, THINK_END, 7, 8], {}, "...tttrr"),
        ([THINK_END, 7], {}, "...tr"),
        ([7, 8], {"sampling": NO_THINKING}, "...rr"),
        ([5, 6], {"finish": Finish.LENGTH, "truncated_in": TruncatedIn.THINKING}, "...tt"),
        ([5, THINK_END, 7], {"finish": Finish.LENGTH, "truncated_in": TruncatedIn.RESPONSE}, "...ttr"),
        ([5, TOOL, 6, 7], {"finish": Finish.TOOL_CALLS}, "...tccc"),
        ([5, THINK_END, 8, TOOL, 6], {"finish": Finish.TOOL_CALLS}, "...ttrcc"),
        ([5, THINK_END], {}, "...tt"),
    ],
    ids=["thinking and response", "empty thinking", "thinking off", "cut in thinking", "cut in response",
         "tool call without </think>", "tool call after a response", "nothing after </think>"],
)  # fmt: skip
def test_every_output_token_is_in_the_span_of_its_kind(
    output: list[int], changes: dict[str, Any], expected: str
) -> None:
    """The prompt is never supervised, the output always is, by kind."""
    sample = sample_of(trace(output, **changes))
    assert sample.token_ids == (1, 2, 3, *output)
    assert mask(sample) == expected


def test_a_sample_is_named_by_prompt_and_sample_index() -> None:
    """The id is the trace's key."""
    assert sample_of(trace([5], sample_index=2)).id == "abc-2"


def test_a_conversation_is_a_sample_a_reply() -> None:
    """Of two turns and a system prompt: what was said before is context, each reply is supervised once.

    The second prompt holds the first answer (7, 8) behind an empty thinking (89, 90), as a template has it.
    """
    system, question, answer, again = (
        Message(role="system", content="s"),
        Message(role="user", content="q"),
        Message(role="assistant", content="78"),
        Message(role="user", content="r"),
    )
    first = trace(
        [5, 6, THINK_END, 7, 8, 99], messages=(system, question), prompt_token_ids=(1, 2, 3, 89), turns_left=1
    )
    second = trace(
        [6, THINK_END, 9, 99],
        messages=(system, question, answer, again),
        prompt_token_ids=(1, 2, 3, 89, 90, 7, 8, 99, 4, 89),
        turn=1,
    )
    samples = [sample_of(first), sample_of(second)]
    assert [sample.id for sample in samples] == ["abc-0", "abc-0.1"]
    assert [sample.token_ids for sample in samples] == [
        (1, 2, 3, 89, 5, 6, 90, 7, 8, 99),
        (1, 2, 3, 89, 90, 7, 8, 99, 4, 89, 6, 90, 9, 99),
    ]
    assert [binary_mask(sample) for sample in samples] == ["0000111111", "00000000001111"]
    assert [mask(sample) for sample in samples] == ["....tttrrr", "..........ttrr"]


@pytest.mark.parametrize(("length", "expected"), [(9, "...tttrr"), (7, "...tttr"), (5, "...tt"), (3, "...")])
def test_a_cut_sample_is_an_exact_prefix(length: int, expected: str) -> None:
    """Cutting keeps ids and kinds of what is left."""
    sample = sample_of(trace([5, 6, THINK_END, 7, 8]))
    cut = sample.cut(length)
    assert mask(cut) == expected
    assert cut.token_ids == sample.token_ids[:length]
    assert cut.id == sample.id


@pytest.mark.parametrize(
    "spans",
    [[(0, 2), (1, 3)], [(2, 2)], [(0, 4)], [(2, 3), (0, 1)]],
    ids=["overlap", "empty", "outside", "order"],
)
def test_spans_that_overlap_or_leave_the_tokens_are_refused(spans: list[tuple[int, int]]) -> None:
    """The mask can't be ambiguous."""
    with pytest.raises(ValueError, match="overlaps, is empty or leaves the tokens"):
        Sample(
            id="x",
            domain="d",
            token_ids=(1, 2, 3),
            spans=tuple(Span(start=a, end=b, kind=SpanKind.RESPONSE) for a, b in spans),
        )


def test_a_boundary_outside_the_output_is_refused() -> None:
    """think_end is an index into the output."""
    with pytest.raises(ValueError, match="think_end 9 is outside the 2 output tokens"):
        trace([5, 6], think_end=9)


def test_finish_and_truncation_go_together() -> None:
    """A cut reply says where it was cut, and only a cut one does."""
    with pytest.raises(ValueError, match="disagree"):
        trace([5, 6], finish=Finish.LENGTH)


def test_a_prompt_id_depends_on_content_alone() -> None:
    """The same messages give the same id in every run and release."""
    messages = (Message(role="user", content="What is 2 + 3?"),)
    assert seed_id(messages) == "4fb4c40f910be7a8"
    assert seed_id(messages, ({"type": "function"},)) != seed_id(messages)

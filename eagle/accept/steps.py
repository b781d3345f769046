"""The verify steps of replies: how many drafted tokens each accepted, and in which part of the reply.

A drafted server sends the tokens of one verify step in one event: those it accepted, and its own one after
them. The first event is the prompt's: it has one token, and nothing was drafted for it. The last step of a
reply is cut where the reply ends, and counts as it came: what it would have gone on with is nobody's.

The server's counters know no prompts and no spans, but count the same steps: as many drafts, and as many
accepted tokens but for those behind the replies' ends.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from eagle.accept.bootstrap import Interval, PromptYield, length_interval
from synthgen.client.control import Markers
from synthgen.corpus.records import Record
from synthgen.corpus.samples import Span, spans_of


class PromptSteps(Record, frozen=True, kw_only=True):
    """The verify steps of one prompt's reply."""

    id: str
    domain: str
    draft: str
    """The server: `drafted`, `untrained`, `drafted-7`; `offline` for a walk over hidden states."""
    num_draft_tokens: int
    accepted: tuple[int, ...]
    """Drafted tokens of each step in turn that were accepted."""
    steps_by_span: dict[str, int]
    """In the order of the reply: the first steps are its thinking's. A step is where its first token is."""

    def __post_init__(self) -> None:
        if sum(self.steps_by_span.values()) != len(self.accepted):
            raise ValueError(f"{len(self.accepted)} steps, but {self.steps_by_span} by span")

    @property
    def gained(self) -> PromptYield:
        """Tokens and steps, for intervals."""
        return PromptYield(sum(self.accepted) + len(self.accepted), len(self.accepted))

    def of_span(self, span: str) -> tuple[int, ...]:
        """The part of `accepted` that lies in a span; empty where the reply has none."""
        before = 0
        for name, steps in self.steps_by_span.items():
            if name == span:
                return self.accepted[before : before + steps]
            before += steps
        return ()


class StepFigures(Record, frozen=True, kw_only=True):
    """What some verify steps gave."""

    steps: int
    length: float
    """Tokens a step."""
    rate_by_position: tuple[float, ...]
    """Part of the steps that accepted so many drafted tokens, or more."""


class Breakdown(Record, frozen=True, kw_only=True):
    """Verify steps of replies: of all, by domain, by span."""

    prompts: int
    whole: StepFigures
    interval: Interval | None
    """Of the length, by bootstrap over prompts."""
    by_domain: dict[str, StepFigures]
    by_span: dict[str, StepFigures]


def reply_spans(ids: Sequence[int], markers: Markers, *, thinking: bool) -> tuple[Span, ...]:
    """The spans of a reply, by the tokens that bound them."""
    tool_start = _index(ids, markers.tool_section)
    think_end = _index(ids, markers.think_end) if thinking else None
    if think_end is not None and tool_start is not None and tool_start < think_end:
        think_end = None
    return spans_of(0, len(ids), thinking, think_end, tool_start)


def accepted_of(event_tokens: Sequence[int]) -> tuple[int, ...]:
    """What each verify step of a streamed reply accepted."""
    return tuple(tokens - 1 for tokens in event_tokens[1:])


def spans_of_steps(event_tokens: Sequence[int], spans: Sequence[Span]) -> dict[str, int]:
    """How many verify steps begin in each span of a streamed reply."""
    begins = list(itertools.accumulate(event_tokens))[:-1]
    counts = {str(s.kind): sum(s.start <= begin < s.end for begin in begins) for s in spans}
    return {name: count for name, count in counts.items() if count}


def figures_of(accepted: Iterable[int], positions: int) -> StepFigures | None:
    """Figures of steps at up to `positions` drafted tokens; None when there is no step."""
    counts = list(accepted)
    if not counts:
        return None
    reached = [sum(count >= position for count in counts) for position in range(1, positions + 1)]
    return StepFigures(
        steps=len(counts),
        length=1 + sum(counts) / len(counts),
        rate_by_position=tuple(one / len(counts) for one in reached),
    )


def breakdown_of(prompts: Sequence[PromptSteps], positions: int, seed: int) -> Breakdown | None:
    """All figures of some prompts' steps; None when there is no step."""
    whole = figures_of(_all(prompts), positions)
    if whole is None:
        return None
    domains = sorted({one.domain for one in prompts})
    spans = dict.fromkeys(name for one in prompts for name in one.steps_by_span)
    by_domain = {
        name: figures_of(_all(p for p in prompts if p.domain == name), positions) for name in domains
    }
    by_span = {
        name: figures_of((count for one in prompts for count in one.of_span(name)), positions)
        for name in spans
    }
    return Breakdown(
        prompts=len(prompts),
        whole=whole,
        interval=length_interval([one.gained for one in prompts], seed=seed),
        by_domain={name: figures for name, figures in by_domain.items() if figures},
        by_span={name: figures for name, figures in by_span.items() if figures},
    )


def _all(prompts: Iterable[PromptSteps]) -> Iterable[int]:
    return (count for one in prompts for count in one.accepted)


def _index(ids: Sequence[int], token: int | None) -> int | None:
    return ids.index(token) if token is not None and token in ids else None

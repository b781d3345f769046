"""Acceptance on a live server: by its counters, domain by domain, and by the steps in the replies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from eagle.accept.asker import Answer, Asker
from eagle.accept.report import DraftTokens
from eagle.accept.servers import Server, require_drafting, require_drafts
from eagle.accept.steps import PromptSteps, accepted_of, reply_spans, spans_of_steps
from synthgen.client.control import Markers
from synthgen.client.metrics import SpecCounters
from synthgen.corpus.records import SeedPrompt

STEP_TOLERANCE = 0.01
"""A reader that is slow for a moment gets two steps in one event, a reply that is preempted begins again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What one drafted server did for the held-out prompts."""

    by_domain: dict[str, SpecCounters]
    answers: tuple[tuple[SeedPrompt, Answer], ...]
    output_tokens: float
    """By its counter; more than the replies have when others use the server, too."""

    @property
    def whole(self) -> SpecCounters:
        """Of all domains."""
        return SpecCounters.total(self.by_domain.values())

    @property
    def num_draft_tokens(self) -> int:
        """How many tokens it drafts."""
        return len(self.whole.accepted_by_position)

    @property
    def reply_tokens(self) -> int:
        """Tokens of the replies that came here."""
        return sum(len(answer.ids) for _, answer in self.answers)

    @property
    def steps_seen(self) -> int:
        """Verify steps by the events of the streams."""
        return sum(len(answer.event_tokens) - 1 for _, answer in self.answers)

    @property
    def shows_steps(self) -> bool:
        """Whether the events are the steps: within a hundredth as many as the server counted."""
        drafts = self.whole.drafts
        return abs(self.steps_seen - drafts) <= STEP_TOLERANCE * drafts and any(
            self._is_whole(answer) for _, answer in self.answers
        )

    def prompt_steps(self, draft: str, markers: Markers, *, thinking: bool) -> list[PromptSteps]:
        """The steps of each reply, but of those that have events which can't be one step."""
        return [
            PromptSteps(
                id=prompt.id,
                domain=prompt.domain,
                draft=draft,
                num_draft_tokens=self.num_draft_tokens,
                accepted=accepted_of(answer.event_tokens),
                steps_by_span=spans_of_steps(
                    answer.event_tokens, reply_spans(answer.ids, markers, thinking=thinking)
                ),
            )
            for prompt, answer in self.answers
            if self._is_whole(answer)
        ]

    def _is_whole(self, answer: Answer) -> bool:
        """Whether the prompt's token comes alone, and no event has more tokens than a step gives."""
        return answer.event_tokens[:1] == (1,) and max(answer.event_tokens) <= self.num_draft_tokens + 1


async def count(asker: Asker, server: Server, prompts: Sequence[SeedPrompt], concurrency: int) -> Counted:
    """Send prompts to a drafted server, a domain after the other.

    Raises ServerMismatch when it drafts nothing, ServerError when it was restarted meanwhile.
    """
    by_domain: dict[str, SpecCounters] = {}
    answers: list[tuple[SeedPrompt, Answer]] = []
    output_tokens = 0.0
    for domain, group in _by_domain(prompts):
        before = await server.counts()
        require_drafting(server, before)
        got = await asker.ask_all(server.url, group, concurrency=concurrency, stream=True)
        counted = await server.settled_since(before, sum(len(answer.ids) for answer in got))
        by_domain[domain] = require_drafting(server, counted)
        output_tokens += counted.output_tokens
        answers += zip(group, got, strict=True)
    found = Counted(by_domain=by_domain, answers=tuple(answers), output_tokens=output_tokens)
    require_drafts(server, found.whole, len(prompts))
    return found


def lengths_by_draft_tokens(counted: Sequence[SpecCounters]) -> tuple[DraftTokens, ...]:
    """The acceptance length with 1, 2, … draft tokens, each from the server that drafts the next more."""
    served = {len(one.accepted_by_position): one for one in counted}
    lengths = []
    for tokens in range(1, max(served) + 1):
        source = served[min(count for count in served if count >= tokens)]
        length = 1 + sum(source.rate_by_position[:tokens])
        lengths.append(DraftTokens(num_draft_tokens=tokens, length=length, served=tokens in served))
    return tuple(lengths)


def _by_domain(prompts: Sequence[SeedPrompt]) -> Iterator[tuple[str, list[SeedPrompt]]]:
    for domain in sorted({prompt.domain for prompt in prompts}):
        yield domain, [prompt for prompt in prompts if prompt.domain == domain]

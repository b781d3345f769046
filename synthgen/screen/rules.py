"""All rules, and the verdict that follows from what they find.

A rule answers with what it found, in at most 200 characters or so, and with None when it found nothing.
"""

from __future__ import annotations

from synthgen.corpus.records import Finish, TruncatedIn, prompt_key
from synthgen.corpus.sections import ScreenConfig
from synthgen.corpus.verdicts import DropReason, Verdict
from synthgen.screen.leaks import SpecialTokens, leaked_tokens
from synthgen.screen.loops import degenerate, repetition
from synthgen.screen.refusals import refusal
from synthgen.screen.scripts import language_drift
from synthgen.screen.seen import Seen
from synthgen.screen.view import EXCERPT_CHARS, View, excerpt

VERSION = 1
"""Of the rules: verdicts of another version are made anew."""

Found = dict[DropReason, str]
"""What was found, by rule, in the order of `DropReason`."""


class Screener:
    """The rules with their settings, and what was seen so far: a duplicate is one of an earlier trace.

    Of each trace a number of 64 bits stays.
    """

    def __init__(self, settings: ScreenConfig, special: SpecialTokens) -> None:
        self._drop = frozenset(settings.drop)
        self._max_seq_tokens = settings.max_seq_tokens
        self._special = special
        self._seen = Seen()

    def screen(self, trace: View) -> tuple[Verdict, Found]:
        """The verdict on the next trace of the corpus, and what was found in it."""
        tokens, prompt = trace.tokens, prompt_key(trace.messages)
        answers = (
            (DropReason.DEGENERATE, degenerate(trace)),
            (DropReason.REPETITION, repetition(trace)),
            (DropReason.LEAKED_TOKENS, leaked_tokens(trace, self._special)),
            (DropReason.UNCLOSED_THINKING, unclosed_thinking(trace)),
            (DropReason.EMPTY_THINKING, empty_thinking(trace)),
            (DropReason.EMPTY_RESPONSE, empty_response(trace)),
            (DropReason.REFUSAL, refusal(trace)),
            (DropReason.LANGUAGE_DRIFT, language_drift(trace)),
            (DropReason.OVER_LONG, over_long(trace, tokens, self._max_seq_tokens)),
            (DropReason.DUPLICATE, self._duplicate(trace, prompt)),
            (DropReason.TRUNCATED_IN_THINKING, truncated_in_thinking(trace)),
            (DropReason.TRUNCATED_IN_RESPONSE, truncated_in_response(trace)),
        )
        found = {rule: what for rule, what in answers if what is not None}
        verdict = Verdict(
            trace=trace.id,
            source=trace.source,
            domain=trace.domain,
            prompt=prompt,
            tokens=tokens,
            reason=next((rule for rule in found if rule in self._drop), None),
            tags=tuple(found),
        )
        return verdict, found

    def _duplicate(self, trace: View, prompt: str) -> str | None:
        """Whether an earlier trace has the same output ids after the same prompt.

        Prompts are the same by `prompt_key`; what follows the first user message must be the same words, so
        that a short answer may come twice in one conversation, and "4" after many prompts.
        """
        key = hash((prompt, trace.later_words, trace.ids))
        return None if self._seen.add(key) else excerpt("".join(trace.texts))


def unclosed_thinking(trace: View) -> str | None:
    """The model ended its turn in the thinking, with neither `</think>` nor a tool section."""
    open_at_end = trace.think_end is None and trace.tool_start is None and not trace.has_tool_calls
    if trace.sampling.thinking and trace.finish is Finish.STOP and open_at_end:
        return _end_of(trace)
    return None


def empty_thinking(trace: View) -> str | None:
    """Thinking was on and has nothing but blanks; one that was cut before it closed may still come."""
    if not trace.sampling.thinking or trace.truncated_in is TruncatedIn.THINKING:
        return None
    thinking, response = trace.texts
    if trace.think_end == 0 or (not thinking.strip() and not _holds_thinking(response)):
        return excerpt(response)
    return None


def _holds_thinking(response: str) -> bool:
    """Whether the server left the thinking in the response."""
    return "think>" in response


def empty_response(trace: View) -> str | None:
    """The turn ended with neither text nor tool call."""
    is_empty = not (trace.response or "").strip() and trace.tool_start is None and not trace.has_tool_calls
    return _end_of(trace) if is_empty and not trace.is_cut else None


def over_long(trace: View, tokens: int, max_seq_tokens: int) -> str | None:
    """Prompt and output are more than `max_seq_tokens`."""
    if tokens + trace.prompt_tokens <= max_seq_tokens:
        return None
    return f"{trace.prompt_tokens:,} prompt and {tokens:,} output tokens"


def truncated_in_thinking(trace: View) -> str | None:
    """The budget ran out in the thinking."""
    return _end_of(trace) if trace.truncated_in is TruncatedIn.THINKING else None


def truncated_in_response(trace: View) -> str | None:
    """The budget ran out after it."""
    return _end_of(trace) if trace.truncated_in is TruncatedIn.RESPONSE else None


def _end_of(trace: View) -> str:
    text = "".join(trace.texts)
    return " ".join(text[-EXCERPT_CHARS:].split())

"""What screening finds of a trace: kept, or dropped for one reason. A trace itself is never changed."""

from __future__ import annotations

import enum

from synthgen.corpus.records import Record


class DropReason(enum.StrEnum):
    """What can be wrong with a trace, in the order in which one reason is chosen of several."""

    DEGENERATE = "degenerate"
    """One character or token over and over: `!!!!`."""
    REPETITION = "repetition"
    """A passage that repeats until the end, or for a large part of the reply."""
    LEAKED_TOKENS = "leaked_tokens"
    """Special or tool tokens where none may be."""
    UNCLOSED_THINKING = "unclosed_thinking"
    """The model ended its turn inside the thinking."""
    EMPTY_THINKING = "empty_thinking"
    """Thinking was on, and there is none."""
    EMPTY_RESPONSE = "empty_response"
    """The turn ended with neither text nor tool call after the thinking."""
    REFUSAL = "refusal"
    LANGUAGE_DRIFT = "language_drift"
    """Written in a script that the prompt neither uses nor asks for."""
    OVER_LONG = "over_long"
    DUPLICATE = "duplicate"
    """The same reply is in the corpus already."""
    TRUNCATED_IN_THINKING = "truncated_in_thinking"
    TRUNCATED_IN_RESPONSE = "truncated_in_response"


class Verdict(Record, frozen=True, kw_only=True):
    """The verdict on one trace, with what mixing has to know of it."""

    trace: str
    """Its id."""
    source: str
    domain: str
    prompt: str
    """`records.prompt_key` of its conversation."""
    tokens: int
    """Output tokens: those that are supervised."""
    reason: DropReason | None
    """Why it is dropped; None when it is kept."""
    tags: tuple[DropReason, ...] = ()
    """Everything that was found, the reason included."""

    def __post_init__(self) -> None:
        if self.reason is not None and self.reason not in self.tags:
            raise ValueError(f"reason {self.reason} is not among the tags {list(self.tags)}")

"""A conversation as it goes on: each user turn is asked after the model's own answer to what came before.

Of an answer only its text goes into the history, since the chat template drops earlier thinking; so each
reply is an exact sample with a prompt of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from synthgen.corpus.records import Finish, Message, SeedPrompt, Trace


@dataclass(frozen=True, slots=True)
class Open:
    """A conversation that goes on."""

    turn: int
    """The number of the reply that comes next: as many are there."""
    messages: tuple[Message, ...]
    """All that was said, the last answer included."""


def open_after(
    *,
    turn: int,
    turns_left: int,
    messages: tuple[Message, ...],
    response: str | None,
    finish: Finish,
    tool_start: int | None,
) -> Open | None:
    """The conversation after a reply of `response` to `messages`; None when that was its end.

    It ends early with a reply that was cut, called tools or has no text: no user would go on from there.
    """
    is_whole = finish is Finish.STOP and tool_start is None
    if not (turns_left and is_whole and response and response.strip()):
        return None
    return Open(turn + 1, (*messages, Message(role="assistant", content=response)))


def open_of(trace: Trace) -> Open | None:
    """The conversation after a trace."""
    return open_after(
        turn=trace.turn,
        turns_left=trace.turns_left,
        messages=trace.messages,
        response=trace.response,
        finish=trace.finish,
        tool_start=trace.tool_start,
    )


def next_prompt(prompt: SeedPrompt, so_far: Open | None) -> SeedPrompt:
    """What is asked next: the prompt with all that was said and its next turn, under the id of the whole."""
    if so_far is None:
        return prompt
    asked = Message(role="user", content=prompt.turns[so_far.turn - 1])
    return msgspec.structs.replace(
        prompt, messages=(*so_far.messages, asked), turns=prompt.turns[so_far.turn :]
    )

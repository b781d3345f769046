"""A server's reply as a trace: exact ids, the boundaries in them, and why it ended."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from synthgen.client.control import Fingerprint, Markers
from synthgen.client.replies import ChatReply
from synthgen.corpus.config import RunConfig
from synthgen.corpus.records import (
    FailureKind,
    Finish,
    Sampling,
    SeedPrompt,
    Timing,
    Trace,
    TruncatedIn,
)
from synthgen.corpus.token_ids import are_ids, count_ids, index_of
from synthgen.errors import RequestFailed


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """What the harness has to know of the server: who it is and which ids bound the parts."""

    fingerprint: Fingerprint
    markers: Markers
    captures: tuple[int, ...] | None = None
    """Ids of the layers whose states come with the replies; None when they aren't asked for."""


def sampling_of(config: RunConfig, prompt: SeedPrompt | None = None) -> Sampling:
    """How this run samples, for `prompt` with what it overrides."""
    settings = config.generate
    sampling = Sampling(
        temperature=settings.temperature,
        top_p=settings.top_p,
        max_tokens=settings.max_tokens,
        thinking=settings.thinking,
    )
    if prompt is None or prompt.sampling is None:
        return sampling
    asked = {k: v for k, v in msgspec.structs.asdict(prompt.sampling).items() if v is not None}
    return msgspec.structs.replace(sampling, **asked)


def trace_of(
    prompt: SeedPrompt,
    index: int,
    reply: ChatReply,
    sampling: Sampling,
    server: ServerFacts,
    attempts: int,
    timing: Timing,
    turn: int = 0,
) -> Trace:
    """A server's reply to a prompt as it stands at `turn`, as a trace.

    Raises RequestFailed when the reply lacks ids or contradicts itself.
    """
    if not reply.choices:
        raise _malformed("the reply has no choices")
    choice = reply.choices[0]
    ids, length = choice.ids, reply.usage.completion_tokens
    if not are_ids(ids) or not reply.prompt_token_ids:
        raise _malformed("the reply has no token ids: does the server know `return_token_ids`?")
    if count_ids(ids) != length:
        raise _malformed(f"{count_ids(ids)} token ids, but usage says {length}")
    try:
        finish = Finish(choice.finish_reason or "")
    except ValueError as error:
        raise _malformed(f"unknown finish_reason {choice.finish_reason!r}") from error
    think_end, tool_start = _boundaries(ids, server.markers, sampling.thinking)
    message = choice.message
    return Trace(
        seed_id=prompt.id,
        sample_index=index,
        turn=turn,
        turns_left=len(prompt.turns),
        source=prompt.source,
        domain=prompt.domain,
        messages=prompt.messages,
        tools=prompt.tools,
        prompt_token_ids=reply.prompt_token_ids,
        output=ids,
        think_end=think_end,
        tool_start=tool_start,
        thinking=message.reasoning or message.reasoning_content,
        response=message.content,
        tool_calls=message.tool_calls or (),
        finish=finish,
        truncated_in=_truncated_in(finish, sampling.thinking, think_end, tool_start),
        sampling=sampling,
        server=server.fingerprint.digest,
        timing=timing,
        attempts=attempts,
        states_file=_states_file(reply, server.captures),
    )


def _boundaries(ids: msgspec.Raw, markers: Markers, thinking: bool) -> tuple[int | None, int | None]:
    """Where thinking closes and where the tool section opens, which may close thinking by itself."""
    tool_start = None if markers.tool_section is None else index_of(ids, markers.tool_section)
    think_end = index_of(ids, markers.think_end) if thinking and markers.think_end is not None else None
    if think_end is not None and tool_start is not None and tool_start < think_end:
        think_end = None
    return think_end, tool_start


def _states_file(reply: ChatReply, layers: tuple[int, ...] | None) -> str | None:
    """The spool file of the right layers' states; a server that came back may hand over others, or none."""
    told = reply.kv_transfer_params or {}
    name = told.get("states_file")
    if layers is None or not isinstance(name, str) or told.get("layer_ids") != list(layers):
        return None
    return name


def _truncated_in(
    finish: Finish, thinking: bool, think_end: int | None, tool_start: int | None
) -> TruncatedIn | None:
    if finish is not Finish.LENGTH:
        return None
    in_thinking = thinking and think_end is None and tool_start is None
    return TruncatedIn.THINKING if in_thinking else TruncatedIn.RESPONSE


def _malformed(message: str) -> RequestFailed:
    return RequestFailed(message, kind=FailureKind.MALFORMED, attempts=1)

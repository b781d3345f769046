"""The records that flow from prompts to training samples.

Each is frozen and forbids unknown fields, so that what is read is what was written. Invariants are
checked where a record is made, which includes reading it back from disk.
"""

from __future__ import annotations

import enum
import hashlib
from typing import Any

import msgspec

from synthgen.corpus.token_ids import are_ids, count_ids, decode_ids

SCHEMA_VERSION = 1


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of every record on disk."""


class FunctionCall(Record, frozen=True, kw_only=True):
    """The function of a tool call: its name and its arguments as the JSON text the model wrote."""

    name: str
    arguments: str


class ToolCall(Record, frozen=True, kw_only=True):
    """One tool call of an assistant message, in the OpenAI shape."""

    id: str
    function: FunctionCall
    type: str = "function"


class Message(Record, frozen=True, kw_only=True):
    """One message of a conversation, in the OpenAI shape."""

    role: str
    content: str | None = None
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None


class SamplingOverride(Record, frozen=True, kw_only=True):
    """What a prompt asks to be sampled otherwise than the run does; None keeps the run's value."""

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    thinking: bool | None = None

    def __post_init__(self) -> None:
        if self.temperature is not None and self.temperature < 0:
            raise ValueError(f"sampling.temperature {self.temperature} is negative")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"sampling.top_p {self.top_p} is not above 0 and at most 1")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ValueError(f"sampling.max_tokens {self.max_tokens} is less than 1")


class SeedPrompt(Record, frozen=True, kw_only=True):
    """A prompt to send. `id` is a hash of its content, so it survives reordering and resuming."""

    id: str
    source: str
    """Where it came from: file name, without directories."""
    domain: str
    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()
    sampling: SamplingOverride | None = None
    turns: tuple[str, ...] = ()
    """User turns that follow, each sent after the model's own answer to what came before."""

    def __post_init__(self) -> None:
        if not self.messages or self.messages[-1].role not in ("user", "tool"):
            raise ValueError("a prompt ends with a user (or tool) message")


class Sampling(Record, frozen=True, kw_only=True):
    """How a reply was sampled."""

    temperature: float
    top_p: float
    max_tokens: int
    thinking: bool


class Finish(enum.StrEnum):
    """Why the server stopped."""

    STOP = "stop"
    """The model ended its turn."""
    LENGTH = "length"
    """The token budget ran out: the reply is an exact prefix, kept and never retried."""
    TOOL_CALLS = "tool_calls"
    """The model ended its turn with tool calls."""


class TruncatedIn(enum.StrEnum):
    """The part of the reply that was being written when the budget ran out."""

    THINKING = "thinking"
    RESPONSE = "response"


class Timing(Record, frozen=True, kw_only=True):
    """Wall-clock of one request: the start in seconds since the epoch, and its duration in seconds."""

    started_at: float
    seconds: float


class Trace(Record, frozen=True, kw_only=True, rename={"output": "output_token_ids"}):
    """One reply of the model. Ids are the server's own, never re-tokenized text."""

    seed_id: str
    sample_index: int
    turn: int = 0
    """Number of the reply in its conversation: the messages hold as many earlier replies of the model."""
    turns_left: int = 0
    """User turns that were still to come."""
    source: str
    domain: str
    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()
    prompt_token_ids: tuple[int, ...]
    output: msgspec.Raw
    """Its token ids as JSON text; decoded they are `output_token_ids`."""
    think_end: int | None
    """Index of `</think>` in the output; None when the output has none."""
    tool_start: int | None
    """Index of the token that opens the tool-call section; None without one."""
    thinking: str | None
    response: str | None
    tool_calls: tuple[ToolCall, ...] = ()
    finish: Finish
    truncated_in: TruncatedIn | None
    sampling: Sampling
    server: str
    """Digest of the server's fingerprint (see `synthgen.client.control.Fingerprint`)."""
    timing: Timing
    attempts: int = 1
    states_file: str | None = None
    """The file in the run's spool with its hidden states, if they were captured."""
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        _check_version(self.schema_version)
        if not self.prompt_token_ids or not are_ids(self.output):
            raise ValueError("a trace has prompt and output token ids")
        for name, index in (("think_end", self.think_end), ("tool_start", self.tool_start)):
            if index is not None and not 0 <= index < self.output_length:
                raise ValueError(f"{name} {index} is outside the {self.output_length} output tokens")
        if (self.finish is Finish.LENGTH) != (self.truncated_in is not None):
            raise ValueError(f"finish {self.finish} and truncated_in {self.truncated_in} disagree")

    @property
    def id(self) -> str:
        """Its name, here and as a sample."""
        return reply_id(self.seed_id, self.sample_index, self.turn)

    @property
    def output_token_ids(self) -> tuple[int, ...]:
        """The output's ids, decoded at each call."""
        return decode_ids(self.output)

    @property
    def output_length(self) -> int:
        """How many output tokens there are."""
        return count_ids(self.output)

    @property
    def key(self) -> tuple[str, int]:
        """Its row: the prompt and its number among the prompt's samples. With the turn it is one reply."""
        return (self.seed_id, self.sample_index)


class FailureKind(enum.StrEnum):
    """Why there is no trace."""

    REJECTED = "rejected"
    """The server answered 4xx: sending the same again is useless."""
    OVERLOADED = "overloaded"
    """429 or 5xx on every try."""
    TRANSPORT = "transport"
    """The connection broke or timed out on every try."""
    MALFORMED = "malformed"
    """The reply lacked token ids or contradicted itself."""


class Failure(Record, frozen=True, kw_only=True):
    """A prompt that got no reply: a record, never a missing row."""

    seed_id: str
    sample_index: int
    turn: int = 0
    """The reply that is missing; those before it are traces."""
    kind: FailureKind
    message: str
    attempts: int
    reply: str | None = None
    """What the server sent, when that can't be a trace."""
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        _check_version(self.schema_version)

    @property
    def key(self) -> tuple[str, int]:
        """The same key a trace would have had."""
        return (self.seed_id, self.sample_index)


def reply_id(seed: str, sample_index: int, turn: int = 0) -> str:
    """The id of a reply: prompt and sample index, and after the first turn its number."""
    return f"{seed}-{sample_index}.{turn}" if turn else f"{seed}-{sample_index}"


def prompt_key(messages: tuple[Message, ...]) -> str:
    """What makes two conversations the same prompt: the words of the first user message, as 16 hex digits.

    Case and blanks make no difference, nor does the system prompt; later turns belong to the same prompt.
    """
    first = next((message.content for message in messages if message.role == "user"), None) or ""
    return hashlib.sha256(" ".join(first.casefold().split()).encode()).hexdigest()[:16]


def seed_id(
    messages: tuple[Message, ...],
    tools: tuple[dict[str, Any], ...] = (),
    sampling: SamplingOverride | None = None,
    turns: tuple[str, ...] = (),
) -> str:
    """The id of a prompt: 16 hex digits of the sha256 of its canonical JSON."""
    parts = (messages, tools, *(part for part in (sampling, turns) if part))
    content = msgspec.json.encode(parts, order="deterministic")
    return hashlib.sha256(content).hexdigest()[:16]


def _check_version(version: int) -> None:
    if version != SCHEMA_VERSION:
        raise ValueError(f"schema_version {version}, this release reads {SCHEMA_VERSION}")

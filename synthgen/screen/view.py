"""A trace as far as screening reads it: the ids stay the text in which they are written."""

from __future__ import annotations

import msgspec

from synthgen.corpus.records import Finish, Message, TruncatedIn, reply_id
from synthgen.corpus.token_ids import count_ids

EXCERPT_CHARS = 200
EMPTY = msgspec.Raw(b"[]")


class Sampled(msgspec.Struct, frozen=True, gc=False):
    """How the reply was sampled."""

    thinking: bool


class View(msgspec.Struct, frozen=True, kw_only=True, gc=False, rename={"output": "output_token_ids"}):
    """One trace: the fields of `records.Trace` that a rule reads."""

    seed_id: str
    sample_index: int
    turn: int = 0
    source: str
    domain: str
    messages: tuple[Message, ...]
    tools: msgspec.Raw = EMPTY
    prompt_token_ids: msgspec.Raw
    output: msgspec.Raw
    think_end: int | None
    tool_start: int | None
    thinking: str | None
    response: str | None
    tool_calls: msgspec.Raw = EMPTY
    finish: Finish
    truncated_in: TruncatedIn | None
    sampling: Sampled
    ids: bytes = b""
    """The output's ids, `[1,2,3]` without blanks, once for all rules: never read from a file."""

    def __post_init__(self) -> None:
        ids = bytes(self.output)
        msgspec.structs.force_setattr(self, "ids", ids.replace(b" ", b"") if b" " in ids else ids)

    @property
    def id(self) -> str:
        """As `records.Trace.id`."""
        return reply_id(self.seed_id, self.sample_index, self.turn)

    @property
    def tokens(self) -> int:
        """Output tokens, counted at each call."""
        return count_ids(self.output)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt, counted at each call."""
        return count_ids(self.prompt_token_ids)

    @property
    def later_words(self) -> tuple[str | None, ...]:
        """What was said after the first user message."""
        first = next((i for i, message in enumerate(self.messages) if message.role == "user"), 0)
        return tuple(message.content for message in self.messages[first + 1 :])

    @property
    def texts(self) -> tuple[str, str]:
        """Thinking and response, each empty when there is none."""
        return self.thinking or "", self.response or ""

    @property
    def is_cut(self) -> bool:
        """Whether the token budget ran out."""
        return self.finish is Finish.LENGTH

    @property
    def has_tool_calls(self) -> bool:
        """Whether the server parsed a tool call in it."""
        return bytes(self.tool_calls) != b"[]"

    @property
    def may_call_tools(self) -> bool:
        """Whether tool tokens have a place in it: the prompt offered tools, or a call was parsed."""
        return bytes(self.tools) != b"[]" or self.has_tool_calls


def excerpt(text: str, start: int = 0) -> str:
    """At most 200 characters of `text` around `start`, on one line."""
    first = max(0, start - EXCERPT_CHARS // 4)
    return " ".join(text[first : first + EXCERPT_CHARS].split())

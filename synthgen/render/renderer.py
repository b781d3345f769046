"""Replies that others wrote, as rows of a dataset: the ids are those of the verifier's own server.

A chat template writes a conversation around its replies. Where a reply begins is where the rendered prompt
before it ends; where it ends is where what the template writes after every reply begins, the first token of
which is the one that the model samples to stop. Nothing is found by looking for text.
"""

from __future__ import annotations

import asyncio
import enum
import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from synthgen.client.api import ApiClient
from synthgen.client.control import Control, Fingerprint, Markers
from synthgen.corpus.config import RunConfig
from synthgen.corpus.records import FailureKind, Finish, Message, prompt_key, seed_id
from synthgen.corpus.samples import DatasetRow, Origin, Span, SpanKind
from synthgen.errors import RequestFailed, ServerMismatch
from synthgen.sources.conversations import Conversation

CONCURRENCY = 16
THINKING_OFF = {"thinking": False}
ROW_REFUSED = frozenset({400, 422})
"""Statuses that are about the conversation; any other 4xx every conversation would get."""
PROBE = Message(role="user", content="One?")
PROBE_REPLIES = ("Yes", "No")
SPECIAL_TEXT = re.compile(r"</?think(?:ing)?>|<[|｜][^|｜<>\s]{1,40}[|｜]>")
"""What opens or closes a part in the templates of others; as text of a reply it would become one token."""


class RowDrop(enum.StrEnum):
    """Why a conversation is no row."""

    HELDOUT = "heldout"
    """Its prompt, or one that prompts.near_duplicates takes for it, is kept for evaluation."""
    EXCLUDED = "excluded"
    """Its first user message has the words of one that prompts.exclude has."""
    NEAR_EXCLUDED = "near_excluded"
    DUPLICATE = "duplicate"
    SPECIAL_TOKENS = "special_tokens"
    """A reply has another model's thinking, text that would become a special token, or such a token where
    the model samples none."""
    REFUSED = "refused"
    """The server's template refuses the conversation."""
    INEXACT = "inexact"
    """The template writes no reply as it asks for one, so the model would have sampled none of them."""
    OVER_LONG = "over_long"


@dataclass(frozen=True, slots=True)
class Dropped:
    """A conversation that is no row, and what there is to say of it."""

    reason: RowDrop
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """What a server's template and tokenizer do with replies."""

    tail: tuple[int, ...]
    """Ids that follow each reply. The model samples the first to stop, and the others never."""
    turn_end: str
    """The text of that first one."""
    markers: Markers


def read_template(control: Control, config: RunConfig) -> Template:
    """Find out by rendering two replies to one prompt.

    Raises ServerMismatch when they don't end alike, so that the end of a reply can't be told.
    """
    model = config.verifier.served_name

    def ids(*messages: Message, asks: bool = False) -> tuple[int, ...]:
        return tuple(control.tokenize(model, **conversation_body(messages, asks=asks)))

    prompt = ids(PROBE, asks=True)
    first, second = (ids(PROBE, Message(role="assistant", content=text)) for text in PROBE_REPLIES)
    tail = common_tail(first[len(prompt) :], second[len(prompt) :])
    if not tail or first == second:
        raise ServerMismatch(
            f"the chat template of {control.base_url} writes nothing after a reply that shows where it ends: "
            f"replies of others can't be used with it"
        )
    return Template(
        tail=tail, turn_end=control.detokenize(model, [tail[0]]), markers=control.markers(config.verifier)
    )


def common_tail(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    """The longest common end of two sequences."""
    pairs = zip(reversed(first), reversed(second), strict=False)
    length = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    return first[len(first) - length :]


@dataclass(frozen=True, slots=True)
class Rendered:
    """A conversation up to where a reply is asked for, and through it, as the template writes the two."""

    prefix: tuple[int, ...]
    through: tuple[int, ...]


def reply_span(reply: Rendered, full: tuple[int, ...], template: Template) -> tuple[int, int] | None:
    """Where in a conversation's ids a reply is, its end-of-turn token included.

    None when the conversation doesn't begin with exactly what the model would have been given and have
    written: a template that rewrites what came before, or writes thinking into a reply that has none.
    """
    tail = template.tail
    start, end = len(reply.prefix), len(reply.through) - len(tail) + 1
    written = full[start : end - 1]
    exact = (
        reply.through[-len(tail) :] == tail
        and reply.through[:end] == full[:end]
        and reply.prefix == full[:start]
        and written
        and tail[0] not in written
        and template.markers.think_end not in written
    )
    return (start, end) if exact else None


class Renderer:
    """Turns conversations into rows with one server."""

    def __init__(
        self, config: RunConfig, client: ApiClient, template: Template, fingerprint: Fingerprint
    ) -> None:
        self._model = config.verifier.served_name
        self._key_env = config.server.api_key_env
        self._max_seq_tokens = config.screen.max_seq_tokens
        self._client = client
        self._template = template
        self._server = fingerprint.digest
        self._slots = asyncio.Semaphore(CONCURRENCY)
        named = (config.verifier.think_end, config.verifier.tool_section, template.turn_end)
        self._special = tuple(text for text in named if text and text.strip())
        self._names = {token: name for name, token in template.markers.special.items()}

    async def row(self, conversation: Conversation, part: str) -> DatasetRow | Dropped:
        """A conversation as a row. Raises ServerError when the server is at fault, not the conversation."""
        special = self._special_text(conversation)
        if special:
            return Dropped(RowDrop.SPECIAL_TOKENS, f"a reply has {special!r}")
        try:
            async with self._slots:
                replies = [await self._rendered(conversation, index) for index in conversation.replies]
        except RequestFailed as error:
            if error.kind != FailureKind.REJECTED:
                raise
            if error.status in ROW_REFUSED:
                return Dropped(RowDrop.REFUSED, str(error))
            raise ServerMismatch(
                f"/tokenize of the render server refuses {conversation.id} of part {part!r} with {error}. "
                f"See whether it takes the key in {self._key_env}, has /tokenize and lets bodies of this "
                f"size through"
            ) from error
        return self._row(conversation, replies, part)

    async def _rendered(self, conversation: Conversation, index: int) -> Rendered:
        messages, tools = conversation.messages, conversation.tools
        ask = {"model": self._model, **conversation_body(messages[:index], tools, asks=True)}
        told = {"model": self._model, **conversation_body(messages[: index + 1], tools)}
        return Rendered(await self._client.tokenize(ask), await self._client.tokenize(told))

    def _row(self, conversation: Conversation, replies: list[Rendered], part: str) -> DatasetRow | Dropped:
        full = replies[-1].through
        found = [
            (index, span)
            for index, reply in zip(conversation.replies, replies, strict=True)
            if (span := reply_span(reply, full, self._template))
        ]
        if not found:
            return Dropped(RowDrop.INEXACT, "the template renders no reply as it asks for one")
        names = (self._stray(conversation.messages[index], full[slice(*span)]) for index, span in found)
        stray = next(filter(None, names), None)
        if stray is not None:
            return Dropped(RowDrop.SPECIAL_TOKENS, f"among a reply's ids is that of {stray!r}")
        last, (_, end) = found[-1]
        if end > self._max_seq_tokens:
            return Dropped(RowDrop.OVER_LONG, f"{end:,} tokens")
        asked, reply = conversation.messages[:last], conversation.messages[last]
        return DatasetRow(
            id=f"v-{seed_id((*asked, reply), conversation.tools)}",
            domain=conversation.domain,
            token_ids=full[:end],
            spans=tuple(self._spans(full, (span for _, span in found))),
            part=part,
            source=conversation.source,
            origin=Origin.VERBATIM,
            prompt=prompt_key(asked),
            messages=asked,
            tools=conversation.tools,
            response=reply.content,
            tool_calls=reply.tool_calls,
            finish=Finish.TOOL_CALLS if reply.tool_calls else Finish.STOP,
            server=self._server,
        )

    def _stray(self, reply: Message, ids: tuple[int, ...]) -> str | None:
        """The first special token among a reply's `ids` that has no place there; None without.

        The last one, which ends the turn, has; those of tools have from the tool section on, and in any reply
        with calls when the verifier names no section.
        """
        opening = self._template.markers.tool_section
        may_call = opening is None and bool(reply.tool_calls)
        for token in ids[:-1]:
            may_call = may_call or token == opening
            name = self._names.get(token)
            if name is not None and not (may_call and (token == opening or "tool" in name.lower())):
                return name
        return None

    def _spans(self, full: tuple[int, ...], found: Iterable[tuple[int, int]]) -> Iterable[Span]:
        """Spans by kind: a tool section goes on to the end of its reply."""
        opening = self._template.markers.tool_section
        for start, end in found:
            tool = next((i for i in range(start, end) if full[i] == opening), end)
            if start < tool:
                yield Span(start=start, end=tool, kind=SpanKind.RESPONSE)
            if tool < end:
                yield Span(start=tool, end=end, kind=SpanKind.TOOL)

    def _special_text(self, conversation: Conversation) -> str | None:
        for index in conversation.replies:
            content = conversation.messages[index].content or ""
            match = SPECIAL_TEXT.search(content)
            if match:
                return match[0]
            found = next((text for text in self._special if text in content), None)
            if found:
                return found
        return None


def conversation_body(
    messages: Iterable[Message], tools: tuple[dict[str, Any], ...] = (), *, asks: bool = False
) -> dict[str, Any]:
    """What /tokenize is asked: the conversation as it is, or with the opening of a reply."""
    body = {
        "messages": msgspec.to_builtins(tuple(messages)),
        "add_generation_prompt": asks,
        "chat_template_kwargs": THINKING_OFF,
    }
    return {**body, "tools": list(tools)} if tools else body

"""What a pipeline that keeps only texts would train on: their ids, beside those that were sampled.

Of some traces, chosen by hash, the texts are tokenized by the verifier's own server. What follows the first
difference is predicted from tokens that the model never had before it.
"""

from __future__ import annotations

import asyncio
import enum
import hashlib
import heapq
import time
from dataclasses import dataclass
from typing import Any

import msgspec

from synthgen.client.api import ApiClient, client_for
from synthgen.client.control import Control, Markers, api_key
from synthgen.client.launch import Served, rendering, served
from synthgen.corpus.config import RunConfig
from synthgen.corpus.console import bar
from synthgen.corpus.files import directory_written_aside
from synthgen.corpus.journal import read_journal
from synthgen.corpus.manifest import (
    Manifest,
    digest_of,
    manifest_of,
    require_manifest,
    write_manifest,
)
from synthgen.corpus.records import Finish, Message, ToolCall, reply_id
from synthgen.corpus.settings import save_config
from synthgen.corpus.token_ids import decode_ids
from synthgen.errors import ServerUnreachable, first_of
from synthgen.render.renderer import CONCURRENCY, common_tail, conversation_body
from synthgen.render.stage import require_same_ids

AROUND = 4
"""Tokens shown on each side of a difference."""
EXAMPLES = 5


class Where(enum.StrEnum):
    """The part of a reply in which the texts first read back as other tokens."""

    THINKING = "thinking"
    BOUNDARY = "boundary"
    """`</think>` or one of the two tokens beside it."""
    RESPONSE = "response"
    TOOL = "tool"


@dataclass(frozen=True, slots=True)
class Difference:
    """The first token at which two sequences part."""

    index: int
    where: Where
    tokens_after: int
    """Sampled tokens from there on."""


class _Sampled(msgspec.Struct, frozen=True):
    thinking: bool


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What an audit needs of a trace."""

    seed_id: str
    sample_index: int
    turn: int = 0
    output_token_ids: msgspec.Raw
    think_end: int | None
    tool_start: int | None
    thinking: str | None
    response: str | None
    tool_calls: tuple[ToolCall, ...] = ()
    finish: Finish
    sampling: _Sampled

    @property
    def id(self) -> str:
        """The trace's."""
        return reply_id(self.seed_id, self.sample_index, self.turn)

    @property
    def written(self) -> tuple[int, ...]:
        """The sampled ids without the one that ended the turn, which no text has."""
        ids = decode_ids(self.output_token_ids)
        return ids if self.finish is Finish.LENGTH else ids[:-1]

    def text(self, think_end: str | None) -> str:
        """Thinking and response as the API gave them, around `think_end` where the model closed it."""
        closing = think_end or "" if self.think_end is not None else ""
        return (self.thinking or "") + closing + (self.response or "")


def audit(config: RunConfig, traces: int) -> Manifest:
    """Compare `traces` of a corpus; the result is in the manifest's figures and in the run's `audit`.

    Raises ArtifactError when the corpus is missing or its server isn't this one, ServerError when that isn't
    there.
    """
    corpus = require_manifest(config.corpus_path, "synthgen generate CONFIG")
    started = time.monotonic()
    replies = _chosen(config, traces)
    with served(config, rendering(config)) as servers:
        control = Control(servers.base_urls[0], api_key(config.server.api_key_env))
        fingerprint = control.fingerprint(config.verifier.served_name)
        require_same_ids(config, corpus, fingerprint)
        again = _again(config, servers, replies, control.markers(config.verifier))
        figures = _figures(config, control, replies, again)
    manifest = manifest_of(
        "audit",
        settings={"traces": traces, "verifier": config.verifier, "seed": config.seed},
        inputs={"corpus": digest_of(corpus), "server": fingerprint.digest},
        figures=figures,
        seconds=time.monotonic() - started,
    )
    with directory_written_aside(config.audit_path) as aside:
        write_manifest(aside, manifest)
        save_config(config, aside / "run.yaml")
    return manifest


def difference(reply: Reply, again: tuple[int, ...]) -> Difference | None:
    """Where the ids of a reply's texts leave those that were sampled; None when they never do."""
    sampled = reply.written
    if sampled == again:
        return None
    pairs = zip(sampled, again, strict=False)
    shorter = min(len(sampled), len(again))
    index = next((i for i, (old, new) in enumerate(pairs) if old != new), shorter)
    return Difference(index, _where(reply, index), len(sampled) - index)


def _where(reply: Reply, index: int) -> Where:
    if reply.tool_start is not None and index >= reply.tool_start:
        return Where.TOOL
    if reply.think_end is None:
        return Where.THINKING if reply.sampling.thinking else Where.RESPONSE
    if abs(index - reply.think_end) <= 1:
        return Where.BOUNDARY
    return Where.THINKING if index < reply.think_end else Where.RESPONSE


def _chosen(config: RunConfig, count: int) -> list[Reply]:
    def drawn(reply: Reply) -> bytes:
        return hashlib.sha256(f"{config.seed}:audit:{reply.id}".encode()).digest()

    return heapq.nsmallest(count, read_journal(config.traces_path, Reply, "Trace"), key=drawn)


def _again(
    config: RunConfig, servers: Served, replies: list[Reply], markers: Markers
) -> list[tuple[int, ...]]:
    """The ids of the replies' texts."""
    try:
        return asyncio.run(_tokenized(config, servers.base_urls[0], replies, markers))
    except ServerUnreachable:
        servers.require_alive()  # says why, when it is ours
        raise


async def _tokenized(
    config: RunConfig, base_url: str, replies: list[Reply], markers: Markers
) -> list[tuple[int, ...]]:
    slots = asyncio.Semaphore(CONCURRENCY)
    async with client_for(config, base_url, concurrency=CONCURRENCY, max_tokens=1) as client:
        with bar("audit", total=len(replies)) as progress:

            async def one(reply: Reply) -> tuple[int, ...]:
                async with slots:
                    text = {
                        "model": config.verifier.served_name,
                        "prompt": reply.text(config.verifier.think_end),
                    }
                    ids = await client.tokenize(text) if text["prompt"] else ()
                    ids += await _tool_section(client, config.verifier.served_name, reply, markers)
                progress.advance()
                return ids

            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(one(reply)) for reply in replies]
            except BaseExceptionGroup as errors:
                raise first_of(errors) from errors
    return [task.result() for task in tasks]


async def _tool_section(client: ApiClient, model: str, reply: Reply, markers: Markers) -> tuple[int, ...]:
    """The ids of the reply's tool calls, as the template writes them."""
    if not reply.tool_calls:
        return ()
    asked = Message(role="user", content="")
    called = Message(role="assistant", tool_calls=reply.tool_calls)
    ends = Message(role="assistant", content="-")
    told, other = [
        await client.tokenize({"model": model, **conversation_body((asked, message))})
        for message in (called, ends)
    ]
    start = next((i for i, token in enumerate(told) if token == markers.tool_section), len(told))
    return told[start : len(told) - len(common_tail(told, other))]


def _figures(
    config: RunConfig, control: Control, replies: list[Reply], again: list[tuple[int, ...]]
) -> dict[str, Any]:
    found = [(reply, ids, difference(reply, ids)) for reply, ids in zip(replies, again, strict=True)]
    differing = [(reply, ids, differs) for reply, ids, differs in found if differs is not None]
    tokens = sum(len(reply.written) for reply in replies)
    after = sum(differs.tokens_after for _, _, differs in differing)
    return {
        "traces": len(replies),
        "differ": len(differing),
        "differ_share": len(differing) / len(replies) if replies else 0.0,
        "tokens": tokens,
        "tokens_after": after,
        "tokens_after_share": after / tokens if tokens else 0.0,
        "where": {where: sum(differs.where is where for _, _, differs in differing) for where in Where},
        "examples": [_example(config, control, *one) for one in differing[:EXAMPLES]],
    }


def _example(
    config: RunConfig, control: Control, reply: Reply, again: tuple[int, ...], differs: Difference
) -> dict[str, Any]:
    window = slice(max(0, differs.index - AROUND), differs.index + AROUND + 1)
    sampled, texts = list(reply.written[window]), list(again[window])
    model = config.verifier.served_name
    return {
        "trace": reply.id,
        "token": differs.index,
        "where": differs.where,
        "sampled_ids": sampled,
        "again_ids": texts,
        "sampled": [control.detokenize(model, [token]) for token in sampled],
        "again": [control.detokenize(model, [token]) for token in texts],
    }

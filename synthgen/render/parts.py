"""Parts of the mix whose replies others wrote: conversations become rows, by hash, until there are enough."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import msgspec
from rich.markup import escape

from synthgen.client.api import client_for
from synthgen.client.control import Fingerprint
from synthgen.corpus.config import RunConfig
from synthgen.corpus.console import bar, printable
from synthgen.corpus.records import Message, prompt_key
from synthgen.corpus.samples import DatasetRow
from synthgen.errors import InputError, first_of
from synthgen.render.renderer import CONCURRENCY, Dropped, Renderer, RowDrop, Template
from synthgen.seeds.choose import excluded_prompts
from synthgen.seeds.overlap import Overlap
from synthgen.seeds.selection import heldout_of
from synthgen.sources.conversations import Conversation
from synthgen.sources.draw import Source, Survey, next_edge

BATCH = 256
"""Conversations that are rendered before the next are read."""


@dataclass(slots=True, kw_only=True)
class RenderedPart:
    """A part of the mix on its way: what it has, what it lacks, what was dropped."""

    name: str
    source: Source
    survey: Survey
    needed: int | None
    """Of the mix's unit; None for all there is."""
    counts_rows: bool
    rows: int = 0
    supervised_tokens: int = 0
    considered: int = 0
    drops: Counter[RowDrop] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    @property
    def given(self) -> int:
        """What it has, in the mix's unit."""
        return self.rows if self.counts_rows else self.supervised_tokens

    @property
    def is_filled(self) -> bool:
        """Whether that is enough."""
        return self.needed is not None and self.given >= self.needed

    def drop(self, conversation: Conversation, dropped: Dropped) -> None:
        """Count a conversation that is no row; the first of each reason is an example."""
        self.drops[dropped.reason] += 1
        if self.drops[dropped.reason] == 1:
            self.examples.append(f"{dropped.reason}: {conversation.id}: {dropped.detail}"[:300])

    def figures(self) -> dict[str, Any]:
        """What a manifest says of it."""
        return {
            "rows": self.rows,
            "supervised_tokens": self.supervised_tokens,
            "needed": self.needed,
            "read": self.survey.count + self.survey.left_out,
            "left_out": self.survey.left_out,
            "considered": self.considered,
            "drops": {reason: self.drops[reason] for reason in RowDrop if self.drops[reason]},
            "examples": self.examples,
        }


class KeptAway:
    """The prompts that no row may have: held out, or excluded.

    Raises ArtifactError when the corpus has lost those it holds out, InputError when an excluded source can't
    be read, ConfigError when prompts.near_duplicates is set and datasketch isn't installed.
    """

    def __init__(self, config: RunConfig) -> None:
        near = config.prompts.near_duplicates
        self._heldout = Overlap(near, heldout_of(config))
        self._excluded = Overlap(near, excluded_prompts(config.prompts))

    def found(self, messages: tuple[Message, ...]) -> Dropped | None:
        """Why a conversation's prompt is one of them; None when it isn't."""
        key = prompt_key(messages)
        if self._heldout.excludes(messages) is not None:
            return Dropped(RowDrop.HELDOUT, f"its prompt {key} is kept for evaluation, or near one that is")
        reason = self._excluded.excludes(messages)
        return None if reason is None else Dropped(RowDrop(reason), f"its prompt {key} is in prompts.exclude")


class Filler:
    """Fills the parts one after the other and writes their rows."""

    def __init__(
        self,
        config: RunConfig,
        parts: list[RenderedPart],
        template: Template,
        fingerprint: Fingerprint,
        kept_away: KeptAway,
        rows: BinaryIO,
    ) -> None:
        self._config = config
        self._parts = parts
        self._template = template
        self._fingerprint = fingerprint
        self._rows = rows
        self._kept_away = kept_away
        self._seen: set[int] = set()
        """Ids of the conversations so far, as numbers."""
        self._encoder = msgspec.json.Encoder()
        self._content = hashlib.sha256()

    @property
    def content(self) -> str:
        """The sha256 of what was written, in hex."""
        return self._content.hexdigest()

    async def run(self, base_url: str) -> None:
        """Render each part. Raises InputError when one gives no row, ServerError when the server fails."""
        async with client_for(self._config, base_url, concurrency=CONCURRENCY, max_tokens=1) as client:
            renderer = Renderer(self._config, client, self._template, self._fingerprint)
            for part in self._parts:
                await self._fill(part, renderer)
                if not part.rows:
                    raise InputError(
                        f"{part.source.name}: none of {part.considered:,} conversations gives a row for part "
                        f"{part.name!r}: {'; '.join(part.examples) or part.survey.note}"
                    )

    async def _fill(self, part: RenderedPart, renderer: Renderer) -> None:
        """Render by hash order until there is enough, or nothing more."""
        source, first = part.source, part.survey.first
        await self._take(part, renderer, first, len(first))
        edge = source.place(first[-1]) if part.survey.count > len(first) else 1.0
        while edge < 1.0 and not part.is_filled:
            upto = next_edge(edge, part.given, part.needed)
            expected = round(part.survey.count * (upto - edge))
            await self._take(part, renderer, source.between(edge, upto), expected)
            edge = upto

    async def _take(
        self, part: RenderedPart, renderer: Renderer, conversations: Iterable[Conversation], expected: int
    ) -> None:
        with bar(f"render {escape(printable(part.name))}", total=expected) as progress:
            for batch in _batches(conversations):
                wanted = [conversation for conversation in batch if self._is_wanted(part, conversation)]
                for conversation, made in zip(wanted, await _made(renderer, wanted, part.name), strict=True):
                    self._keep(part, conversation, made)
                progress.advance(len(batch), f"{part.rows:,} rows, {part.supervised_tokens:,} tokens")

    def _is_wanted(self, part: RenderedPart, conversation: Conversation) -> bool:
        part.considered += 1
        number = int(conversation.id, 16)
        kept_away = self._kept_away.found(conversation.messages)
        if kept_away is not None:
            part.drop(conversation, kept_away)
        elif number in self._seen:
            part.drop(conversation, Dropped(RowDrop.DUPLICATE, "the same is there already"))
        else:
            self._seen.add(number)
            return True
        return False

    def _keep(self, part: RenderedPart, conversation: Conversation, made: DatasetRow | Dropped) -> None:
        if isinstance(made, DatasetRow):
            number = int(made.id.removeprefix("v-"), 16)
            if number in self._seen and made.id != f"v-{conversation.id}":
                made = Dropped(RowDrop.DUPLICATE, "what is exact of it is there already")
        if isinstance(made, Dropped):
            part.drop(conversation, made)
            return
        self._seen.add(number)
        line = self._encoder.encode(made) + b"\n"
        self._rows.write(line)
        self._content.update(line)
        part.rows += 1
        part.supervised_tokens += sum(span.end - span.start for span in made.spans)


def _batches(conversations: Iterable[Conversation]) -> Iterator[list[Conversation]]:
    left = iter(conversations)
    while batch := list(itertools.islice(left, BATCH)):
        yield batch


async def _made(
    renderer: Renderer, conversations: list[Conversation], part: str
) -> list[DatasetRow | Dropped]:
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(renderer.row(conversation, part)) for conversation in conversations]
    except BaseExceptionGroup as errors:
        raise first_of(errors) from errors
    return [task.result() for task in tasks]

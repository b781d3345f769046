"""Where training's documents come from, and the batches of each update in order.

A plan is made from outlines alone, so it is the same however the states come, and on every process. An
*update* is `batches_per_step` batches of the plan; of these each process takes its own.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from eagle.batches import (
    SHAPE_STEP,
    Batch,
    Document,
    Outline,
    Position,
    join_all,
    outline_of,
    pack,
    plan_epoch,
)
from eagle.shards import read_all, read_index, verify_shard
from synthgen.corpus.config import RunConfig
from synthgen.corpus.samples import read_samples
from synthgen.corpus.verifier_files import shape_of
from synthgen.errors import ArtifactError, ConfigError

T = TypeVar("T")
AHEAD = 2
"""Batches that are made while one is trained on."""


Turn = tuple[Position, list[int]]
"""A batch's place in the plan, and the numbers of its documents."""


class Feed(Protocol):
    """Documents by number. States that are made on demand come in turn, and hold room until released."""

    @property
    def outlines(self) -> Sequence[Outline]:
        """Every document's, in an order that doesn't depend on how the states came."""

    def documents(self, numbers: Sequence[int]) -> list[Document]:
        """Documents with their states: those of the next turn, where some were announced."""

    def running(self) -> AbstractContextManager[None]:
        """The block in which documents are asked for. Raises what says that they can't be had."""
        return contextlib.nullcontext()

    def prepare(self, turns: Sequence[Turn]) -> None:
        """Announce which batches come next, in order; nothing announced before is wanted any more."""
        return None

    def release(self, numbers: Sequence[int]) -> None:
        """A batch has been trained on: its states are no longer needed."""
        return None

    def figures(self) -> dict[str, Any]:
        """What the feed adds to the figures of a training."""
        return {}


@dataclass(frozen=True, slots=True)
class Rank:
    """Which process this is of how many. It takes every `world`th batch of an update, from `number` on."""

    number: int = 0
    world: int = 1

    def own(self, batches_per_step: int) -> range:
        """Numbers within an update. Raises ConfigError when not all processes would have as many."""
        if batches_per_step % self.world:
            raise ConfigError(
                f"train.batches_per_step {batches_per_step} is no multiple of the {self.world} processes: "
                f"set it to {self.world * -(-batches_per_step // self.world)}"
            )
        return range(self.number, batches_per_step, self.world)


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """One optimizer step's data.

    position: of its first batch. num_batches, samples: of all processes. totals_S: the weight of all
    its targets at each step, over all processes. batches: this process's, num_own of them, made ahead; none
    where the plan ends early.
    """

    position: Position
    num_batches: int
    samples: tuple[str, ...]
    totals_S: torch.Tensor
    num_own: int
    batches: Iterator[Batch]


class ShardFeed(Feed):
    """Documents that are trained on, whose states lie in shards, memory-mapped."""

    def __init__(self, config: RunConfig) -> None:
        self._documents = read_documents(config, config.train_path)
        train = config.train
        self._outlines = [
            outline_of(d.sample_id, d.next_kind_T, train.span_weights, train.ttt_steps, d.states.file)
            for d in self._documents
        ]

    @property
    def outlines(self) -> list[Outline]:
        """Those of the documents in the shards."""
        return self._outlines

    def documents(self, numbers: Sequence[int]) -> list[Document]:
        """Documents by number; their states are views of the files."""
        return [self._documents[number] for number in numbers]


def verify_shards(config: RunConfig, rank: Rank) -> None:
    """Raise ArtifactError when a shard is damaged; each process reads some of them."""
    for entry in read_index(config.states_path)[rank.number :: rank.world]:
        verify_shard(config.states_path, entry)


def read_documents(config: RunConfig, dataset: Path) -> list[Document]:
    """Every sample of a dataset's file with states and something to learn, by id, so that the shards' order
    doesn't matter.

    Raises ArtifactError when there is none, or its states are of other token ids or another model.
    """
    samples = {sample.id: sample for sample in read_samples(dataset, config.extract.max_seq_tokens)}
    documents = join_all(read_all(config.states_path), samples, config.train.max_seq_tokens)
    hidden_size = shape_of(config.verifier).hidden_size
    found = documents[0].states.aux.values.shape[-1]
    if found != hidden_size:
        raise ArtifactError(
            f"{config.states_path}: states have hidden size {found}, the verifier {hidden_size}: they are "
            f"another model's; remove them and extract again"
        )
    return sorted(documents, key=lambda document: document.sample_id)


def plans_of(config: RunConfig, outlines: Sequence[Outline]) -> list[list[list[int]]]:
    """Each epoch's batches, as numbers of documents."""
    lengths = [outline.num_tokens for outline in outlines]
    train = config.train
    return [plan_epoch(lengths, train.batch_tokens, config.seed, epoch) for epoch in range(train.epochs)]


def updates(
    feed: Feed,
    plans: list[list[list[int]]],
    batches_per_step: int,
    start: Position,
    rank: Rank,
    *,
    pinned: bool = False,
) -> Generator[Update, None, None]:
    """All updates in order, from the one that begins at `start` on.

    Batches are made ahead on a thread, `pinned` for a GPU; it ends with this generator.
    """
    own = rank.own(batches_per_step)
    cuts = [
        (Position(epoch, index), plans[epoch][index : index + batches_per_step])
        for epoch in range(start.epoch, len(plans))
        for index in range(start.index if epoch == start.epoch else 0, len(plans[epoch]), batches_per_step)
    ]
    mine = [(at, cut[n]) for at, cut in cuts for n in own if n < len(cut)]
    feed.prepare(mine)
    made = (pack(feed.documents(numbers), SHAPE_STEP) for _, numbers in mine)
    packed = ahead((batch.pinned() for batch in made) if pinned else made, AHEAD)
    in_turn = _released(feed, packed, mine)
    try:
        for at, cut in cuts:
            outlines = [feed.outlines[number] for numbers in cut for number in numbers]
            num_own = sum(n < len(cut) for n in own)
            totals = [sum(column) for column in zip(*(o.target_weights for o in outlines), strict=True)]
            yield Update(
                position=at,
                num_batches=len(cut),
                samples=tuple(outline.place for outline in outlines),
                totals_S=torch.tensor(totals, dtype=torch.float32),
                num_own=num_own,
                batches=itertools.islice(in_turn, num_own),
            )
    finally:
        feed.prepare(())  # or the thread might wait for documents that nobody wants
        packed.close()


def _released(feed: Feed, packed: Iterator[Batch], turns: Iterable[Turn]) -> Iterator[Batch]:
    """The batches; who asks for the next one is through with the one before."""
    for batch, (_, numbers) in zip(packed, turns, strict=True):
        yield batch
        feed.release(numbers)


@dataclass(frozen=True, slots=True)
class _Raised:
    error: BaseException


def ahead(items: Iterator[T], most: int) -> Generator[T, None, None]:
    """Yield `items`, made by a thread up to `most` ahead; what it raises is raised here."""
    made: queue.Queue[T | _Raised | None] = queue.Queue(most)
    closed = threading.Event()

    def put(item: T | _Raised | None) -> None:
        while not closed.is_set():
            try:
                made.put(item, timeout=0.1)
            except queue.Full:
                continue
            return

    def make() -> None:
        try:
            for item in items:
                put(item)
                if closed.is_set():
                    return
            put(None)
        except BaseException as error:
            put(_Raised(error))

    thread = threading.Thread(target=make, name="feed", daemon=True)
    thread.start()
    try:
        while (item := made.get()) is not None:
            if isinstance(item, _Raised):
                raise item.error
            yield item
    finally:
        closed.set()
        thread.join()

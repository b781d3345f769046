"""The batches of each update, on one process or several."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle.batches import Batch, Document, Outline, Position
from eagle.feed import Feed, Rank, ShardFeed, ahead, plans_of, updates
from eagle.states import SampleStates
from synthgen.errors import ConfigError
from tests.eagle.tiny import tiny_config, write_run


class Numbered(Feed):
    """Documents of one token each, whose token is their number and whose weight is it too."""

    def __init__(self, count: int) -> None:
        self._outlines = [
            Outline(sample_id=str(n), num_tokens=1, target_weights=(float(n),)) for n in range(count)
        ]

    @property
    def outlines(self) -> list[Outline]:
        return self._outlines

    def documents(self, numbers: object) -> list[Document]:
        return [
            Document(
                states=SampleStates.captured(str(n), torch.tensor([n]), torch.zeros(1, 4, 1)),
                next_kind_T=torch.zeros(1, dtype=torch.uint8),
            )
            for n in numbers  # type: ignore[attr-defined]
        ]


START, ALONE = Position(0, 0), Rank()
PLANS = [[[0, 1], [2], [3, 4]], [[4], [3, 2], [1, 0]]]


def seen(per_step: int, start: Position = START, rank: Rank = ALONE) -> list[list[list[int]]]:
    found = updates(Numbered(5), PLANS, per_step, start, rank)
    return [[real_tokens(batch) for batch in update.batches] for update in found]


def real_tokens(batch: Batch) -> list[int]:
    """Of each document its one token; then come blank ones, up to 32 tokens in all."""
    assert len(batch.token_ids_T) == 32
    return batch.token_ids_T[: len(batch.starts) - 2].tolist()


def test_updates_take_the_batches_in_order_and_end_with_the_epoch() -> None:
    """Three batches an epoch, two an update: the last update of each epoch has one."""
    assert seen(2) == [[[0, 1], [2]], [[3, 4]], [[4], [3, 2]], [[1, 0]]]


def test_updates_go_on_from_any_position() -> None:
    """From the second update of the first epoch on they are the very ones that follow there."""
    assert seen(2, Position(0, 2)) == seen(2)[1:]
    assert seen(1, Position(1, 1)) == seen(1)[4:]


def test_processes_share_an_updates_batches() -> None:
    """The first of two takes the even ones, the second the odd; where the epoch ends it may have none."""
    assert seen(2, rank=Rank(0, 2)) == [[[0, 1]], [[3, 4]], [[4]], [[1, 0]]]
    assert seen(2, rank=Rank(1, 2)) == [[[2]], [], [[3, 2]], []]


def test_every_process_knows_the_whole_updates_weight() -> None:
    """Documents weigh 0 to 4: the update of batches [0, 1] and [2] weighs 3 on both."""
    for rank in (Rank(0, 2), Rank(1, 2)):
        found = updates(Numbered(5), PLANS, 2, START, rank)
        assert [(u.totals_S.tolist(), u.num_batches) for u in found] == [
            ([3.0], 2),
            ([7.0], 1),
            ([9.0], 2),
            ([1.0], 1),
        ]


def test_every_process_knows_the_whole_updates_samples() -> None:
    """An error names them all, whoever's batch it was."""
    for rank in (Rank(0, 2), Rank(1, 2)):
        found = updates(Numbered(5), PLANS, 2, START, rank)
        assert [u.samples for u in found] == [("0", "1", "2"), ("3", "4"), ("4", "3", "2"), ("1", "0")]


def test_batches_that_processes_cannot_share_are_refused() -> None:
    """Three batches for two processes: the error says what would do."""
    with pytest.raises(ConfigError, match=r"batches_per_step 3 is no multiple of the 2 proc.*: set it to 4"):
        seen(3, rank=Rank(0, 2))


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers()), st.integers(1, 4))
def test_what_is_made_ahead_is_what_was_made(items: list[int], most: int) -> None:
    """Nothing is lost, doubled or reordered."""
    assert list(ahead(iter(items), most)) == items


def test_an_error_ahead_is_raised_where_it_is_due() -> None:
    """What came before it is yielded first."""

    def items() -> Iterator[int]:
        yield 1
        raise ConfigError("broken")

    found = ahead(items(), 2)
    assert next(found) == 1
    with pytest.raises(ConfigError, match="broken"):
        next(found)


def test_the_thread_ends_with_its_reader() -> None:
    """A reader that stops early leaves no thread behind, though the source is endless."""
    before = threading.active_count()
    found = ahead(iter(int, 1), 2)
    next(found)
    found.close()
    assert threading.active_count() == before


def test_documents_come_in_the_order_of_their_ids(tmp_path: Path) -> None:
    """Whatever shard they lie in; a plan of one epoch has each once."""
    config = tiny_config(tmp_path, train__epochs="1")
    write_run(config, samples=5)
    feed = ShardFeed(config)
    ids = [outline.sample_id for outline in feed.outlines]
    assert ids == sorted(ids) == [d.sample_id for d in feed.documents(range(5))]
    (plan,) = plans_of(config, feed.outlines)
    assert sorted(number for batch in plan for number in batch) == [0, 1, 2, 3, 4]

"""Replies by their id, in the corpus or else in the dataset; the search ends where all is found."""

from __future__ import annotations

import heapq
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from synthgen.corpus.config import RunConfig
from synthgen.corpus.journal import find_records, read_journal
from synthgen.corpus.records import Trace, reply_id
from synthgen.corpus.samples import DatasetRow
from synthgen.corpus.verdicts import Verdict
from synthgen.errors import ArtifactError, ConfigError

Reply = Trace | DatasetRow
NEAREST = 3
"""Ids that are offered in place of one that isn't there."""
_WHOLE_ID = re.compile(r".+-\d+(\.\d+)?")


class _TraceKey(msgspec.Struct, frozen=True):
    seed_id: str
    sample_index: int
    turn: int = 0

    @property
    def id(self) -> str:
        return reply_id(self.seed_id, self.sample_index, self.turn)


class _RowKey(msgspec.Struct, frozen=True):
    id: str


class _VerdictKey(msgspec.Struct, frozen=True):
    trace: str


class Search:
    """What is still looked for in one place, and what came of it."""

    def __init__(self, asked: list[str]) -> None:
        self.found: dict[str, list[Reply]] = {text: [] for text in asked}

    def wants(self, key: _TraceKey | _RowKey) -> bool:
        """Whether this is one of the replies."""
        return any(_stands_for(text, key.id) for text in self.found)

    def take(self, replies: Iterator[Reply]) -> None:
        """Take the replies until no more can come. Raises ConfigError when a text means several prompts."""
        for reply in replies:
            for text, found in self.found.items():
                if _stands_for(text, reply.id):
                    found.append(reply)
                    _require_one_prompt(text, found)
            if all(found and _WHOLE_ID.fullmatch(text) for text, found in self.found.items()):
                break


def first_replies(config: RunConfig, count: int) -> list[Reply]:
    """The first `count` traces, or rows of the dataset where there are no traces.

    Raises ArtifactError when there are neither.
    """
    rows = (row for path in _datasets(config) for row in read_journal(path, DatasetRow))
    traces = list(itertools.islice(read_journal(config.traces_path, Trace), count))
    found: list[Reply] = [*traces] or [*itertools.islice(rows, count)]
    if not found:
        raise ArtifactError(
            f"{config.run_path} has neither traces nor a dataset: run `synthgen generate CONFIG` first"
        )
    return found


def find_replies(config: RunConfig, asked: tuple[str, ...]) -> list[Reply]:
    """The replies with these ids, in that order, each once.

    `SEED-INDEX` and `SEED-INDEX.TURN` stand for one reply; a seed id, or the beginning of one, for all
    replies of its prompt. Raises ConfigError for what isn't there and for what several prompts begin with.
    """
    search = Search(list(asked))
    search.take(find_records(config.traces_path, _TraceKey, search.wants, Trace))
    found = dict(search.found)
    for path in _datasets(config):
        search = Search([text for text, replies in found.items() if not replies])
        if search.found:
            search.take(find_records(path, _RowKey, search.wants, DatasetRow))
            found |= search.found
    for text, replies in found.items():
        if not replies:
            raise _not_there(config, text)
    return list({reply.id: reply for replies in found.values() for reply in replies}.values())


def find_verdicts(config: RunConfig, ids: set[str]) -> dict[str, Verdict]:
    """The verdicts on these traces, by id; none before screening."""
    verdicts = find_records(config.verdicts_path, _VerdictKey, lambda key: key.trace in ids, Verdict)
    return {verdict.trace: verdict for verdict in itertools.islice(verdicts, len(ids))}


def _datasets(config: RunConfig) -> tuple[Path, Path]:
    return (config.train_path, config.validation_path)


def _stands_for(text: str, reply: str) -> bool:
    """Whether an asked text means this id."""
    return reply == text or (reply.startswith(text) and not _WHOLE_ID.fullmatch(text))


def _require_one_prompt(text: str, found: list[Reply]) -> None:
    first, last = (reply.id.rpartition("-")[0] or reply.id for reply in (found[0], found[-1]))
    if first != last:
        raise ConfigError(
            f"{text!r} begins the ids of several prompts, {first} and {last} for instance: write more of it"
        )


def _ids(config: RunConfig) -> Iterator[str]:
    yield from (key.id for key in read_journal(config.traces_path, _TraceKey))
    for path in _datasets(config):
        yield from (key.id for key in read_journal(path, _RowKey))


def _not_there(config: RunConfig, text: str) -> ConfigError:
    """The error, with the ids that have most of their beginning in common with `text`."""

    def common(other: str) -> int:
        pairs = zip(text, other, strict=False)
        return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))

    nearest = dict.fromkeys(heapq.nlargest(2 * NEAREST, _ids(config), key=common))  # twice: trace and sample
    if not nearest:
        return ConfigError(
            f"no trace {text!r} in {config.run_path}, nor any other: run `synthgen generate CONFIG` first"
        )
    return ConfigError(
        f"no trace or sample {text!r} in {config.run_path}: the nearest ids are "
        f"{', '.join(list(nearest)[:NEAREST])}; `synthgen show CONFIG --count 10` shows the first ten"
    )

"""A dataset of the hub, or a local directory of the same form, to rows: streamed, never downloaded whole.

`datasets` reads it, which is imported when the first such source is. Code that ships with it is never run.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from synthgen.errors import ConfigError, InputError
from synthgen.sources.rows import BadRow, Row
from synthgen.sources.tables import ROWS_AT_ONCE, rows_of, wanted_columns

PREFIX = "hub:"
FORM = re.compile(r"([\w.-]+(?:/[\w.-]+)?)(?:@([^:@\s]+))?(?::([^:\[\]\s]+))?:([^:\[\]\s]+)")
ANSWER_S = 10.0
"""A hub that answers no later than this is there; datasets itself would try for half a minute."""
SILENT = 60
"""A level of logging that nothing has: what goes wrong is said once, by us."""
REASON_CHARACTERS = 200
ELSEWHERE = "or download its Parquet files and name those in prompts.sources"


@dataclass(frozen=True, slots=True)
class HubDataset:
    """One split of a dataset: `id` is author/name, or a directory."""

    id: str
    config: str | None
    split: str
    revision: str | None

    @classmethod
    def parse(cls, source: str) -> HubDataset:
        """`hub:ID:SPLIT` or `hub:ID:CONFIG:SPLIT`, with `ID@REVISION`. Raises ConfigError for another form.

        A directory that is there is taken as one, whatever colons or @ its name has.
        """
        text = source.removeprefix(PREFIX)
        before, _, split = text.rpartition(":")
        if before and split and Path(before).is_dir():
            return cls(before, None, split, None)
        directory, _, config = before.rpartition(":")
        if directory and config and split and Path(directory).is_dir():
            return cls(directory, config, split, None)
        found = FORM.fullmatch(text)
        if found is None:
            raise ConfigError(
                f"prompts: {source}: write it as hub:ID:SPLIT or hub:ID:CONFIG:SPLIT, where ID is "
                f"author/name, with @REVISION to pin one, or a directory that is there; a part of a split "
                f"isn't read: prompts.limit takes as many as are wanted"
            )
        name, revision, config, split = found.groups()
        return cls(name, config, split, revision)

    @property
    def is_local(self) -> bool:
        """Whether it is a directory here."""
        return Path(self.id).is_dir()

    @property
    def name(self) -> str:
        """What prompts have as their source: the id, of a directory its name."""
        return self.stem if self.is_local else self.id

    @property
    def stem(self) -> str:
        """The id without its author: the domain of rows that name none."""
        return Path(self.id).resolve().name if self.is_local else self.id.rpartition("/")[2]

    def __str__(self) -> str:
        pinned = f"{self.id}@{self.revision}" if self.revision else self.id
        return PREFIX + ":".join(part for part in (pinned, self.config, self.split) if part)


def resolved(dataset: HubDataset) -> HubDataset:
    """The dataset at the commit that its revision means now; offline and of a directory as it is.

    One request, so that a hub that can't be reached is known in seconds. Raises InputError.
    """
    if dataset.is_local:
        return dataset
    hub = _imported("huggingface_hub", dataset)
    errors = importlib.import_module("huggingface_hub.errors")
    try:
        info = hub.HfApi().dataset_info(dataset.id, revision=dataset.revision, timeout=ANSWER_S)
    except errors.OfflineModeIsEnabled:
        return dataset  # it may be in the cache
    except (ValueError, *errors.HfHubHTTPError.__bases__) as error:
        raise InputError(f"{dataset}: {_refusal(dataset, error, errors)}") from error
    return replace(dataset, revision=info.sha)


def _refusal(dataset: HubDataset, error: Exception, errors: Any) -> str:
    if isinstance(error, errors.GatedRepoError):
        return "is gated: accept its terms on its page on the hub and set HF_TOKEN"
    if isinstance(error, errors.RepositoryNotFoundError):
        return "the hub has no such dataset, or it is private: check the ID, or set HF_TOKEN"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"the hub has no revision {dataset.revision} of it"
    if isinstance(error, errors.HfHubHTTPError | ValueError):
        return f"the hub refuses it: {_in_one_line(error)}"
    return f"the hub can't be reached: {_in_one_line(error)}: give it network, {ELSEWHERE}"


def read_hub(dataset: HubDataset, prompts: frozenset[str], others: frozenset[str]) -> Iterator[Row | BadRow]:
    """Yield the rows of a dataset, of its columns those that `read_parquet` would read. Raises InputError."""
    datasets = _imported("datasets", dataset)
    errors = importlib.import_module("huggingface_hub.errors").HfHubHTTPError.__bases__
    unreadable = (OSError, ValueError, RuntimeError, ImportError, datasets.exceptions.DatasetsError, *errors)
    number = 0
    try:
        for row in rows_of(_batches(datasets, dataset, prompts, others)):
            number = row.number
            yield row
    except unreadable as error:
        after = f" after row {number}" if number else ""
        remedy = f": check ID, split and network (HF_HUB_OFFLINE), {ELSEWHERE}"
        raise InputError(f"{dataset}: can't be read{after}: {_in_one_line(error)}{remedy}") from error


def _batches(
    datasets: Any, dataset: HubDataset, prompts: frozenset[str], others: frozenset[str]
) -> Iterator[Any]:
    """Arrow tables; nothing in them is decoded, cast or fetched that wasn't asked for."""
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(SILENT)
    opened = datasets.load_dataset(
        dataset.id, dataset.config, split=dataset.split, streaming=True, revision=dataset.revision
    )
    for table in opened.with_format("arrow").iter(batch_size=ROWS_AT_ONCE):
        yield table.select(wanted_columns(table.column_names, prompts, others))


def _imported(name: str, dataset: HubDataset) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(
            f"{dataset}: {name}, which reads the hub, isn't installed: pip install 'synthgen[train]'"
        ) from error


def _in_one_line(error: Exception) -> str:
    if "BatchSize must be greater than 0" in str(error):
        return "one of its Parquet files has no row"
    words = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return words if len(words) <= REASON_CHARACTERS else words[:REASON_CHARACTERS] + " …"

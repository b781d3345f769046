"""The arms' directories: each a run of its own under RUN/compare, of which the states are the run's.

    RUN/compare/native/  run.yaml; dataset/, its rows; states/, links to the run's shards; vocab/, the run's;
                         draft/, trained and exported; accept/, the measurement

The vocabulary is that of the whole dataset for all arms: what differs is what was learned. Nothing is
validated, so each draft is exported as its last update left it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from os.path import relpath
from pathlib import Path
from typing import Any

import msgspec

from eagle.compare.choice import PartRow, Reach, choose, ranked, tokens_for_all
from eagle.feed import Rank, plans_of
from eagle.shards import INDEX_NAME, read_index
from eagle.stream import feed_of
from eagle.vocab import FILE_NAME, dataset_inputs, require_states, vocab_settings
from synthgen.corpus.config import RunConfig
from synthgen.corpus.console import waiting
from synthgen.corpus.files import directory_written_aside
from synthgen.corpus.journal import read_journal
from synthgen.corpus.manifest import (
    Manifest,
    as_json,
    digest_of,
    manifest_of,
    read_manifest,
    require_fit,
    require_manifest,
    write_manifest,
)
from synthgen.corpus.settings import save_config

GROWTH = 4
"""How many times the configured batch_tokens a batch is at most, to make updates equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """What one draft is trained on, and where."""

    name: str
    config: RunConfig
    """The run's, with the arm's directory and batch_tokens."""
    updates: int
    figures: dict[str, Any]
    """Rows, tokens and supervised tokens by part."""


def arm_path(config: RunConfig, name: str) -> Path:
    """The directory of an arm, or of a given draft's measurement."""
    return config.run_path / "compare" / name


def arms_of(config: RunConfig, asked_tokens: int | None) -> list[Arm]:
    """Write what the arms are trained on, but for those that have it, with as many updates for each.

    The parts come in the order of the mix, then the mix. Raises ConfigError and ArtifactError as
    `choice.ranked` and `tokens_for_all`, ArtifactError when what is there was made of something else.
    """
    made_of = _inputs(config)
    with waiting("choosing rows"):
        parts = ranked(config, _trainable(config))
        tokens = tokens_for_all(parts, asked_tokens)
        chosen = choose(parts, tokens)
    settings = {"tokens": tokens, "seed": config.seed, "parts": list(parts), "reach": Reach.of(config).end}
    configs = {}
    for name, rows in chosen.items():
        configs[name] = arm = msgspec.structs.replace(config, run_dir=str(arm_path(config, name)))
        found = read_manifest(arm.dataset_path)
        if found is not None:
            wanted = as_json(settings | {"arm": name})
            remedy = f"set it back, or remove {arm_path(config, name).parent} to compare anew"
            require_fit(arm.dataset_path, found, settings=wanted, inputs=made_of, remedy=remedy)
        else:
            _write_arm(config, arm, rows, settings | {"arm": name}, made_of)
    return [
        Arm(name=name, config=arm, updates=updates, figures=_figures(arm))
        for name, (arm, updates) in _with_equal_updates(configs).items()
    ]


def _inputs(config: RunConfig) -> dict[str, str]:
    """What arms are made of. Raises ArtifactError when it is missing or doesn't fit."""
    inputs = dataset_inputs(config)
    vocab = require_manifest(config.vocab_path, "eagle vocab CONFIG")
    require_fit(config.vocab_path, vocab, settings=vocab_settings(config), inputs=inputs)
    inputs |= {"vocab": digest_of(vocab)}
    return inputs if config.train.stream else inputs | {"states": digest_of(require_states(config))}


def _trainable(config: RunConfig) -> Iterator[PartRow]:
    """The rows of the dataset, but for those whose states could not be had."""
    rows = read_journal(config.train_path, PartRow, "DatasetRow")
    if config.train.stream:
        return rows
    there = {sample_id for entry in read_index(config.states_path) for sample_id in entry.sample_ids}
    return (row for row in rows if row.id in there)


def _write_arm(
    config: RunConfig, arm: RunConfig, rows: dict[str, int], settings: dict[str, Any], inputs: dict[str, str]
) -> None:
    """Everything that training reads of one arm, complete or absent."""
    with directory_written_aside(arm.run_path) as aside:
        written = msgspec.structs.replace(arm, run_dir=str(aside))
        written.dataset_path.mkdir()
        dataset = manifest_of(
            "compare",
            settings=settings,
            inputs=inputs,
            figures=_write_rows(config, rows, written),
            seconds=0.0,
        )
        write_manifest(written.dataset_path, dataset)
        made_of = {"dataset": digest_of(dataset)}
        written.vocab_path.mkdir()
        shutil.copyfile(config.vocab_path / FILE_NAME, written.vocab_path / FILE_NAME)
        _say_again(config.vocab_path, written.vocab_path, made_of)
        if not config.train.stream:
            _link_states(config, set(rows), written.states_path, arm.states_path)
            _say_again(config.states_path, written.states_path, made_of)


def _write_rows(config: RunConfig, rows: dict[str, int], written: RunConfig) -> dict[str, Any]:
    """Copy an arm's rows; return their figures."""
    reach = Reach.of(config)
    by_part: dict[str, int] = {}
    with written.train_path.open("wb") as file:
        for row in read_journal(config.train_path, PartRow, "DatasetRow"):
            if tokens := rows.get(row.id):
                file.write(_line(row, reach.first(row.spans, tokens)))
                by_part[row.part] = by_part.get(row.part, 0) + tokens
    written.validation_path.touch()
    return {"rows": len(rows), "supervised_tokens": sum(by_part.values()), "by_part": by_part}


def _line(row: PartRow, spans: tuple[Any, ...]) -> bytes:
    return msgspec.json.encode(msgspec.structs.replace(row, spans=spans)) + b"\n"


def _say_again(source: Path, copy: Path, inputs: dict[str, str]) -> None:
    """The manifest of what is used a second time, as made of an arm's dataset."""
    made: Manifest = require_manifest(source, "eagle extract CONFIG")
    write_manifest(copy, msgspec.structs.replace(made, inputs=inputs))


def _link_states(config: RunConfig, rows: set[str], aside: Path, final: Path) -> None:
    """Links to the run's shards that have states of these rows, as they will lie in `final`."""
    aside.mkdir()
    entries = [entry for entry in read_index(config.states_path) if not rows.isdisjoint(entry.sample_ids)]
    for entry in entries:
        (aside / entry.file).symlink_to(relpath(config.states_path / entry.file, final))
    (aside / INDEX_NAME).write_bytes(b"".join(msgspec.json.encode(entry) + b"\n" for entry in entries))


def _figures(arm: RunConfig) -> dict[str, Any]:
    return require_manifest(arm.dataset_path, "eagle compare CONFIG").figures


def _with_equal_updates(configs: dict[str, RunConfig]) -> dict[str, tuple[RunConfig, int]]:
    """Each arm's config, its batches so long that all arms make as many updates, and how many those are.

    Prompts are longer in one part than in another, so the same supervised tokens are another number of tokens
    in all. The arm with the fewest keeps train.batch_tokens.
    """
    updates = {name: _counter(config) for name, config in configs.items()}
    fewest = min(updates[name](config.train.batch_tokens) for name, config in configs.items())
    even = {}
    for name, config in configs.items():
        batch_tokens = fewest_tokens(updates[name], config.train.batch_tokens, fewest)
        train = msgspec.structs.replace(config.train, batch_tokens=batch_tokens)
        even[name] = (msgspec.structs.replace(config, train=train), updates[name](batch_tokens))
        save_config(even[name][0], config.run_path / "run.yaml")
    return even


def _counter(config: RunConfig) -> Callable[[int], int]:
    """How many updates a training makes with batches of so many tokens."""
    outlines, per_step = feed_of(config, Rank()).outlines, config.train.batches_per_step

    def updates(batch_tokens: int) -> int:
        train = msgspec.structs.replace(config.train, batch_tokens=batch_tokens)
        plans = plans_of(msgspec.structs.replace(config, train=train), outlines)
        return sum(-(-len(plan) // per_step) for plan in plans)

    return updates


def fewest_tokens(updates: Callable[[int], int], least: int, wanted: int) -> int:
    """The smallest batch from `least` tokens on with no more than `wanted` updates."""
    low, high = least, least
    while updates(high) > wanted and high < GROWTH * least:
        low, high = high + 1, min(2 * high, GROWTH * least)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if updates(middle) <= wanted else (middle + 1, high)
    return high

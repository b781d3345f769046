"""States into shards, and the files of captured ones: which are there, packed, left.

A capturing server may run on while its files are packed, and another mix may draw the replies that this
one left out. So a file goes when its states are in a shard, or when it is old and nobody's.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec

from eagle.prefill import checked
from eagle.shards import read_index, write_shard
from eagle.spool import STREAM_PREFIX, read_states
from eagle.states import SampleStates
from synthgen.corpus.config import RunConfig
from synthgen.corpus.console import bar, console
from synthgen.corpus.journal import read_journal
from synthgen.corpus.lock import is_claimed
from synthgen.corpus.records import reply_id
from synthgen.corpus.samples import Sample
from synthgen.corpus.verifier_config import VerifierShape
from synthgen.errors import ArtifactError

FRESH_S = 3600.0
"""While replies are generated, a younger file may be that of one on its way into the corpus."""


class _Reply(msgspec.Struct):
    """What says whose a file is."""

    seed_id: str
    sample_index: int
    turn: int = 0
    states_file: str | None = None


class Packer:
    """Collects states and writes a shard whenever enough are there."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._batch: list[SampleStates] = []
        self._waiting = 0
        self.tokens = 0

    def add(self, states: SampleStates) -> bool:
        """Take states; return whether a shard is due."""
        self._batch.append(states)
        self._waiting += len(states.token_ids_T)
        self.tokens += len(states.token_ids_T)
        return self._waiting >= self._config.extract.shard_tokens

    def write(self, files: Mapping[str, Path] = MappingProxyType({})) -> None:
        """Write a shard of what is there; files of the spool that are in it are removed."""
        full, self._batch, self._waiting = self._batch, [], 0
        if full:
            write_shard(self._config.states_path, full)
        for states in full:
            if states.sample_id in files:
                files[states.sample_id].unlink(missing_ok=True)


def captured_files(config: RunConfig, samples: list[Sample]) -> dict[str, Path]:
    """The spool files that are there, by sample."""
    named = ((s.id, config.spool_path / Path(s.states_file).name) for s in samples if s.states_file)
    return {sample_id: path for sample_id, path in named if path.exists()}


def tokens_to_store(samples: list[Sample], files: Mapping[str, Path], shard_tokens: int) -> int:
    """Tokens whose states the disk has yet to take.

    Those of captured samples lie there already, and go shard by shard: only one shard's are there twice.
    """
    captured = sum(len(sample.token_ids) for sample in samples if sample.id in files)
    return sum(len(s.token_ids) for s in samples if s.id not in files) + min(captured, shard_tokens)


def pack_captured(
    config: RunConfig, todo: list[Sample], files: Mapping[str, Path], shape: VerifierShape
) -> list[Sample]:
    """Pack the states that came with the replies; return the samples that have none."""
    packer = Packer(config)
    packed: set[str] = set()
    for sample in _shown("pack captured states", [sample for sample in todo if sample.id in files]):
        try:
            due = packer.add(checked(sample, read_states(files[sample.id]), shape, config.extract))
        except ArtifactError as error:
            console.print(f"{error}; its states are asked for again", soft_wrap=True)
            continue
        packed.add(sample.id)
        if due:
            packer.write(files)
    packer.write(files)
    return [sample for sample in todo if sample.id not in packed]


def _shown(title: str, samples: list[Sample]) -> Iterator[Sample]:
    """The samples, with a bar when there are any."""
    if not samples:
        return
    with bar(title, len(samples)) as progress:
        for sample in samples:
            yield sample
            progress.advance()


def remove_orphans(config: RunConfig, wanted: Mapping[str, Path] = MappingProxyType({})) -> None:
    """Remove files that are neither `wanted` nor named by a reply: their client or server was killed.

    While replies are generated, only old ones: a fresh one may be about to be named. While a draft is
    trained, none of those that its states are streamed through.
    """
    files = _spooled(config)
    if is_training(config):
        files = {name: path for name, path in files.items() if not name.startswith(STREAM_PREFIX)}
    spare_fresh = is_generating(config)  # after the listing, before the journal is read: all of it is there
    named = {path.name for path in wanted.values()}
    named |= {name for _, name in _named(config)} if files.keys() - named else set()
    _remove([path for name, path in files.items() if name not in named], spare_fresh=spare_fresh)


def tidy_spool(config: RunConfig, wanted: set[str]) -> None:
    """Remove files whose states are in a shard, and those that no reply names.

    Says how many are left of replies that are not `wanted`, the ids of the dataset's samples. The directory
    goes when it is empty; a server that still writes makes it anew.
    """
    remove_orphans(config)
    files = _spooled(config)
    packed = {sample_id for entry in read_index(config.states_path) for sample_id in entry.sample_ids}
    left_out = 0
    for sample_id, name in _named(config) if files else ():
        if name in files:
            if sample_id in packed:
                files[name].unlink(missing_ok=True)
            else:
                left_out += sample_id not in wanted
    if left_out:
        console.print(
            f"{left_out:,} captured files of replies that the dataset leaves out are in {config.spool_path}: "
            f"remove it when no other mix is to draw them",
            soft_wrap=True,
        )
    with contextlib.suppress(OSError):
        config.spool_path.rmdir()


def is_generating(config: RunConfig) -> bool:
    """Whether some process adds replies to the corpus."""
    return config.corpus_path.is_dir() and is_claimed(config.corpus_path)


def is_training(config: RunConfig) -> bool:
    """Whether some process trains the draft."""
    return config.checkpoints_path.is_dir() and is_claimed(config.checkpoints_path)


def _spooled(config: RunConfig) -> dict[str, Path]:
    """The files of the spool by name."""
    if not config.spool_path.is_dir():
        return {}
    return {path.name: path for path in config.spool_path.iterdir() if path.is_file()}


def _named(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Each captured reply's id and the name of its file."""
    for reply in read_journal(config.traces_path, _Reply, "Trace"):
        if reply.states_file is not None:
            yield reply_id(reply.seed_id, reply.sample_index, reply.turn), Path(reply.states_file).name


def _remove(paths: list[Path], *, spare_fresh: bool) -> None:
    for path in paths:
        with contextlib.suppress(FileNotFoundError):  # whoever wrote it may have renamed it
            if not spare_fresh or path.stat().st_mtime < time.time() - FRESH_S:
                path.unlink()

"""Training on states that a live server makes while they are trained on, so that no disk need hold them.

The outlines, and with them the plan, come from the dataset alone. A sample whose states can't be had is
left out of its batch: its tokens stay, none of them is supervised. That is written down before the batch
is trained on, so a run that goes on leaves it out too, from there on; its weight in the update's total
stays, as other processes count it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from eagle.batches import Document, Outline, Position, join, next_kinds, outline_of, targets_of
from eagle.checkpoint import checkpoints
from eagle.collect import FAILURES_IN_A_ROW, StatesFailure
from eagle.extract import require_tokenizer
from eagle.feed import Feed, Rank, ShardFeed, Turn, plans_of
from eagle.on_demand import TRIES, OnDemand, Wanted
from eagle.patience import Patience
from eagle.prefill import Prefill
from eagle.spool import STREAM_PREFIX
from eagle.states import SampleStates
from eagle.taps import CONVENTION, TapPoints
from synthgen.client.api import client_for
from synthgen.client.capture import FILE_WAIT_S, require_capture
from synthgen.client.control import Control, api_key
from synthgen.client.launch import Served, capturing, served
from synthgen.corpus.config import RunConfig
from synthgen.corpus.console import console
from synthgen.corpus.files import require_free_disk
from synthgen.corpus.journal import read_journal, segments, write_journal
from synthgen.corpus.records import Record
from synthgen.corpus.samples import Sample, each_sample
from synthgen.corpus.verifier_config import TAPS
from synthgen.corpus.verifier_files import revision_of, shape_of
from synthgen.errors import ArtifactError, ConfigError

FAILURES_NAME = "failures.jsonl"
TOKEN_ID_BYTES = 8
HEADER_BYTES = 1024
"""Of a spool file, at most."""
ITEM_BYTES = {"float32": 4}
"""Of a state as the server writes it, where that isn't two."""


class LeftOut(Record, frozen=True, kw_only=True):
    """A sample that is not trained on from a batch of the plan on, since its states could not be had."""

    sample_id: str
    message: str
    epoch: int
    index: int


class StreamFeed(Feed):
    """Documents whose states are asked for in the order of the plan, within train.stream_spool_mib.

    Raises ArtifactError when the dataset has nothing to learn; ConfigError when the room doesn't hold the
    longest batch.
    """

    def __init__(self, config: RunConfig, rank: Rank) -> None:
        self._config = config
        self._rank = rank
        self._shape = shape_of(config.verifier)
        self._max_bytes = config.train.stream_spool_mib << 20
        self._samples, self._outlines = _outlined(config)
        plans = plans_of(config, self._outlines)
        self._require_room(max(self._held_bytes(batch) for plan in plans for batch in plan))
        self._failures_path = config.checkpoints_path / _failures_name(rank)
        self._left_out: dict[str, LeftOut] = {}
        self._own: dict[str, LeftOut] = {}
        self._turns: Iterator[Turn] = iter(())
        self._in_a_row: list[StatesFailure] = []

    @property
    def outlines(self) -> list[Outline]:
        """Of every sample with something to learn, by id; a prefill gives the states of all its tokens."""
        return self._outlines

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """A server that captures what this run needs, asked on a thread.

        Afterwards the spool is empty, but for files that a server which runs on (server.base_urls) writes
        late: the next run removes them.
        Raises DiskError, and ConfigError, ServerError or ArtifactError for a server that can't be used.
        """
        config = self._config
        if self._rank.world > 1 and not config.server.base_urls:
            raise ConfigError(
                f"train.stream on {self._rank.world} processes needs servers that run: start one with "
                f"`synthgen serve CONFIG --role capture` and set server.base_urls"
            )
        room = self._max_bytes * self._rank.world
        require_free_disk(config.spool_path, room, "streamed states", "train.stream_spool_mib")
        self._recall()
        clear_spool(config, self._rank)
        try:
            with served(config, capturing(config)) as servers, self._asked(servers):
                yield
        finally:
            clear_spool(config, self._rank)

    def prepare(self, turns: Sequence[Turn]) -> None:
        """Ask for the samples of these batches, in order, and for no others any more."""
        self._turns = iter(turns)
        self._states.ask(self._wanted(number, at) for at, numbers in turns for number in numbers)

    def documents(self, numbers: Sequence[int]) -> list[Document]:
        """The documents of the next turn, once their states have come.

        Raises ArtifactError when so many samples in a row have failed that it isn't the samples, and what
        `OnDemand.take` does.
        """
        at, announced = next(self._turns)
        assert list(numbers) == list(announced), "documents are taken in the order they were announced in"
        took = self._states.take(len(numbers))
        failed = [self._counted(one, at) for one in took]
        self._write_down([one for one in failed if one is not None], at)
        return [self._document(n, states, at) for n, states in zip(numbers, took, strict=True)]

    def release(self, numbers: Sequence[int]) -> None:
        """Give the room of a batch to those that come."""
        self._states.release(self._held_bytes(numbers))

    def figures(self) -> dict[str, Any]:
        """How many samples were left out, by all processes: read from their journals when all are done."""
        return {"samples_left_out": len(_by_sample(self._config.checkpoints_path / FAILURES_NAME))}

    # ---------------------------------------------------------------- the server

    @contextlib.contextmanager
    def _asked(self, servers: Served) -> Iterator[None]:
        config, concurrency = self._config, self._config.extract.concurrency
        base_url = servers.base_urls[self._rank.number % len(servers.base_urls)]
        control = Control(base_url, api_key(config.server.api_key_env))
        found = control.fingerprint(config.verifier.served_name)
        require_tokenizer(config, found.tokenizer)
        require_capture(config, control)
        source = Prefill(
            config=config,
            base_url=base_url,
            client=client_for(
                config, base_url, concurrency=concurrency, max_tokens=config.extract.max_seq_tokens
            ),
            shape=self._shape,
            turns=asyncio.Semaphore(concurrency),
            file_prefix=f"{STREAM_PREFIX}{self._rank.number}",
        )
        self._states = OnDemand(
            Patience(source, servers, found),
            source.client,
            max_bytes=self._max_bytes,
            max_asked=2 * concurrency,
        )
        with self._states.running():
            yield

    # ---------------------------------------------------------------- samples and their room

    def _sample(self, number: int) -> Sample:
        return msgspec.msgpack.decode(self._samples[number], type=Sample)

    def _wanted(self, number: int, at: Position) -> Wanted:
        """No more of a sample than is trained on, and the token that its last one is to predict."""
        num_tokens = self._outlines[number].num_tokens
        sample = self._sample(number).cut(num_tokens + 1)
        known = None
        if self._is_left_out(sample.id, at):
            known = StatesFailure(sample_id=sample.id, message=self._left_out[sample.id].message)
        num_bytes = self._held_bytes([number])
        return Wanted(sample=sample, num_bytes=num_bytes, num_tokens=num_tokens, known=known)

    def _held_bytes(self, numbers: Sequence[int]) -> int:
        """Of the samples' spool files; in memory their states take no more."""
        per_state = self._shape.hidden_size * ITEM_BYTES.get(self._config.server.dtype, 2)
        num_tokens = sum(self._outlines[number].num_tokens + 1 for number in numbers)
        return num_tokens * (TAPS * per_state + TOKEN_ID_BYTES) + len(numbers) * HEADER_BYTES

    def _require_room(self, batch_bytes: int) -> None:
        needed_mib, room_mib = -(-batch_bytes // (1 << 20)), self._config.train.stream_spool_mib
        if room_mib < needed_mib:
            raise ConfigError(
                f"train.stream_spool_mib {room_mib} doesn't hold the states of a batch of train.batch_tokens "
                f"{self._config.train.batch_tokens}: set it to {needed_mib} or more, to four times that if "
                f"the server is to work ahead"
            )

    # ---------------------------------------------------------------- samples that are left out

    def _recall(self) -> None:
        """Read what an earlier call left out; a training that begins anew leaves out nothing."""
        directory = self._config.checkpoints_path
        if checkpoints(directory):
            self._left_out = _by_sample(directory / FAILURES_NAME)
            self._own = _by_sample(self._failures_path)
        else:
            for path in segments(directory / FAILURES_NAME) if self._rank.number == 0 else ():
                path.unlink()

    def _counted(self, took: SampleStates | StatesFailure, at: Position) -> StatesFailure | None:
        """`took` if it is a failure that isn't known. Raises ArtifactError for too many in a row."""
        if not isinstance(took, StatesFailure):
            self._in_a_row.clear()
            return None
        if self._is_left_out(took.sample_id, at):
            return None
        self._in_a_row.append(took)
        if len(self._in_a_row) >= FAILURES_IN_A_ROW:
            raise ArtifactError(
                f"the states of {FAILURES_IN_A_ROW} samples in a row could not be had; the last, sample "
                f"{took.sample_id}: {took.message}"
            )
        return took

    def _is_left_out(self, sample_id: str, at: Position) -> bool:
        known = self._left_out.get(sample_id)
        return known is not None and (known.epoch, known.index) <= (at.epoch, at.index)

    def _write_down(self, failed: list[StatesFailure], at: Position) -> None:
        if not failed:
            return
        for one in failed:
            console.print(
                f"sample {one.sample_id} is left out from epoch {at.epoch}, batch {at.index} on: "
                f"{one.message}",
                soft_wrap=True,
            )
            record = LeftOut(sample_id=one.sample_id, message=one.message, epoch=at.epoch, index=at.index)
            self._left_out[one.sample_id] = record
            self._own[one.sample_id] = record
        write_journal(self._failures_path, self._own.values())

    def _document(self, number: int, states: SampleStates | StatesFailure, at: Position) -> Document:
        outline = self._outlines[number]
        sample = self._sample(number)
        if isinstance(states, StatesFailure) or self._is_left_out(sample.id, at):
            return blank(sample, outline.num_tokens, self._shape.hidden_size)
        return join(states, sample, outline.num_tokens)


def feed_of(config: RunConfig, rank: Rank) -> Feed:
    """Where a training's documents come from: shards, or a server as they are needed."""
    return StreamFeed(config, rank) if config.train.stream else ShardFeed(config)


def stall_s(config: RunConfig) -> float:
    """For how long a process may wait for states while the others are there already."""
    if not config.train.stream:
        return 0.0
    return config.generate.down_wait_s + FAILURES_IN_A_ROW * TRIES * FILE_WAIT_S


def streamed_settings(config: RunConfig) -> dict[str, Any]:
    """What streamed states depend on, as `eagle extract` says it of shards; empty for those."""
    if not config.train.stream:
        return {}
    taps = TapPoints(aux=config.extract.aux_layers, num_layers=shape_of(config.verifier).num_layers)
    return {
        "states": {
            "source": "streamed",
            "taps": {"ids": taps.captured, "convention": CONVENTION, "final": "before the norm"},
            "revision": revision_of(config.verifier),
            "max_seq_tokens": config.extract.max_seq_tokens,
            "dtype": config.server.dtype,
            "stored": {"dtype": config.extract.states_dtype, "final": config.extract.final_states},
        }
    }


def blank(sample: Sample, num_tokens: int, hidden_size: int) -> Document:
    """A document in a failed sample's place: as long, with nothing to learn."""
    states_T4H = torch.zeros(num_tokens, TAPS, hidden_size, dtype=torch.bfloat16)
    token_ids_T = torch.tensor(sample.token_ids[:num_tokens])
    return Document(
        states=SampleStates.captured(sample.id, token_ids_T, states_T4H),
        next_kind_T=torch.zeros(num_tokens, dtype=torch.uint8),
    )


def clear_spool(config: RunConfig, rank: Rank) -> None:
    """Remove what a run that was killed left in the spool: this process's files, and those of none.

    Files of captured replies are others' and stay.
    """
    for path in config.spool_path.glob(f"{STREAM_PREFIX}*"):
        owner = path.name.split("-")[1]
        nobodys = rank.number == 0 and owner.isdigit() and int(owner) >= rank.world
        if owner == str(rank.number) or nobodys:
            path.unlink(missing_ok=True)


def _by_sample(path: Path) -> dict[str, LeftOut]:
    """What a journal and its parts say; of processes that left out the same sample, the earliest."""
    recorded = sorted(read_journal(path, LeftOut), key=lambda one: (one.epoch, one.index), reverse=True)
    return {one.sample_id: one for one in recorded}


def _failures_name(rank: Rank) -> str:
    """Each process writes a journal of its own; reading the first name reads them all."""
    if rank.world == 1:
        return FAILURES_NAME
    stem, suffix = FAILURES_NAME.split(".")
    return f"{stem}-{rank.number + 1}of{rank.world}.{suffix}"


def _outlined(config: RunConfig) -> tuple[list[bytes], list[Outline]]:
    """Every sample with something to learn, by id: encoded, in a tenth of the memory, and its outline."""
    train = config.train
    found = []
    for sample in each_sample(config.train_path, config.extract.max_seq_tokens):
        length = min(len(sample.token_ids), train.max_seq_tokens)
        kinds = next_kinds(sample, length)
        if len(targets_of(kinds)):
            outline = outline_of(sample.id, kinds, train.span_weights, train.ttt_steps)
            found.append((sample.id, msgspec.msgpack.encode(sample), outline))
    if not found:
        raise ArtifactError(
            f"{config.train_path}: no sample has a supervised token within its first "
            f"{train.max_seq_tokens}: raise train.max_seq_tokens, or generate more traces"
        )
    found.sort(key=lambda one: one[0])
    return [encoded for _, encoded, _ in found], [outline for _, _, outline in found]

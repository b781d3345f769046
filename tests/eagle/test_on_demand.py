"""States on demand: whoever takes them is answered or told that nothing comes, and never waits in vain."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError
from pathlib import Path

import pytest

from eagle.collect import StatesFailure
from eagle.on_demand import OnDemand, Wanted
from eagle.patience import Patience
from eagle.prefill import Prefill
from synthgen.client.api import client_for
from synthgen.client.control import Fingerprint
from synthgen.client.launch import Served
from synthgen.corpus.samples import Sample
from synthgen.corpus.verifier_files import shape_of
from tests.eagle.tiny import tiny_config, write_verifier

URL = "http://127.0.0.1:9/v1"
SERVER = Fingerprint(model="m", max_model_len=64, engine="e", tokenizer="t", template="t")


def asking(directory: Path) -> OnDemand:
    """Room for two samples of a byte, and a server that isn't there."""
    config = tiny_config(directory)
    write_verifier(Path(config.verifier.model))
    source = Prefill(
        config=config,
        base_url=URL,
        client=client_for(config, URL, concurrency=2, max_tokens=8),
        shape=shape_of(config.verifier),
        turns=asyncio.Semaphore(2),
    )
    return OnDemand(Patience(source, Served((URL,)), SERVER), source.client, max_bytes=2, max_asked=4)


def known(number: int) -> Wanted:
    """A sample that isn't asked for, since its states can't be had."""
    return Wanted(
        sample=Sample(id=str(number), domain="d", token_ids=(1, 2, 3), spans=()),
        num_bytes=1,
        num_tokens=3,
        known=StatesFailure(sample_id=str(number), message="refused"),
    )


def test_what_is_known_to_fail_is_answered_in_its_place(tmp_path: Path) -> None:
    """Without a request, and in order; it holds room until it is released."""
    states = asking(tmp_path)
    with states.running():
        states.ask(known(n) for n in range(3))
        assert [one.sample_id for one in states.take(2)] == ["0", "1"]
        states.release(1)
        assert states.take(1) == [StatesFailure(sample_id="2", message="refused")]


def test_who_takes_more_than_was_asked_for_is_told_so_each_time(tmp_path: Path) -> None:
    """The end is no answer that only the first one gets."""
    states = asking(tmp_path)
    with states.running():
        states.ask([known(0)])
        assert len(states.take(1)) == 1
        for _ in range(3):
            with pytest.raises(CancelledError):
                states.take(1)


def test_who_waits_when_nothing_is_wanted_any_more_is_woken(tmp_path: Path) -> None:
    """In the middle of a batch: the rest of it doesn't come, and nobody waits for that."""
    states = asking(tmp_path)
    raised: list[BaseException] = []

    def take() -> None:
        try:
            states.take(5)
        except CancelledError as error:
            raised.append(error)

    with states.running():
        states.ask(known(n) for n in range(5))  # there is room for two of them
        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        states.ask(())
        thread.join(10)
        assert not thread.is_alive()
    assert len(raised) == 1

"""A training that is asked to end: it does so after the update it is at, with a checkpoint."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(slots=True)
class Stop:
    """Whether someone asked training to end."""

    requested: bool = False


@contextlib.contextmanager
def stop_signals(*, patient: bool = False) -> Iterator[Stop]:
    """Note SIGINT and SIGTERM instead of being cut off; a second one ends at once.

    `patient`: it doesn't; torchrun passes on to its processes what they may have been sent already.
    """
    stop = Stop()

    def note(*_: object) -> None:
        if stop.requested and not patient:
            raise KeyboardInterrupt
        stop.requested = True

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

"""Ctrl-C and SIGTERM while requests are in flight: the first drains, the second stops at once."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Iterator

ONE_SIGNAL_S = 1.0
"""Signals within this time are one: a scheduler sends SIGTERM to all, and `synthgen run` passes it on."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def draining(drain: Callable[[], None]) -> Iterator[None]:
    """Within the block the first signal calls `drain`, and the second cancels the task it runs in.

    A block that got a signal and ends without an error ends with KeyboardInterrupt. A signal that is
    ignored, as under nohup, stays ignored. Needs the main thread.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    got: list[float] = []

    def on_signal() -> None:
        got.append(time.monotonic())
        if len(got) == 1:
            drain()
        elif got[-1] - got[0] > ONE_SIGNAL_S:
            task.cancel()

    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    before = {number: handler for number, handler in handlers.items() if handler is not signal.SIG_IGN}
    for number in before:
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    except asyncio.CancelledError:
        if len(got) < 2:
            raise
        task.uncancel()
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
    if got:
        raise KeyboardInterrupt

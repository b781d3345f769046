"""Threads that write, and a bound on what waits for them.

Whoever hands over more than the bound waits: a disk that is slower than the server slows the server down
instead of filling the memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class BoundedWriter:
    """Runs writes in threads, with at most `max_bytes` handed over and not yet written."""

    def __init__(self, threads: int, max_bytes: int) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="states-writer")
        self._max_bytes = max_bytes
        self._unwritten_bytes = 0
        self._written = threading.Condition()

    def submit(self, num_bytes: int, write: Callable[..., object], *arguments: Any) -> Future[None]:
        """Queue a write of `num_bytes`; waits for room first. One larger than the bound goes alone."""
        with self._written:
            self._written.wait_for(
                lambda: not self._unwritten_bytes or self._unwritten_bytes + num_bytes <= self._max_bytes
            )
            self._unwritten_bytes += num_bytes
        return self._threads.submit(self._run, num_bytes, write, *arguments)

    def close(self) -> None:
        """Finish what is queued."""
        self._threads.shutdown(wait=True)

    def _run(self, num_bytes: int, write: Callable[..., object], *arguments: Any) -> None:
        try:
            write(*arguments)
        finally:
            with self._written:
                self._unwritten_bytes -= num_bytes
                self._written.notify_all()

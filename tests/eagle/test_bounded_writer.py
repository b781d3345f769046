"""Writing in threads: bounded, in the end complete, and errors come back."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle.bounded_writer import BoundedWriter


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 60))
def test_no_more_than_the_bound_ever_waits(sizes: list[int], bound: int) -> None:
    """Except for one that is larger by itself; and everything is written."""
    lock, waiting, worst, written = threading.Lock(), [0], [0], []

    def write(size: int) -> None:
        with lock:
            written.append(size)
            waiting[0] -= size

    writer = BoundedWriter(2, bound)
    for size in sizes:
        done = writer.submit(size, write, size)
        with lock:
            waiting[0] += size
            worst[0] = max(worst[0], waiting[0])
        if size > bound:
            done.result(10)
    writer.close()
    assert sorted(written) == sorted(sizes)
    assert worst[0] <= max(bound, *sizes)


def test_a_slow_disk_holds_up_who_hands_over() -> None:
    """The second of two writes that don't fit together waits until the first is done."""
    first_may_end, second_is_in = threading.Event(), threading.Event()
    writer = BoundedWriter(2, 10)
    writer.submit(8, first_may_end.wait, 10)

    def hand_over() -> None:
        writer.submit(8, lambda: None)
        second_is_in.set()

    thread = threading.Thread(target=hand_over)
    thread.start()
    assert not second_is_in.wait(0.2)
    first_may_end.set()
    assert second_is_in.wait(10)
    thread.join()
    writer.close()


def test_a_failed_write_is_told_and_makes_room() -> None:
    """The error is in the future; what follows is written."""

    def fail() -> None:
        raise OSError("disk full")

    writer = BoundedWriter(1, 10)
    with pytest.raises(OSError, match="disk full"):
        writer.submit(10, fail).result(10)
    assert writer.submit(10, lambda: None).result(10) is None
    writer.close()

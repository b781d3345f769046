"""The curves of a training."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from synthgen.report.training import POINTS, Point, thinned


def at(step: float) -> Point:
    return Point(step=step, loss=2 * step, length=step / 2)


def test_a_long_log_is_shown_in_means() -> None:
    """Of 300 points each two become one; a short log stays as it is."""
    found = thinned(map(at, range(300)))
    assert len(found) == 150
    assert (found[0], found[-1]) == (at(0.5), at(298.5))
    assert thinned(map(at, range(3))) == (at(0), at(1), at(2))
    assert thinned([]) == ()


@given(st.integers(1, 2000))
def test_never_more_than_have_room(count: int) -> None:
    """However long the log is, and never none of it."""
    assert 0 < len(thinned(map(at, range(count)))) <= POINTS

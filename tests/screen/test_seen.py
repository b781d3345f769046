"""Numbers seen before: as a set says, in less memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from synthgen.screen.seen import FIRST_PLACES, Seen


@given(
    st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 20) | st.integers(0, 9).map(lambda n: n << 12))
)
def test_a_number_is_new_once(numbers: list[int]) -> None:
    """Numbers that fall on the same place are told apart; 0 and 1 alone count as one."""
    seen, known = Seen(), set[int]()
    for number in numbers:
        key = number & (2**64 - 1) or 1
        assert seen.add(number) == (key not in known)
        known.add(key)
    assert len(seen) == len(known)


def test_it_grows_and_forgets_nothing() -> None:
    """Four times over its first size, every number is still known."""
    seen = Seen()
    numbers = [hash((number, "x")) for number in range(2 * FIRST_PLACES)]
    assert all(seen.add(number) for number in numbers)
    assert not any(seen.add(number) for number in numbers)
    assert len(seen) == 2 * FIRST_PLACES

"""The shares of domains."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synthgen.seeds.strata import shares

SIZES = st.dictionaries(st.text("abc", max_size=2), st.integers(0, 40), max_size=6)


@pytest.mark.parametrize(
    ("strata", "limit", "taken"),
    [
        ("proportional", 10, {"a": 6, "b": 3, "c": 1}),  # quotas 6, 3.3, 0.7
        ("proportional", 9, {"a": 5, "b": 3, "c": 1}),  # quotas 5.4, 2.97, 0.63
        ("proportional", 1, {"a": 1, "b": 0, "c": 0}),
        ("even", 10, {"a": 4, "b": 3, "c": 3}),
        ("even", 30, {"a": 12, "b": 11, "c": 7}),
        ("even", 50, {"a": 22, "b": 21, "c": 7}),
        ("even", 100, {"a": 60, "b": 33, "c": 7}),
        ("proportional", None, {"a": 60, "b": 33, "c": 7}),
    ],
)
def test_a_limit_is_shared_out(
    strata: Literal["proportional", "even"], limit: int | None, taken: dict[str, int]
) -> None:
    """By largest remainder, or the same as far as they last."""
    assert shares({"a": 60, "b": 33, "c": 7}, limit, strata) == taken


@given(SIZES, st.integers(1, 200), st.sampled_from(["proportional", "even"]))
def test_shares_add_up_to_the_limit(
    sizes: dict[str, int], limit: int, strata: Literal["proportional", "even"]
) -> None:
    """No domain gives more than it has, whatever the order of domains."""
    taken = shares(sizes, limit, strata)
    assert sum(taken.values()) == min(limit, sum(sizes.values()))
    assert all(0 <= taken[name] <= size for name, size in sizes.items())
    assert shares(dict(reversed(sizes.items())), limit, strata) == taken


@given(SIZES, st.integers(1, 200))
def test_a_larger_limit_takes_no_less_of_a_domain(sizes: dict[str, int], limit: int) -> None:
    """Proportionally no less but one: the largest remainder may move on."""
    for strata, fewer in (("even", 0), ("proportional", 1)):
        small, large = shares(sizes, limit, strata), shares(sizes, limit + 1, strata)  # type: ignore[arg-type]
        assert all(large[name] >= small[name] - fewer for name in sizes)

"""Where a reply is among the ids that a template makes of its conversation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synthgen.client.control import Markers
from synthgen.renderer import Rendered, Template, common_tail, reply_span

END, BREAK, THINK_END = 902, 10, 900
TEMPLATE = Template(
    tail=(END, BREAK), turn_end="<|im_end|>", markers=Markers(think_end=THINK_END, tool_section=None)
)
IDS = st.lists(st.integers(20, 30), max_size=6).map(tuple)


@given(IDS, IDS.filter(bool), IDS)
def test_a_reply_ends_with_its_end_of_turn_and_not_with_what_follows_it(
    prefix: tuple[int, ...], reply: tuple[int, ...], later: tuple[int, ...]
) -> None:
    """Whatever stands before and after; the line break of the template is not in it."""
    through = (*prefix, *reply, END, BREAK)
    span = reply_span(Rendered(prefix, through), (*through, *later), TEMPLATE)
    assert span == (len(prefix), len(prefix) + len(reply) + 1)


@pytest.mark.parametrize(
    ("prefix", "through", "full"),
    [
        ((1, 2), (1, 3, 4, END, BREAK), (1, 3, 4, END, BREAK)),
        ((1, 2), (1, 2, 4, END, BREAK), (1, 2, 5, END, BREAK, 6)),
        ((1, 2), (1, 2, 4, END), (1, 2, 4, END)),
        ((1, 2), (1, 2, END, BREAK), (1, 2, END, BREAK)),
        ((1, 2), (1, 2, 4, END, 5, END, BREAK), (1, 2, 4, END, 5, END, BREAK)),
        ((1, 2), (1, 2, THINK_END, 4, END, BREAK), (1, 2, THINK_END, 4, END, BREAK)),
        ((1, 2, 3, 4, 5), (1, 2, 3, END, BREAK), (1, 2, 3, END, BREAK)),
    ],
    ids=["asked otherwise", "rewritten later", "another tail", "nothing written", "a turn ends inside",
         "thinking that the template adds", "asked for longer than told"],
)  # fmt: skip
def test_a_reply_that_is_not_exactly_what_would_be_sampled_has_no_span(
    prefix: tuple[int, ...], through: tuple[int, ...], full: tuple[int, ...]
) -> None:
    """It isn't supervised."""
    assert reply_span(Rendered(prefix, through), full, TEMPLATE) is None


def test_the_common_tail_is_what_two_replies_end_with() -> None:
    """Literal cases, and none."""
    assert common_tail((1, 2, END, BREAK), (3, END, BREAK)) == (END, BREAK)
    assert common_tail((1, 2), (1, 3)) == ()
    assert common_tail((), (1,)) == ()

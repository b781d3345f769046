"""Where a reply is among the ids that a template makes of its conversation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synthgen.client.control import Markers
from synthgen.render.renderer import Rendered, Template, common_tail, reply_span
from tests import templates
from tests.scripted_server import text_of, tokens_of

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


TURNS = st.lists(
    st.tuples(st.text("ab \n", max_size=4), st.text("cd \n", min_size=1, max_size=4)), min_size=1
)


@given(TURNS, st.sampled_from([templates.kimi, templates.smollm]), st.booleans())
def test_of_any_conversation_exactly_the_replies_and_their_ends_have_spans(
    turns: list[tuple[str, str]], template: Callable[[dict[str, Any]], str], has_system: bool
) -> None:
    """What the spans hold is what was replied, in order, under templates with and without a line break."""
    messages = [{"role": "system", "content": "S"}] if has_system else []
    replies = []
    for asked, replied in turns:
        messages.append({"role": "user", "content": asked})
        prefix = _ids(template, messages, asks=True)
        messages.append({"role": "assistant", "content": replied})
        replies.append(Rendered(prefix, _ids(template, messages, asks=False)))
    full = replies[-1].through
    tail = (END, BREAK) if template is templates.smollm else (END,)
    known = dataclasses.replace(TEMPLATE, tail=tail)
    spans = [reply_span(reply, full, known) for reply in replies]
    assert [span and text_of(full[slice(*span)]) for span in spans] == [
        f"{replied}<|im_end|>" for _, replied in turns
    ]


def _ids(template: Callable[[dict[str, Any]], str], messages: list[Any], *, asks: bool) -> tuple[int, ...]:
    options = {"add_generation_prompt": asks, "chat_template_kwargs": {"thinking": False}}
    return tuple(token for token, _ in tokens_of(template({"messages": messages, **options})))


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

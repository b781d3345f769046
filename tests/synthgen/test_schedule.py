"""What goes next: in order at first, longest expected first at the end."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from synthgen.corpus.records import Message, SeedPrompt
from synthgen.schedule import Key, LengthModel, Schedule


def key(domain: str, number: int = 0) -> Key:
    """A row of a domain."""
    messages = (Message(role="user", content=f"{domain} {number}"),)
    return SeedPrompt(id=f"{number:016x}", source="s", domain=domain, messages=messages), 0


def domains(schedule: Schedule, tail: int) -> list[str]:
    """The domains in the order of leaving."""
    found = []
    while (taken := schedule.take(tail)) is not None:
        found.append(taken[0].domain)
    return found


def taught() -> LengthModel:
    """Math is long, chat is short."""
    lengths = LengthModel(100)
    for _ in range(20):
        lengths.observe("math", 1000)
        lengths.observe("chat", 10)
    return lengths


def test_the_bulk_keeps_its_order_and_the_tail_goes_longest_first() -> None:
    """Of six rows the last four are sorted by expected length, ties in order."""
    todo = [key(d, n) for n, d in enumerate(["chat", "math", "chat", "math", "chat", "math"])]
    assert domains(Schedule(todo, taught()), tail=4) == ["chat", "math", "math", "math", "chat", "chat"]
    assert domains(Schedule(todo, taught()), tail=0) == ["chat", "math", "chat", "math", "chat", "math"]


def test_a_domain_that_is_hardly_known_is_drawn_to_the_mean() -> None:
    """One reply of 1,000 beside a mean of 100 over eleven: (1000 + 2 * mean) / 3."""
    lengths = LengthModel(50)
    assert lengths.expected("x") == 50
    for _ in range(10):
        lengths.observe("a", 10)
    lengths.observe("x", 1000)
    assert lengths.expected("x") == (1000 + 2 * 100) / 3
    assert lengths.expected("unseen") == 100


def test_what_could_not_be_sent_goes_last() -> None:
    """A server went away with it, perhaps because of it."""
    schedule = Schedule([key("a", 1), key("a", 2)], taught())
    first = schedule.take(0)
    assert first is not None
    schedule.give_back(first)
    assert [schedule.take(0), schedule.take(0)] == [key("a", 2), first]


def test_the_rest_is_counted_in_tokens() -> None:
    """Two math rows wait and one chat row is half done."""
    lengths = LengthModel(100)
    for _ in range(1000):
        lengths.observe("math", 1000)
        lengths.observe("chat", 10)
    left = Schedule([key("math", 1), key("math", 2)], lengths).tokens_left(Counter(chat=1))
    assert round(left, -1) == 2000 + round(5, -1)


@given(st.lists(st.sampled_from(["math", "chat", "new"]), max_size=40), st.integers(0, 50))
def test_every_row_leaves_once(names: list[str], tail: int) -> None:
    """Whatever the tail, nothing is lost or doubled."""
    todo = [key(name, number) for number, name in enumerate(names)]
    schedule, taken = Schedule(todo, taught()), []
    while (one := schedule.take(tail)) is not None:
        taken.append(one[0].id)
    assert sorted(taken) == sorted(prompt.id for prompt, _ in todo)

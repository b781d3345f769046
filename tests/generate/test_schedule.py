"""What goes next: in order at first, longest expected first at the end."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from synthgen.corpus.records import Message, SeedPrompt
from synthgen.generate.schedule import Key, LengthModel, Schedule


def key(domain: str, number: int = 0) -> Key:
    """A row of a domain."""
    messages = (Message(role="user", content=f"{domain} {number}"),)
    return SeedPrompt(id=f"{number:016x}", source="s", domain=domain, messages=messages), 0


def three_turns(domain: str, number: int = 0) -> Key:
    """A row of three replies."""
    prompt, index = key(domain, number)
    return msgspec.structs.replace(prompt, turns=("and?", "so?")), index


def all_replies(prompt: SeedPrompt, index: int) -> int:
    """Of a row that has none yet."""
    return 1 + len(prompt.turns)


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
    assert domains(Schedule(todo, taught(), all_replies), tail=4) == [
        "chat",
        "math",
        "math",
        "math",
        "chat",
        "chat",
    ]
    assert domains(Schedule(todo, taught(), all_replies), tail=0) == [
        "chat",
        "math",
        "chat",
        "math",
        "chat",
        "math",
    ]


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
    schedule = Schedule([key("a", 1), key("a", 2)], taught(), all_replies)
    first = schedule.take(0)
    assert first is not None
    schedule.give_back(first)
    assert [schedule.take(0), schedule.take(0)] == [key("a", 2), first]


def test_the_rest_is_counted_in_tokens() -> None:
    """Of two math rows one waits for two replies; a chat row of three is half through its first."""
    lengths = LengthModel(100)
    for _ in range(1000):
        lengths.observe("math", 1000)
        lengths.observe("chat", 10)
    begun = three_turns("math", 2)

    def replies_left(prompt: SeedPrompt, index: int) -> int:
        return 2 if prompt.id == begun[0].id else all_replies(prompt, index)

    schedule = Schedule([key("math", 1), begun], lengths, replies_left)
    assert round(schedule.tokens_left([three_turns("chat", 3)]), -1) == round(3000 + 2.5 * 10, -1)
    assert schedule.take(0) == key("math", 1)
    assert round(schedule.tokens_left([]), -1) == 2000
    assert schedule.take(0) == begun
    schedule.put_first(begun)
    schedule.give_back(key("math", 1))
    assert round(schedule.tokens_left([]), -1) == 3000


def test_a_conversation_that_can_go_on_goes_first_and_counts_its_replies() -> None:
    """In the tail three chat replies are longer than two, and shorter than one of math."""
    schedule = Schedule([key("chat", 1), key("math", 2)], taught(), all_replies)
    schedule.put_first(three_turns("chat", 3))
    assert schedule.take(tail=0) == three_turns("chat", 3)
    schedule.put_first(three_turns("chat", 3))
    taken = [schedule.take(tail=9) for _ in range(3)]
    assert taken == [key("math", 2), three_turns("chat", 3), key("chat", 1)]


@given(st.lists(st.sampled_from(["math", "chat", "new"]), max_size=40), st.integers(0, 50))
def test_every_row_leaves_once(names: list[str], tail: int) -> None:
    """Whatever the tail, nothing is lost or doubled."""
    todo = [key(name, number) for number, name in enumerate(names)]
    schedule, taken = Schedule(todo, taught(), all_replies), []
    while (one := schedule.take(tail)) is not None:
        taken.append(one[0].id)
    assert sorted(taken) == sorted(prompt.id for prompt, _ in todo)

"""Draws by hash: the same conversations whatever the order of rows, and the edge that gives enough."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synthgen.sources.draw import Source, next_edge


def source(path: Path, order: list[int], seed: int = 7) -> Source:
    """A source whose rows stand in this order."""
    path.write_text("".join(json.dumps({"question": f"q{i}", "answer": "a"}) + "\n" for i in order))
    return Source(str(path), "refuse", seed)


def test_a_draw_is_the_same_in_any_order_of_rows(tmp_path: Path) -> None:
    """The first 256 and what lies between two edges; another seed draws others."""
    order = list(range(1000))
    straight = source(tmp_path / "a.jsonl", order)
    random.Random(1).shuffle(order)
    shuffled = source(tmp_path / "b.jsonl", order)
    first = [conversation.id for conversation in straight.survey().first]
    assert len(first) == 256
    assert [conversation.id for conversation in shuffled.survey().first] == first
    between = {conversation.id for conversation in straight.between(0.3, 0.6)}
    assert {conversation.id for conversation in shuffled.between(0.3, 0.6)} == between
    assert 230 < len(between) < 370
    other = Source(straight.name, "refuse", 8)
    assert {conversation.id for conversation in other.between(0.3, 0.6)} != between


def test_what_was_held_and_what_is_read_again_are_the_whole_source_once(tmp_path: Path) -> None:
    """Nothing falls between the first 256 and the rest."""
    straight = source(tmp_path / "a.jsonl", list(range(300)))
    survey = straight.survey()
    rest = list(straight.between(straight.place(survey.first[-1]), 1.0))
    assert survey.count == 300
    assert len(rest) == 44
    assert len({conversation.id for conversation in (*survey.first, *rest)}) == 300


@pytest.mark.parametrize(
    ("edge", "given", "needed", "expected"),
    [
        (0.1, 100, 300, 0.32),  # three times as much, and a tenth of what was missing
        (0.1, 100, 101, 0.11),  # not by a hair, or a source would be read over and over
        (0.1, 0, 50, 1.0),
        (0.01, 0, 50, 0.16),
        (0.5, 100, 300, 1.0),
        (0.001, 100, None, 1.0),
    ],
)
def test_an_edge_moves_by_what_is_missing(
    edge: float, given: int, needed: int | None, expected: float
) -> None:
    """From what was given so far; all at once when everything is wanted."""
    assert next_edge(edge, given, needed) == pytest.approx(expected)


@given(st.floats(1e-9, 0.999), st.integers(0, 10**9), st.integers(1, 10**9))
def test_an_edge_always_moves_and_never_leaves_the_source(edge: float, given: int, needed: int) -> None:
    """So that a draw ends."""
    assert edge < next_edge(edge, given, max(needed, given + 1)) <= 1.0

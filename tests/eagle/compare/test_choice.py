"""Which rows each arm is trained on."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle.compare.choice import (
    MIX,
    PartRow,
    Ranked,
    Reach,
    choose,
    rank_of,
    ranked,
    require_parts,
    tokens_for_all,
)
from synthgen.corpus.samples import Span, SpanKind
from synthgen.errors import ArtifactError, ConfigError
from tests.eagle.compare.two_parts import two_parts


def parts_of(**tokens: list[int]) -> dict[str, list[Ranked]]:
    """Rows of these sizes, in this order."""
    return {
        name: [Ranked(at, f"{name}{at}", size) for at, size in enumerate(sizes)]
        for name, sizes in tokens.items()
    }


def span(start: int, end: int, kind: SpanKind = SpanKind.RESPONSE) -> Span:
    """Supervised tokens."""
    return Span(start=start, end=end, kind=kind)


def test_arms_have_the_same_tokens_to_the_last_one() -> None:
    """20 each: of the last row only what is lacking; the mix has 15 of the part three times as large."""
    parts = parts_of(a=[8, 8, 8, 36], b=[7, 13])
    assert tokens_for_all(parts, None) == 20
    assert choose(parts, 20) == {
        "a": {"a0": 8, "a1": 8, "a2": 4},
        "b": {"b0": 7, "b1": 13},
        MIX: {"a0": 8, "a1": 7, "b0": 5},
    }


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["a", "b", "c", "d"]),
        st.lists(st.integers(1, 40), min_size=1, max_size=20),
        min_size=2,
    ),
    st.integers(1, 400),
)
def test_arms_are_equal_and_share_rows_only_with_the_mix(sizes: dict[str, list[int]], asked: int) -> None:
    """Equal tokens in every arm; none in two parts' arms; all that the mix takes of a part, its arm takes."""
    parts = parts_of(**sizes)
    tokens = min(asked, tokens_for_all(parts, None))
    arms = choose(parts, tokens)
    assert [sum(rows.values()) for rows in arms.values()] == [tokens] * (len(parts) + 1)
    alone = [set(arms[name]) for name in parts]
    assert sum(map(len, alone)) == len(set().union(*alone))
    assert set(arms[MIX]) <= set().union(*alone)
    there = {name: sum(rows) for name, rows in sizes.items()}
    for name in parts:
        of_part = sum(count for row, count in arms[MIX].items() if row in arms[name])
        assert abs(of_part - tokens * there[name] / sum(there.values())) < 1


def test_more_than_the_scarcest_part_has_is_refused() -> None:
    """What it has is named."""
    with pytest.raises(ConfigError, match=r"--tokens 21 is more than part 'b' has supervised, 20"):
        tokens_for_all(parts_of(a=[60], b=[7, 13]), 21)


def test_one_part_is_refused_with_what_to_do() -> None:
    """So is a part that is called as the arm of all."""
    with pytest.raises(ConfigError, match=r"one part only, 'native'.*Add one whose `replies`"):
        require_parts(["native"])
    with pytest.raises(ConfigError, match="'mix' is what the arm of all parts is called"):
        require_parts(["native", "mix"])


def test_what_training_never_reads_does_not_count() -> None:
    """Samples cut to 10 tokens, 8 of them trained on: tokens 2 to 8 can be targets."""
    reach = Reach(max_seq_tokens=10, end=9)
    assert reach.supervised([span(0, 20)]) == 7
    assert reach.supervised([span(4, 6), span(7, 30)]) == 4
    assert reach.supervised([span(9, 30)]) == 0  # cut before its reply: left out
    assert reach.first([span(4, 6), span(7, 30)], 3) == (span(4, 6), span(7, 8))


def test_rows_are_ordered_by_a_hash_of_id_and_seed(tmp_path: Path) -> None:
    """Whatever the order they are read in; rows without anything to learn are left out."""
    config = two_parts(tmp_path)
    rows = [
        PartRow(
            id=f"{part}-{number}",
            domain="d",
            token_ids=msgspec.Raw(b"[1,2,3,4,5,6]"),
            spans=(span(3, 6),) if number else (span(0, 1),),
            part=part,
        )
        for part in ("generic", "native")
        for number in range(6)
    ]
    found = ranked(config, rows)
    assert found == ranked(config, rows[::-1])
    assert list(found) == ["generic", "native"]
    assert sorted(row.id for row in found["native"]) == [f"native-{number}" for number in range(1, 6)]
    assert [row.rank for row in found["native"]] == sorted(rank_of(7, f"native-{n}") for n in range(1, 6))
    assert rank_of(7, "native-1") != rank_of(8, "native-1")


def test_a_row_of_no_part_is_refused(tmp_path: Path) -> None:
    """The dataset is of another mix then."""
    row = PartRow(id="x", domain="d", token_ids=msgspec.Raw(b"[1]"), spans=(span(0, 1),), part="old")
    with pytest.raises(ArtifactError, match=r"row x is of part 'old', mix.parts has"):
        ranked(two_parts(tmp_path), [row])
    with pytest.raises(ArtifactError, match="part 'generic' has no row with states to learn from"):
        ranked(two_parts(tmp_path), [])

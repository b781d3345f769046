"""Lengths for fewer draft tokens than a server drafts."""

from __future__ import annotations

import pytest

from eagle.accept.live import lengths_by_draft_tokens
from eagle.accept.report import DraftTokens
from synthgen.client.metrics import SpecCounters


def counters(*accepted: float) -> SpecCounters:
    """Ten drafts."""
    return SpecCounters(
        drafts=10.0,
        draft_tokens=10.0 * len(accepted),
        accepted=sum(accepted),
        accepted_by_position=accepted,
    )


def test_a_shorter_draft_is_the_longer_ones_first_tokens() -> None:
    """Of 10 drafts 8 have the first token accepted, 5 the first two, 2 all three."""
    assert lengths_by_draft_tokens([counters(8.0, 5.0, 2.0)]) == (
        DraftTokens(num_draft_tokens=1, length=1.8, served=False),
        DraftTokens(num_draft_tokens=2, length=2.3, served=False),
        DraftTokens(num_draft_tokens=3, length=2.5, served=True),
    )


def test_the_server_that_drafts_the_next_more_is_asked() -> None:
    """With 1 and 3 served, 2 is from 3, and 1 its own."""
    found = lengths_by_draft_tokens([counters(8.0, 5.0, 2.0), counters(9.0)])
    assert [one.length for one in found] == pytest.approx([1.9, 2.3, 2.5])
    assert [one.served for one in found] == [True, False, True]

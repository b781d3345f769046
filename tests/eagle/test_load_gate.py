"""What the load gate says of a server's counters."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from eagle.load_gate import LoadReport, gate_notes, load_gate, wrong_in
from synthgen.corpus.journal import write_journal
from synthgen.errors import ArtifactError
from tests.eagle.drafts import AQ_MEDAI_CONFIG, MIDLAYER, weights, write_draft
from tests.eagle.tiny import tiny_config

FOUND = LoadReport(
    prompts=12,
    reply_tokens=736,
    drafts=274,
    drafts_predicted=274,
    length=2.642,
    length_predicted=2.642,
    rates=(0.766, 0.562, 0.354),
    rates_least=(0.759, 0.536, 0.347),
    rates_most=(0.766, 0.569, 0.387),
)
"""As it was found for tiny-kimi's draft on vLLM 0.32."""


def test_a_draft_that_is_loaded_rightly_passes() -> None:
    """And so does one that is off by what bfloat16 does to near ties."""
    assert wrong_in(FOUND) == []
    assert wrong_in(msgspec.structs.replace(FOUND, length=2.57, rates=(0.72, 0.52, 0.34))) == []
    assert gate_notes(FOUND) == []


def test_each_figure_that_is_off_is_a_line() -> None:
    """What was found, and what is expected."""
    found = wrong_in(msgspec.structs.replace(FOUND, length=2.1, rates=(0.60, 0.30, 0.35)))
    assert [one.line for one in found] == [
        "served with vLLM: acceptance length is 2.100; expected 2.642, within 3%: the server proposes "
        "other tokens than the trainer's draft on the verifier's states",
        "served with vLLM: accepted at position 1 is 60.0%; expected 75.9% to 76.6%, within 5 points",
        "served with vLLM: accepted at position 2 is 30.0%; expected 53.6% to 56.9%, within 5 points",
    ]
    assert wrong_in(msgspec.structs.replace(FOUND, length=2.9))[0].found == "2.900"


def test_ids_shifted_by_one_are_found() -> None:
    """As they were with tiny-kimi's draft: neighbouring layers are alike there, and it took 15 steps more."""
    shifted = msgspec.structs.replace(FOUND, drafts=289, length=724 / 289, rates=(0.734, 0.491, 0.318))
    assert [one.line for one in wrong_in(shifted)] == [
        "served with vLLM: acceptance length is 2.505; expected 2.642, within 3%: the server proposes other "
        "tokens than the trainer's draft on the verifier's states",
    ]


def test_a_draft_that_knows_nothing_proves_nothing() -> None:
    """It is accepted as rarely when it is loaded wrongly: that is said."""
    (note,) = gate_notes(msgspec.structs.replace(FOUND, length_predicted=1.01))
    assert note.startswith("the trainer's draft, too, has an acceptance length of only 1.010")


def test_without_prompts_nothing_is_started(tmp_path: Path) -> None:
    """The held-out prompts come from generation."""
    config = tiny_config(tmp_path)
    draft = write_draft(tmp_path / "draft", weights(MIDLAYER), AQ_MEDAI_CONFIG)
    write_journal(config.heldout_path, [])
    with pytest.raises(ArtifactError, match=r"heldout\.jsonl has no prompts to ask: run `synthgen generate"):
        load_gate(config, str(draft))

"""Prompts on disk, in the order they came."""

from __future__ import annotations

from pathlib import Path

import pytest

from synthgen.corpus.records import Message, SeedPrompt
from synthgen.errors import DiskError
from synthgen.sources.spool import Spool


def prompt(text: str) -> SeedPrompt:
    """A prompt."""
    return SeedPrompt(id="00", source="s", domain="d", messages=(Message(role="user", content=text),))


def test_prompts_come_back_by_their_number() -> None:
    """Whatever is in them, in any order."""
    prompts = [prompt(text) for text in ("a", "b\n\u2028", "", "ü" * 9)]
    with Spool() as spool:
        for one in prompts:
            spool.append(one)
        assert len(spool) == 4
        assert [spool[index] for index in (3, 0, 2, 1, 1)] == [prompts[i] for i in (3, 0, 2, 1, 1)]


def test_a_full_disk_is_told_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is that of temporary files, not the run's."""
    with Path("/dev/full").open("r+b", buffering=0) as full:
        monkeypatch.setattr("tempfile.TemporaryFile", lambda: full)
        with (
            Spool() as spool,
            pytest.raises(DiskError, match=r"No space left on device: .* set TMPDIR"),
        ):
            spool.append(prompt("a"))

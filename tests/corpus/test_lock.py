"""Who may write a corpus beside whom."""

from __future__ import annotations

import contextlib
import errno
import fcntl
from pathlib import Path

import pytest

from synthgen.corpus.lock import claimed, is_claimed
from synthgen.errors import ArtifactError


@pytest.mark.parametrize(
    ("held", "wanted", "refused"),
    [
        (1, 1, "the whole corpus"),
        (1, 4, "the whole corpus"),
        (4, 1, "part of the corpus, as --shard i/4"),
        (4, 2, "part of the corpus, as --shard i/4"),
        (4, 4, None),
    ],
)
def test_a_whole_excludes_all_and_a_part_those_of_another_division(
    tmp_path: Path, held: int, wanted: int, refused: str | None
) -> None:
    """Only parts of the same division share no rows."""
    expected = pytest.raises(ArtifactError, match=refused) if refused else contextlib.nullcontext()
    with claimed(tmp_path, held), expected, claimed(tmp_path, wanted):
        pass


def test_when_the_last_part_ends_another_division_may_begin(tmp_path: Path) -> None:
    """What was written down by the parts before counts no longer."""
    with claimed(tmp_path, 4), claimed(tmp_path, 4):
        pass
    for parts in (2, 1, 4):
        with claimed(tmp_path, parts):
            pass


def test_asking_who_holds_a_corpus_holds_nothing(tmp_path: Path) -> None:
    """A whole one or a part, until it ends."""
    assert not is_claimed(tmp_path)
    for parts in (1, 3):
        with claimed(tmp_path, parts):
            assert is_claimed(tmp_path)
        assert not is_claimed(tmp_path)


def test_a_disk_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some cluster file systems have none unless they are mounted with them."""

    def no_locks(file: int, kind: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    said = r"lock: can't be locked: Function not implemented\."
    with pytest.raises(ArtifactError, match=said), claimed(tmp_path, 1):
        pass

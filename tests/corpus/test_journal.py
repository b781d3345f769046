"""Journals: nothing that was appended is lost, nothing torn is read."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synthgen.corpus import journal as journal_module
from synthgen.corpus.journal import (
    Journal,
    count_records,
    find_records,
    read_journal,
    repair,
    segments,
    write_journal,
)
from synthgen.corpus.records import Failure, FailureKind
from synthgen.errors import ArtifactError, DiskError


def failure(number: int, message: str = "m") -> Failure:
    """A small record."""
    return Failure(
        seed_id=f"s{number}", sample_index=0, kind=FailureKind.REJECTED, message=message, attempts=1
    )


def append_all(path: Path, records: list[Failure]) -> None:
    """Append records one after the other."""

    async def work() -> None:
        with Journal(path) as journal:
            async with journal.writing():
                for record in records:
                    await journal.append(record)

    asyncio.run(work())


def test_what_is_appended_reads_back_in_order(tmp_path: Path) -> None:
    """Two sessions of appending read back as one sequence."""
    path = tmp_path / "a" / "j.jsonl"
    append_all(path, [failure(1), failure(2)])
    append_all(path, [failure(3)])
    assert list(read_journal(path, Failure)) == [failure(1), failure(2), failure(3)]


def test_a_missing_journal_is_empty(tmp_path: Path) -> None:
    """Reading what was never written yields nothing."""
    assert list(read_journal(tmp_path / "none.jsonl", Failure)) == []


def test_cut_at_every_byte_of_the_last_record_no_record_is_lost_or_merged(tmp_path: Path) -> None:
    """Wherever a crash tears the last line, reopening keeps the first record and appends cleanly."""
    path = tmp_path / "j.jsonl"
    append_all(path, [failure(1), failure(2)])
    whole = path.read_bytes()
    first_end = whole.index(b"\n") + 1
    for cut in range(first_end, len(whole)):
        path.write_bytes(whole[:cut])
        assert list(read_journal(path, Failure)) == [failure(1)]
        append_all(path, [failure(3)])
        assert list(read_journal(path, Failure)) == [failure(1), failure(3)]


def test_repair_says_how_much_it_cut(tmp_path: Path) -> None:
    """Ten torn bytes are cut and counted; a whole file is left alone."""
    path = tmp_path / "j.jsonl"
    path.write_bytes(b'{"a":1}\n{"torn":12')
    assert repair(path) == 10
    assert path.read_bytes() == b'{"a":1}\n'
    assert repair(path) == 0


def test_repair_finds_the_last_newline_far_back(tmp_path: Path) -> None:
    """A torn record longer than the search block is cut all the same."""
    path = tmp_path / "j.jsonl"
    path.write_bytes(b"{}\n" + b"x" * 200_000)
    assert repair(path) == 200_000


@settings(max_examples=30, deadline=None)
@given(st.lists(st.text(max_size=40), min_size=1, max_size=8))
def test_any_text_survives(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    """Line separators of Unicode inside a text don't split a record."""
    path = tmp_path_factory.mktemp("j") / "j.jsonl"
    records = [failure(i, text + "\u2028\x85") for i, text in enumerate(texts)]
    append_all(path, records)
    assert list(read_journal(path, Failure)) == records


def test_a_hundred_appends_at_once_are_all_written_when_they_return(tmp_path: Path) -> None:
    """Group commit tells no caller before its record is in the file."""
    path = tmp_path / "j.jsonl"

    async def work() -> None:
        with Journal(path) as journal:
            async with journal.writing():
                await asyncio.gather(*(journal.append(failure(i)) for i in range(100)))
                assert len(list(read_journal(path, Failure))) == 100

    asyncio.run(work())


def test_closing_writes_what_still_waits(tmp_path: Path) -> None:
    """A caller that was cancelled while its record waited doesn't take the record with it."""
    path = tmp_path / "j.jsonl"

    async def work() -> None:
        with Journal(path) as journal:
            async with journal.writing():
                waiting = asyncio.create_task(journal.append(failure(1)))
                await asyncio.sleep(0)
                waiting.cancel()

    asyncio.run(work())
    assert list(read_journal(path, Failure)) == [failure(1)]


@pytest.mark.timeout(10)
def test_a_full_disk_is_an_error_that_names_the_file_and_never_hangs() -> None:
    """Every waiting append fails with DiskError when the device has no space."""

    async def work() -> list[BaseException | None]:
        with Journal(Path("/dev/full")) as journal:
            async with journal.writing():
                return await asyncio.gather(
                    *(journal.append(failure(i)) for i in range(3)), return_exceptions=True
                )

    with pytest.raises(DiskError, match=r"/dev/full: No space left on device\. All records before are safe"):
        asyncio.run(work())


def test_a_long_journal_goes_on_in_segments_and_reads_as_one(tmp_path: Path) -> None:
    """A new file after sixty bytes, here after every record; the next session goes on in the last."""
    path = tmp_path / "j.jsonl"

    async def append(*numbers: int) -> None:
        with Journal(path, segment_bytes=60) as journal:
            async with journal.writing():
                for number in numbers:
                    await journal.append(failure(number))

    asyncio.run(append(1, 2))
    asyncio.run(append(3))
    assert [p.name for p in segments(path)] == ["j.jsonl", "j.00001.jsonl", "j.00002.jsonl", "j.00003.jsonl"]
    assert [r.seed_id for r in read_journal(path, Failure)] == ["s1", "s2", "s3"]
    assert {r.key for r in read_journal(path, Failure)} == {("s1", 0), ("s2", 0), ("s3", 0)}


def test_the_shards_of_a_job_array_read_as_one_journal(tmp_path: Path) -> None:
    """Each has a file and a lock of its own."""
    for shard in (1, 2):
        append_all(tmp_path / f"traces-{shard}of2.jsonl", [failure(shard)])
    found = {record.key for record in read_journal(tmp_path / "traces.jsonl", Failure)}
    assert found == {("s1", 0), ("s2", 0)}


def test_two_writers_cannot_share_a_journal(tmp_path: Path) -> None:
    """The second is refused; when the first has ended, it may write."""
    path = tmp_path / "j.jsonl"

    async def second() -> None:
        with Journal(path) as journal:
            async with journal.writing():
                await journal.append(failure(2))

    async def first() -> None:
        with Journal(path) as journal:
            async with journal.writing():
                await journal.append(failure(1))
                with pytest.raises(ArtifactError, match="another process is writing it"):
                    await second()

    asyncio.run(first())
    asyncio.run(second())
    assert list(read_journal(path, Failure)) == [failure(1), failure(2)]


def test_a_line_that_is_no_record_is_named(tmp_path: Path) -> None:
    """File, line number and what is wrong stand in the error."""
    path = tmp_path / "j.jsonl"
    write_journal(path, [failure(1)])
    with path.open("ab") as file:
        file.write(b'{"seed_id": 3}\n')
    with pytest.raises(ArtifactError, match=r"j\.jsonl:2: not a Failure: Expected `str`, got `int`"):
        list(read_journal(path, Failure))


def test_a_record_of_another_schema_version_is_refused(tmp_path: Path) -> None:
    """A journal of a later release isn't misread."""
    path = tmp_path / "j.jsonl"
    write_journal(path, [failure(1)])
    path.write_bytes(path.read_bytes().replace(b'"attempts":1', b'"attempts":1,"schema_version":2'))
    with pytest.raises(ArtifactError, match="schema_version 2, this release reads 1"):
        list(read_journal(path, Failure))


def test_cancelled_again_and_again_it_still_writes_what_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A third Ctrl-C comes while the last group is written, slowly here."""
    path = tmp_path / "j.jsonl"
    write = journal_module._write_durably

    def slowly(file: int, lines: list[bytes]) -> None:
        time.sleep(0.2)
        write(file, lines)

    monkeypatch.setattr(journal_module, "_write_durably", slowly)

    async def work() -> None:
        with Journal(path) as journal:
            async with journal.writing():
                for number in range(5):
                    journal.put(failure(number))
                    await asyncio.sleep(0)
                raise asyncio.CancelledError

    async def cancelled_often() -> None:
        task = asyncio.create_task(work())
        for _ in range(3):
            await asyncio.sleep(0.1)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled_often())
    assert len({record.key for record in read_journal(path, Failure)}) == 5


def test_what_lies_beside_a_journal_is_not_read(tmp_path: Path) -> None:
    """Neither a backup by another name, nor does a segment grow because an older one was moved away."""
    path = tmp_path / "traces.jsonl"
    append_all(path, [failure(1)])
    (tmp_path / "traces-old.jsonl").write_bytes(path.read_bytes())
    (tmp_path / "traces.00003.jsonl").write_bytes(path.read_bytes())
    assert [segment.name for segment in segments(path)] == ["traces.jsonl", "traces.00003.jsonl"]

    async def more() -> None:
        with Journal(path, segment_bytes=1) as journal:
            async with journal.writing():
                await journal.append(failure(2))

    asyncio.run(more())
    assert [segment.name for segment in segments(path)][-1] == "traces.00004.jsonl"


class Key(msgspec.Struct, frozen=True):
    """What records are found by."""

    seed_id: str


def test_records_are_found_by_their_key_and_counted(tmp_path: Path) -> None:
    """Of the others only the key is decoded; a torn last line is neither found nor counted."""
    path = tmp_path / "j.jsonl"
    write_journal(path, [failure(0), failure(1), failure(2)])
    with path.open("ab") as file:
        file.write(b'{"seed_id": "s3"')
    assert list(find_records(path, Key, lambda key: key.seed_id == "s1", Failure)) == [failure(1)]
    assert count_records(path) == 3
    assert count_records(tmp_path / "none.jsonl") == 0
    with path.open("ab") as file:
        file.write(b', "kind": "none"}\n')
    assert list(find_records(path, Key, lambda key: key.seed_id == "s2", Failure)) == [failure(2)]
    with pytest.raises(ArtifactError, match=r"j\.jsonl:4: not a Failure: "):
        list(find_records(path, Key, lambda key: key.seed_id == "s3", Failure))

"""Group commit against one commit for each record, on this disk.

python -m benchmarks.journal
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import msgspec

from benchmarks.scratch import scratch
from synthgen.corpus.journal import Journal
from synthgen.corpus.records import Failure, FailureKind

RECORDS = 1024
CALLERS = 64
RECORD = Failure(
    seed_id="0" * 16, sample_index=0, kind=FailureKind.REJECTED, message="x" * 33_000, attempts=1
)


def one_commit_each(path: Path) -> float:
    """Seconds for all records with a write and an fdatasync for each."""
    line = msgspec.json.encode(RECORD) + b"\n"
    began = time.perf_counter()
    with path.open("ab", buffering=0) as file:
        for _ in range(RECORDS):
            file.write(line)
            os.fdatasync(file.fileno())
    return time.perf_counter() - began


async def group_commit(path: Path) -> float:
    """Seconds for all records by `Journal`, appended by many callers at once."""
    with Journal(path) as journal:

        async def caller() -> None:
            for _ in range(RECORDS // CALLERS):
                await journal.append(RECORD)

        async with journal.writing():
            began = time.perf_counter()
            await asyncio.gather(*(caller() for _ in range(CALLERS)))
            return time.perf_counter() - began


def main() -> None:
    """Alternate the two three times; print each round, then the medians and their ratio."""
    rounds = []
    with scratch() as directory:
        for number in range(3):
            each = one_commit_each(Path(directory) / f"each-{number}")
            group = asyncio.run(group_commit(Path(directory) / f"group-{number}"))
            rounds.append((each, group))
            print(f"round {number + 1}: {each:.3f} s one by one, {group:.3f} s by group commit")
    each, group = (sorted(column)[1] * 1e6 / RECORDS for column in zip(*rounds, strict=True))
    figures = {"each_us": round(each, 1), "group_us": round(group, 1), "ratio": round(each / group, 2)}
    print(msgspec.json.encode(figures).decode())


if __name__ == "__main__":
    main()

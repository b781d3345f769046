"""What a corpus holds, by one pass that decodes no ids."""

from __future__ import annotations

from typing import Any

import msgspec

from synthgen.corpus.config import RunConfig
from synthgen.corpus.journal import write_journal
from synthgen.corpus.records import (
    Failure,
    FailureKind,
    Finish,
    Message,
    Sampling,
    Timing,
    Trace,
    TruncatedIn,
)
from synthgen.corpus.token_ids import encode_ids
from synthgen.generate.resume import held, held_bytes


def trace(seed: str, output: tuple[int, ...], **changes: Any) -> Trace:
    """A trace that thinks and ends."""
    whole = Trace(
        seed_id=seed,
        sample_index=0,
        source="s",
        domain="d",
        messages=(Message(role="user", content='q, "output_token_ids": [1,2,3,4,5]'),),
        prompt_token_ids=(1, 2),
        output=encode_ids(output),
        think_end=None,
        tool_start=None,
        thinking="t",
        response="r",
        finish=Finish.STOP,
        truncated_in=None,
        sampling=Sampling(temperature=0.0, top_p=1.0, max_tokens=9, thinking=True),
        server="x",
        timing=Timing(started_at=0.0, seconds=1.0),
    )
    return msgspec.structs.replace(whole, **changes)


def failure(seed: str) -> Failure:
    """A row that was refused."""
    return Failure(seed_id=seed, sample_index=0, kind=FailureKind.REJECTED, message="m", attempts=1)


def test_rows_and_tokens_are_those_of_the_records(scripted_config: RunConfig) -> None:
    """Thinking closed at index 1, cut in thinking, none at all, and ended by a tool section."""
    unthinking = Sampling(temperature=0.0, top_p=1.0, max_tokens=9, thinking=False)
    write_journal(
        scripted_config.traces_path,
        [
            trace("a", (5, 9, 6, 7), think_end=1),
            trace("b", (5, 5, 5), finish=Finish.LENGTH, truncated_in=TruncatedIn.THINKING),
            trace("c", (4,), sampling=unthinking),
            trace("d", (5, 5, 8, 8), tool_start=2, finish=Finish.TOOL_CALLS),
        ],
    )
    write_journal(scripted_config.failures_path, [failure("a"), failure("e")])
    found = held(scripted_config)
    assert found.done == {("a", 0), ("b", 0), ("c", 0), ("d", 0)}
    assert found.failed == {("e", 0)}
    counts = found.counts
    assert (counts.traces, counts.thinking_tokens, counts.response_tokens, counts.truncated) == (4, 7, 5, 1)


def test_a_corpus_that_is_not_there_holds_nothing(scripted_config: RunConfig) -> None:
    """A first run."""
    assert (held(scripted_config).done, held_bytes(scripted_config)) == (set(), 0)


def test_a_row_that_failed_before_and_is_traced_now_is_no_failure(scripted_config: RunConfig) -> None:
    """As --retry-failed leaves it."""
    write_journal(scripted_config.failures_path, [failure("e")])
    found = held(scripted_config)
    found.add_trace(("e", 0), 3, 2, Finish.STOP)
    assert (found.done, found.failed) == ({("e", 0)}, set())

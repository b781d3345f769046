"""Counting: literal bins, quantiles, curve points and rates, of few numbers and of a small corpus."""

from __future__ import annotations

from array import array
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synthgen.corpus.config import RunConfig
from synthgen.corpus.journal import write_journal
from synthgen.corpus.records import Failure, FailureKind, Finish, Timing, TruncatedIn
from synthgen.corpus.settings import load_config
from synthgen.report.census import DomainFigures, FailureFigures, Quantiles, SourceFigures, census
from synthgen.report.coverage import Coverage, coverage
from synthgen.report.histograms import Histogram, histogram, nice_step, quantile, shares
from synthgen.report.throughput import Throughput, throughput
from tests.report.replies import NO_THINKING, THINK_END, TOOL, trace


@pytest.fixture
def config(demo_values: dict[str, Any], write_config: Any, tmp_path: Path) -> RunConfig:
    """A run in a fresh directory whose draft vocabulary has two ids."""
    demo_values["vocab"]["size"] = 2
    return load_config(write_config(demo_values))


def test_even_values_are_binned_evenly() -> None:
    """The width is a nice number, and the first bin starts at a multiple of it."""
    assert histogram([10, 11, 14, 30]) == Histogram(
        edges=(10.0, 12.0, 14.0, 16.0, 18.0, 20.0, 22.0, 24.0, 26.0, 28.0, 30.0, 32.0),
        counts=(2, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1),
    )
    assert histogram([5, 5]) == Histogram(edges=(5.0, 6.0), counts=(2,))
    assert histogram([]) is None


def test_skewed_values_are_binned_by_powers_of_two() -> None:
    """A largest value over eight times the median would leave all others in one bin."""
    assert histogram([3, 3, 4, 7, 100]) == Histogram(
        edges=(2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0), counts=(2, 2, 0, 0, 0, 1)
    )
    assert histogram([0, 0, 1, 9]) == Histogram(edges=(0.0, 1.0, 2.0, 4.0, 8.0, 16.0), counts=(2, 1, 0, 0, 1))


@given(st.lists(st.integers(0, 200_000), min_size=1, max_size=50))
def test_each_value_is_in_the_bin_that_holds_it(values: list[int]) -> None:
    """No value is lost, and none is counted in another's bin."""
    binned = histogram(array("I", values))
    assert binned is not None
    for low, high, count in zip(binned.edges, binned.edges[1:], binned.counts, strict=False):
        assert count == sum(low <= value < high for value in values)
    assert sum(binned.counts) == len(values)


def test_quantiles_are_values_that_occur() -> None:
    """Nearest rank: half of four values don't exceed the second."""
    assert quantile([4, 1, 3, 2], 0.5) == 2
    assert quantile(list(range(1, 11)), 0.9) == 9
    assert quantile([7], 0.9) == 7


def test_shares_are_counted_in_tenths() -> None:
    """All of it belongs to the last tenth."""
    assert shares([0, 1, 5, 10], [10, 10, 10, 10]) == (1, 1, 0, 0, 0, 1, 0, 0, 0, 1)


def test_steps_are_nice() -> None:
    """1, 2 or 5 times a power of ten."""
    assert [nice_step(span, 4) for span in (4, 5, 437, 30, 0.4)] == [1, 2, 200, 10, 0.1]


def test_the_curve_of_a_vocabulary() -> None:
    """The most frequent ids first: 6, 9 and 10 of 10 tokens."""
    assert coverage(Counter({7: 3, 8: 6, 9: 1}), traces=2, size=2) == Coverage(
        traces=2, tokens=10, distinct=3, size=2, share=0.9, points=((1, 0.6), (2, 0.9), (3, 1.0))
    )
    whole = coverage(Counter({7: 3}), traces=1, size=32000)
    assert whole is not None
    assert whole.share == 1.0
    assert coverage(Counter(), traces=0, size=2) is None


def test_tokens_are_spread_over_the_time_of_their_reply() -> None:
    """40 tokens in 4 s beside 10 in the third second, in bins of a tenth: 10 a second, then 20."""
    found = throughput([100.0, 102.0], [4.0, 1.0], [40, 10])
    assert found is not None
    assert (found.started_at, found.bin_s) == (100.0, 0.1)
    assert found.tokens_per_s == (10.0,) * 20 + (20.0,) * 10 + (10.0,) * 10
    assert found.in_flight == (1.0,) * 20 + (2.0,) * 10 + (1.0,) * 10


def test_a_bin_that_is_covered_in_part_has_its_mean() -> None:
    """From 5 s to 15 s of 100 s, in bins of 2 s: half of the third bin, half of the eighth."""
    found = throughput([0.0, 5.0], [100.0, 10.0], [0, 100])
    assert found is not None
    assert found.bin_s == 2.0
    assert found.tokens_per_s == (0.0, 0.0, 5.0, 10.0, 10.0, 10.0, 10.0, 5.0) + (0.0,) * 42
    assert throughput([], [], []) is None


def test_a_reply_without_duration_counts_all_the_same() -> None:
    """Its tokens fall into one bin."""
    assert throughput([5.0], [0.0], [30]) == Throughput(
        started_at=5.0, bin_s=0.1, tokens_per_s=(300.0,), in_flight=(0.01,)
    )


@given(st.lists(st.tuples(st.floats(0, 1e5), st.floats(0.1, 1e4), st.integers(1, 20_000)), min_size=1))
def test_no_token_is_lost_in_time(replies: list[tuple[float, float, int]]) -> None:
    """Rates times widths make the tokens that came."""
    started, seconds, tokens = ([reply[i] for reply in replies] for i in range(3))
    found = throughput(started, seconds, [int(n) for n in tokens])
    assert found is not None
    span = max(a + b for a, b in zip(started, seconds, strict=True)) - found.started_at
    *whole, last = found.tokens_per_s
    area = sum(whole) * found.bin_s + last * (span - len(whole) * found.bin_s)
    assert area == pytest.approx(sum(tokens), rel=1e-6, abs=0.001 * span)


def test_a_corpus_is_counted(config: RunConfig) -> None:
    """Three traces: one thinks and answers, one is cut in its thinking, one calls a tool."""
    write_journal(
        config.traces_path,
        [
            trace("a", [5, 6, THINK_END, 7], timing=Timing(started_at=10.0, seconds=4.0)),
            trace("b", [5, 5], finish=Finish.LENGTH, truncated_in=TruncatedIn.THINKING, response=None),
            trace("c", [5, THINK_END, 7, TOOL, 7, 7], domain="<b>", source="b", finish=Finish.TOOL_CALLS),
        ],
    )
    found, failures = census(config)
    assert found is not None
    assert failures == ()
    assert (found.traces, found.thinking_tokens, found.response_tokens, found.tool_tokens) == (3, 7, 2, 3)
    assert found.tokens == 12
    assert found.truncated == {"thinking": 1}
    assert found.output_lengths == Histogram(edges=(2.0, 3.0, 4.0, 5.0, 6.0, 7.0), counts=(1, 0, 1, 0, 1))
    assert found.response_lengths == Histogram(edges=(1.0, 2.0), counts=(2,))
    assert found.thinking_shares == (0, 0, 0, 1, 0, 0, 0, 1, 0, 1)
    assert found.sources == (
        SourceFigures(name="a.jsonl", traces=2, tokens=6),
        SourceFigures(name="b", traces=1, tokens=6),
    )
    assert found.domains[1] == DomainFigures(
        name="<b>",
        traces=1,
        tokens=6,
        output=Quantiles(median=6, p90=6),
        thinking=Quantiles(median=2, p90=2),
        response=Quantiles(median=1, p90=1),
        thinking_shares=(0, 0, 0, 1, 0, 0, 0, 0, 0, 0),
    )
    assert found.coverage is not None
    assert (found.coverage.tokens, found.coverage.distinct, found.coverage.points[0]) == (12, 5, (1, 4 / 12))
    assert found.coverage.share == 8 / 12
    assert found.ended_at == 1002.0


def test_without_thinking_there_is_no_thinking_share(config: RunConfig) -> None:
    """A model that doesn't think has no share of it, rather than a share of nothing."""
    write_journal(config.traces_path, [trace("a", [5, 6], sampling=NO_THINKING, thinking=None)])
    found, _ = census(config)
    assert found is not None
    assert found.thinking_shares == found.domains[0].thinking_shares == ()
    assert found.thinking_lengths is None
    assert found.response_tokens == 2


def test_a_failure_counts_until_its_row_has_a_trace(config: RunConfig) -> None:
    """What --retry-failed made up for is no failure any more, and a row that failed twice is one."""
    rows = (("a", FailureKind.OVERLOADED), ("b", FailureKind.TRANSPORT), ("b", FailureKind.REJECTED))
    write_journal(
        config.failures_path,
        [Failure(seed_id=s, sample_index=0, kind=kind, message=f"no {s}", attempts=1) for s, kind in rows],
    )
    write_journal(config.traces_path, [trace("a", [5])])
    assert census(config)[1] == (FailureFigures(kind="rejected", rows=1, example="no b"),)


def test_an_empty_run_has_nothing_to_count(config: RunConfig) -> None:
    """Neither journal is there."""
    assert census(config) == (None, ())


def test_a_conversation_that_failed_after_its_first_turn_is_a_failure(config: RunConfig) -> None:
    """Only a trace of the turn that failed, or of a later one, makes up for it."""
    failure = Failure(
        seed_id="a", sample_index=0, turn=1, kind=FailureKind.REJECTED, message="too long", attempts=1
    )
    config.corpus_path.mkdir(parents=True)
    write_journal(config.failures_path, [failure])
    write_journal(config.traces_path, [trace("a", [1, 2], turns_left=1)])
    assert [(found.kind, found.rows) for found in census(config)[1]] == [("rejected", 1)]
    write_journal(config.traces_path, [trace("a", [1, 2], turns_left=1), trace("a", [3], turn=1)])
    assert census(config)[1] == ()

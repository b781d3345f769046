"""The harness against a server that fails: every row ends as a trace or a failure, once."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from synthgen.corpus.config import RunConfig
from synthgen.corpus.journal import read_journal
from synthgen.corpus.records import Failure, Trace
from synthgen.corpus.settings import load_config
from synthgen.generate.stage import Request, generate
from synthgen.mock.faults import (
    CutShort,
    Exclamations,
    HalfOpen,
    InternalErrorOnce,
    InvalidJson,
    InvalidUtf8,
    MissingTokenIds,
    NullContent,
    Reset,
    Restart,
    Rule,
    SlowHeaders,
    TooManyRequests,
    Unavailable,
    UnknownFinish,
    WrongUsage,
)
from synthgen.mock_server import Fixed, MockConfig, MockServer, Preset
from synthgen.seeds.choose import split_prompts

PROMPTS = 40
FAULTS = st.sampled_from(
    [
        CutShort(),
        Exclamations(),
        InternalErrorOnce(),
        InvalidJson(),
        InvalidUtf8(),
        MissingTokenIds(),
        NullContent(),
        Reset(),
        SlowHeaders(),
        TooManyRequests(),
        Unavailable(),
        UnknownFinish(),
        WrongUsage(),
    ]
)


def mock_config(**changes: Any) -> MockConfig:
    """Short replies at once."""
    fields: dict[str, Any] = {"thinking_tokens": Fixed(8), "response_tokens": Fixed(4), "clock_speed": 60.0}
    return MockConfig(**{**fields, **changes})


@pytest.fixture
def config(demo_values: dict[str, Any], write_config: Any, tmp_path: Any) -> RunConfig:
    """Forty prompts, two tries a row."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(f'{{"prompt": "q{i}"}}\n' for i in range(PROMPTS + 2)))
    demo_values["verifier"]["served_name"] = "mock"
    demo_values["prompts"] |= {"sources": [str(prompts)], "limit": None, "heldout": 2}
    demo_values["generate"] |= {"retry_attempts": 2, "retry_seconds": 5, "concurrency": 16, "down_wait_s": 30}
    demo_values["accept"] |= {"prompts": 2, "single_prompts": 2}
    return load_config(write_config(demo_values))


def against(config: RunConfig, server: MockServer, run_dir: str) -> RunConfig:
    """The same run against this server, in a directory of its own."""
    return msgspec.structs.replace(
        config,
        run_dir=run_dir,
        server=msgspec.structs.replace(config.server, base_urls=(server.base_url,)),
    )


def require_account(config: RunConfig) -> tuple[int, int]:
    """Check that traces, failures and what is missing add up; return traces and failures."""
    traces = [trace.key for trace in read_journal(config.traces_path, Trace)]
    failed = [failure.key for failure in read_journal(config.failures_path, Failure)]
    wanted = {(prompt.id, 0) for prompt in split_prompts(config.prompts, config.seed).corpus}
    assert len(traces) == len(set(traces))
    assert set(traces) | set(failed) == wanted
    return len(traces), len(failed)


@pytest.mark.timeout(600)
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(FAULTS, st.floats(0.05, 0.6)), min_size=1, max_size=4), st.integers(0, 1000))
def test_whatever_goes_wrong_each_row_is_a_trace_or_a_failure(
    tmp_path_factory: pytest.TempPathFactory, config: RunConfig, faults: list[tuple[Any, float]], seed: int
) -> None:
    """Sent = done + failed + pending, for any mix of faults; a healthy server then completes the rest."""
    rules = tuple(Rule(fault, probability=probability) for fault, probability in faults)
    run_dir = str(tmp_path_factory.mktemp("run"))
    with MockServer(mock_config(faults=rules, seed=seed)) as server:
        generate(against(config, server, run_dir))
        require_account(against(config, server, run_dir))
    with MockServer(mock_config(seed=seed)) as server:
        manifest, tally = generate(against(config, server, run_dir), Request(retry_failed=True))
        assert require_account(against(config, server, run_dir))[0] == PROMPTS
        assert not tally.failures
        assert manifest.complete


def test_a_restart_of_ten_minutes_costs_no_try(config: RunConfig, tmp_path: Any) -> None:
    """On a clock sixty times as fast: connections are reset and refused, then everything goes on."""
    rules = (Rule(Restart(), from_s=180, to_s=780),)
    slow = mock_config(faults=rules, latency_s=Fixed(120.0), clock_speed=120.0)
    with MockServer(slow) as server:
        manifest, tally = generate(against(config, server, str(tmp_path / "run")))
    assert (manifest.figures["traces"], manifest.figures["failures"]) == (PROMPTS, 0)
    assert tally.seconds_down > 1


def impatient(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    """The same with time limits of a second for a reply and half of one for a health check."""
    monkeypatch.setattr("synthgen.client.api.BASE_TIMEOUT_S", 1.0)
    monkeypatch.setattr("synthgen.client.api.HEALTH_TIMEOUT_S", 0.5)
    limits: dict[str, Any] = {"seconds_per_token": 1e-6, "retry_attempts": 6, "retry_seconds": 60.0}
    return msgspec.structs.replace(config, generate=msgspec.structs.replace(config.generate, **limits))


def test_a_socket_that_falls_silent_is_left_after_its_time_limit(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """A third of the requests is never answered: each is tried again, and none hangs for ever."""
    rules = (Rule(HalfOpen(), probability=0.3),)
    with MockServer(mock_config(faults=rules, seed=5)) as server:
        run = against(impatient(config, monkeypatch), server, str(tmp_path / "run"))
        _, tally = generate(run)
        assert server.counters.faults["half-open"] >= 5
    assert require_account(run) == (PROMPTS, 0)
    assert tally.retried >= 5


def test_a_server_that_falls_silent_whole_is_waited_for(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """Its health check is silent too, so it is gone and no try is spent."""
    rules = (Rule(HalfOpen(), from_s=30, to_s=330),)
    with MockServer(mock_config(faults=rules, latency_s=Fixed(30.0))) as server:
        run = against(impatient(config, monkeypatch), server, str(tmp_path / "run"))
        _, tally = generate(run)
    assert require_account(run) == (PROMPTS, 0)
    assert tally.retried == 0
    assert tally.seconds_down > 1


def test_a_mildly_failing_server_costs_retries_and_no_rows(config: RunConfig, tmp_path: Any) -> None:
    """The `mild` preset: 429, 500 and resets are mended by trying again."""
    patient = msgspec.structs.replace(
        config, generate=msgspec.structs.replace(config.generate, retry_attempts=6, retry_seconds=60.0)
    )
    with MockServer(mock_config(faults=Preset.mild.rules, seed=3)) as server:
        run = against(patient, server, str(tmp_path / "run"))
        generate(run)
    assert require_account(run) == (PROMPTS, 0)

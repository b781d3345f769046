"""Servers that run already: figures by their counters and steps, and every fault of theirs by its name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from eagle.__main__ import app
from eagle.accept.bootstrap import Interval
from eagle.accept.measure import Given, measure_given
from eagle.accept.report import AcceptanceReport
from eagle.accept.stage import accept_given, given_path
from eagle.accept.steps import PromptSteps, StepFigures
from synthgen.corpus.config import RunConfig
from synthgen.corpus.journal import read_journal, write_journal
from synthgen.corpus.manifest import read_manifest
from synthgen.corpus.records import Message, SeedPrompt
from synthgen.corpus.settings import load_config, save_config
from synthgen.errors import ArtifactError, ConfigError, ServerError, ServerMismatch, ServerUnreachable
from tests.eagle.accept.drafting_server import DraftingServer
from tests.scripted_server import MODEL, ScriptedServer


@pytest.fixture
def drafted(server: ScriptedServer) -> DraftingServer:
    """The server with a draft."""
    return DraftingServer(server)


@pytest.fixture
def base() -> Iterator[DraftingServer]:
    """The server without."""
    scripted = ScriptedServer()
    scripted.start()
    yield DraftingServer(scripted, events=())
    scripted.stop()


@pytest.fixture
def config(demo_values: dict[str, Any], write_config: Any) -> RunConfig:
    """Four held-out prompts of two domains; two of them compare speed, at 1 and 2 at a time."""
    demo_values["verifier"]["served_name"] = MODEL
    demo_values["accept"] |= {"prompts": 4, "single_prompts": 2, "concurrencies": [1, 2], "rounds": 2}
    loaded = load_config(write_config(demo_values))
    prompts = [
        SeedPrompt(id=f"p{i}", source="t", domain="ab"[i % 2], messages=message(f"q{i}")) for i in range(4)
    ]
    write_journal(loaded.heldout_path, prompts)
    return loaded


def message(text: str) -> tuple[Message, ...]:
    """A prompt of one message."""
    return (Message(role="user", content=text),)


def measured(config: RunConfig, drafted: DraftingServer, base: DraftingServer | None) -> AcceptanceReport:
    """The report on these servers."""
    given = Given(
        url=drafted.scripted.base_url, base_url=base.scripted.base_url if base is not None else None
    )
    return measure_given(config, given)[0]


def test_counters_and_steps_say_the_same(
    config: RunConfig, drafted: DraftingServer, base: DraftingServer
) -> None:
    """Four replies of three steps that accept 1, 0 and 2: two tokens a step, by domain and by span, too."""
    report = measured(config, drafted, base)
    assert report.acceptance_length == 2.0
    assert report.rate_by_position == pytest.approx((2 / 3, 1 / 3))
    assert report.length_by_domain == {"a": 2.0, "b": 2.0}
    assert [(one.num_draft_tokens, one.served) for one in report.length_by_draft_tokens] == [
        (1, False),
        (2, True),
    ]
    assert [one.length for one in report.length_by_draft_tokens] == pytest.approx([1 + 2 / 3, 2.0])
    assert report.live is not None
    assert report.live.whole == StepFigures(steps=12, length=2.0, rate_by_position=(2 / 3, 1 / 3))
    assert report.live.interval == Interval(low=2.0, high=2.0)
    assert report.live.by_span == {
        "thinking": StepFigures(steps=4, length=2.0, rate_by_position=(1.0, 0.0)),
        "response": StepFigures(steps=8, length=2.0, rate_by_position=(0.5, 0.5)),
    }
    assert set(report.live.by_domain) == {"a", "b"}
    assert report.warnings == ()


def test_speed_and_sameness_at_each_concurrency(
    config: RunConfig, drafted: DraftingServer, base: DraftingServer
) -> None:
    """Two rounds of two prompts; all is compared with the undrafted server's first at 1."""
    report = measured(config, drafted, base)
    assert (report.lossless, report.same_replies, report.compared_replies) == (True, 4, 4)
    assert [one.concurrency for one in report.by_concurrency] == [1, 2]
    assert [one.compared_undrafted for one in report.by_concurrency] == [2, 4]
    assert [one.same_undrafted for one in report.by_concurrency] == [2, 4]
    for one in report.by_concurrency:
        assert one.undrafted is not None
        assert len(one.speedup_by_round) == 2
        assert one.drafted.first_token_s == one.undrafted.first_token_s == 0.25
        assert 0 < one.drafted.seconds_mean <= one.drafted.seconds_p95
    assert report.speedup == report.by_concurrency[0].speedup


def test_a_drafted_server_that_says_something_else_is_not_lossless(
    config: RunConfig, drafted: DraftingServer, base: DraftingServer
) -> None:
    """One token of each reply is another."""
    drafted.output = [11, 12, 13, 13, 14, 15, 16]
    report = measured(config, drafted, base)
    assert (report.lossless, report.same_replies, report.compared_replies) == (False, 0, 4)


def test_without_an_undrafted_server_nothing_is_compared(config: RunConfig, drafted: DraftingServer) -> None:
    """Speed-up and sameness are null, and the report says so."""
    report = measured(config, drafted, None)
    assert (report.speedup, report.lossless, report.tokens_per_s_undrafted) == (None, None, None)
    assert report.by_concurrency[0].drafted.tokens_per_s > 0
    assert [said.split(":")[0] for said in report.not_measured] == [
        "speed-up and sameness of replies",
        "the draft on hidden states",
    ]


def test_merged_events_are_told_and_the_counters_hold(config: RunConfig, drafted: DraftingServer) -> None:
    """A slow reader gets two steps in one event: then no span is known, but the length is."""
    drafted.merged = True
    report = measured(config, drafted, None)
    assert report.live is None
    assert report.acceptance_length == 2.0
    assert any("came in 8 events, while it counted 12 drafts" in said for said in report.not_measured)


def test_each_prompts_steps_are_kept(config: RunConfig, drafted: DraftingServer) -> None:
    """A journal beside the manifest, one line a prompt; a given server is measured anew each time."""
    given = Given(url=drafted.scripted.base_url, base_url=None)
    for _ in range(2):
        accept_given(config, given)
    steps = list(read_journal(given_path(config) / "prompts.jsonl", PromptSteps))
    assert {one.id for one in steps} == {"p0", "p1", "p2", "p3"}
    assert steps[0] == PromptSteps(
        id="p0",
        domain="a",
        draft="drafted",
        num_draft_tokens=2,
        accepted=(1, 0, 2),
        steps_by_span={"thinking": 1, "response": 2},
    )
    manifest = read_manifest(given_path(config))
    assert manifest is not None
    assert msgspec.convert(manifest.figures, AcceptanceReport).acceptance_length == 2.0


def test_the_command_prints_the_report(
    config: RunConfig, drafted: DraftingServer, base: DraftingServer, tmp_path: Path
) -> None:
    """Tables, or one JSON object with all that is in them; --base-url alone is refused."""
    path = tmp_path / "config.yaml"
    save_config(config, path)
    urls = ["--url", drafted.scripted.base_url, "--base-url", base.scripted.base_url]
    printed = CliRunner().invoke(app, ["accept", str(path), *urls])
    assert printed.exit_code == 0
    assert "acceptance length 2.000 with 2 draft tokens" in printed.stdout
    told = CliRunner().invoke(app, ["accept", str(path), *urls, "--json"])
    report = msgspec.json.decode(told.stdout, type=AcceptanceReport)
    assert (report.acceptance_length, report.lossless, report.offline) == (2.0, True, None)
    assert load_config(given_path(config) / "run.yaml") == config
    assert CliRunner().invoke(app, ["accept", str(path), *urls[2:]]).exit_code == 2


def test_a_server_without_a_draft_is_refused_before_a_request(
    config: RunConfig, base: DraftingServer
) -> None:
    """Its URL, and what to start it with."""
    with pytest.raises(ServerMismatch, match=r"is no server with a draft.*--speculative-config"):
        measured(config, base, None)
    assert base.replies == 0


def test_a_server_without_counters_is_refused(config: RunConfig, drafted: DraftingServer) -> None:
    """Another engine, vLLM with its log switched off, or a proxy before it."""
    drafted.scripted.counters = "python_gc_objects 3\n"
    with pytest.raises(ServerMismatch, match=r"has no counters of vLLM.*--disable-log-stats"):
        measured(config, drafted, None)


def test_a_server_that_drafts_nothing_is_named(config: RunConfig, drafted: DraftingServer) -> None:
    """Counters that stand still."""
    drafted.drafts_counted = False
    drafted.count()
    with pytest.raises(ServerError, match="counted no drafts for 4 replies"):
        measured(config, drafted, None)


@pytest.mark.parametrize("how", ["started_at", "replies"])
@pytest.mark.parametrize("reply", [2, 7, 10])
def test_a_restart_is_named(config: RunConfig, drafted: DraftingServer, how: str, reply: int) -> None:
    """Its start is another one, or its counters began anew; while speed is compared or acceptance counted."""

    def restart() -> None:
        if drafted.scripted.requests and len(drafted.scripted.requests) == reply:
            setattr(drafted, how, 2000.0 if how == "started_at" else -100)

    drafted.before_reply = restart
    drafted.replies = 100
    drafted.count()
    with pytest.raises(ServerError, match="restarted meanwhile"):
        measured(config, drafted, None)


def test_a_server_that_is_gone_is_named(config: RunConfig, drafted: DraftingServer) -> None:
    """Its connection breaks in the third reply, and it isn't healthy any more."""

    def die() -> None:
        if len(drafted.scripted.requests) == 3:
            drafted.scripted.healthy = False
            raise ConnectionResetError

    drafted.before_reply = die
    with pytest.raises(ServerUnreachable, match="is gone"):
        measured(config, drafted, None)


def test_the_classic_traps_are_warned_of(
    config: RunConfig, drafted: DraftingServer, base: DraftingServer
) -> None:
    """A warm prefix cache, another template on the undrafted server, requests of others."""
    drafted.caching = True
    drafted.count()
    written = base.scripted.template
    base.scripted.template = lambda body: written(body).removesuffix("<think>")
    seen = len(drafted.scripted.requests)

    def others() -> None:
        drafted.foreign_tokens += 5 * (len(drafted.scripted.requests) > seen)

    drafted.before_reply = others
    warnings = measured(config, drafted, base).warnings
    assert any("prefix caching is on" in one for one in warnings)
    assert any("the drafted server read a prompt as" in one for one in warnings)
    assert any("others use it" in one for one in warnings)


def test_a_prompt_that_bypasses_the_template_is_warned_of(config: RunConfig, drafted: DraftingServer) -> None:
    """The reply's prompt ids are the bare text's."""
    written = drafted.scripted.template
    drafted.scripted.template = lambda body: (
        body["messages"][0]["content"] if "temperature" in body else written(body)
    )
    (warning,) = (one for one in measured(config, drafted, None).warnings if "template" in one)
    assert "reached the model as 2 tokens" in warning
    assert "a raw completion prompt is not what it knows" in warning


def test_no_heldout_prompts_is_refused(config: RunConfig, drafted: DraftingServer) -> None:
    """They come with the corpus."""
    config.heldout_path.unlink()
    with pytest.raises(ArtifactError, match="has no held-out prompts: run `synthgen generate CONFIG` first"):
        measured(config, drafted, None)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"concurrencies": [4]}, r"concurrencies \[4\] must rise and begin with 1"),
        ({"concurrencies": [1, 8, 4]}, "must rise"),
        ({"num_draft_tokens": []}, "must be one or more, and all different"),
        ({"num_draft_tokens": [3, 3]}, "all different"),
    ],
)
def test_settings_that_mean_nothing_are_refused(
    demo_values: dict[str, Any], write_config: Any, changes: dict[str, Any], said: str
) -> None:
    """By the section itself."""
    demo_values["accept"] |= changes
    with pytest.raises(ConfigError, match=said):
        load_config(write_config(demo_values))

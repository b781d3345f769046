"""`synthgen report`: one page of its own, complete for what is there, silent about what isn't."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from synthgen.__main__ import app
from synthgen.client.control import Fingerprint
from synthgen.corpus.config import RunConfig
from synthgen.corpus.journal import write_journal
from synthgen.corpus.manifest import Speed, manifest_of, write_manifest
from synthgen.corpus.records import Failure, FailureKind, Finish, TruncatedIn
from synthgen.corpus.settings import load_config
from synthgen.errors import ArtifactError, ConfigError
from synthgen.report.figures import run_figures
from synthgen.report.stage import report_html, write_report
from tests.report.replies import NO_THINKING, THINK_END, THINKING, trace

EVIL = "<script>alert('x')</script>&\x1b"
VOID = {"meta"}
SECTIONS = [
    "Key figures",
    "Lengths",
    "Thinking share",
    "Screening",
    "Sources and domains",
    "Mix",
    "Failures",
    "Vocabulary coverage",
    "Throughput",
    "Training",
    "Acceptance",
    "Against the plan",
    "What ran",
]


class Page(HTMLParser):
    """A page that was read strictly: every tag closed, in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.ids: list[str] = []
        self.sections: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            assert not name.startswith("on")
            if name in ("src", "href"):
                self.links.append(value or "")
            if name == "id":
                self.ids.append(value or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "h2":
            self.sections.append(data)
        if "style" not in self.open:
            self.text += " " + data


@pytest.fixture
def path(demo_values: dict[str, Any], write_config: Any) -> Path:
    """The config of a run in a fresh directory, with two parts in its mix."""
    demo_values["mix"]["parts"] = [
        {"name": "native", "share": 0.75, "traces": [], "replies": None},
        {"name": "blend", "share": 0.25, "traces": None, "replies": "blend.jsonl"},
    ]
    written: Path = write_config(demo_values)
    return written


@pytest.fixture
def config(path: Path) -> RunConfig:
    """The same, loaded, with its run directory there."""
    loaded = load_config(path)
    loaded.run_path.mkdir()
    return loaded


def note(directory: Path, stage: str, figures: dict[str, Any], **changes: Any) -> None:
    """Write a stage's manifest."""
    directory.mkdir(parents=True, exist_ok=True)
    values: dict[str, Any] = {"settings": {}, "inputs": {}, "seconds": 90.0} | changes
    write_manifest(directory, manifest_of(stage, figures=figures, **values))


def steps(length: float, *rates: float) -> dict[str, Any]:
    return {"steps": 40, "length": length, "rate_by_position": rates}


def speed(tokens_per_s: float) -> dict[str, float]:
    return {"tokens_per_s": tokens_per_s, "seconds_mean": 2.5, "seconds_p95": 4.25}


LIVE = {
    "whole": steps(1.75, 0.5, 0.25),
    "interval": {"low": 1.5, "high": 2.0},
    "by_domain": {EVIL: steps(1.75, 0.5, 0.25)},
    "by_span": {"thinking": steps(1.5, 0.25, 0.25), "response": steps(2.125, 0.75, 0.375)},
}
ACCEPTED = {
    "acceptance_length": 1.8,
    "rate_by_position": [0.5, 0.3],
    "length_by_domain": {EVIL: 1.8},
    "length_by_draft_tokens": [
        {"num_draft_tokens": 1, "length": 1.5, "served": False},
        {"num_draft_tokens": 2, "length": 1.8, "served": True},
    ],
    "acceptance_length_untrained": 1.0,
    "prompts": 16,
    "num_draft_tokens": 2,
    "live": LIVE,
    "offline": {"walked": LIVE | {"whole": steps(1.625, 0.4, 0.225)}},
    "heldout": None,
    "same_replies": 8,
    "compared_replies": 8,
    "speedup": 1.25,
    "by_concurrency": [
        {
            "concurrency": concurrency,
            "drafted": speed(100),
            "undrafted": speed(80),
            "speedup": ratio,
            "speedup_by_round": [ratio - 0.1, ratio + 0.1],
        }
        for concurrency, ratio in ((1, 1.25), (8, 0.9))
    ],
    "warnings": [EVIL],
    "not_measured": ["the offline length: no states"],
}


def fill(config: RunConfig) -> None:
    """A run with something in every section, hostile wherever a text comes from outside."""
    write_journal(
        config.traces_path,
        [
            trace("a", [5, 6, THINK_END, 7], domain=EVIL, source=EVIL, response=EVIL),
            trace("b", [5, 6, 5], finish=Finish.LENGTH, truncated_in=TruncatedIn.THINKING),
        ],
    )
    failure = Failure(seed_id="c", sample_index=0, kind=FailureKind.REJECTED, message=EVIL, attempts=1)
    write_journal(config.failures_path, [failure])
    server = Fingerprint(model=EVIL, max_model_len=1024, engine="vllm 0.32.0", tokenizer="t", template="u")
    note(
        config.corpus_path,
        "generate",
        {"server": server},
        settings={"sampling": THINKING},
        speed=Speed(tokens_per_s=1234.5, load_s=30.0),
        seconds=5400.0,
    )
    note(
        config.screen_path,
        "screen",
        {
            "kept": 1,
            "dropped": 1,
            "by_reason": {"repetition": 1},
            "tags": {"repetition": 1, "refusal": 1},
            "examples": {"repetition": [{"trace": "b-0", "excerpt": EVIL}], "refusal": []},
        },
    )
    native = {"rows": 3, "tokens": 900, "thinking_tokens": 500, "response_tokens": 90, "tool_tokens": 10}
    blend = {"rows": 1, "tokens": 900, "thinking_tokens": 0, "response_tokens": 400, "tool_tokens": 0}
    parts = {"native": {"train": native, "heldout": {}}, "blend": {"train": blend, "heldout": {}}}
    note(config.dataset_path, "mix", {"parts": parts})
    note(config.accept_path, "accept", ACCEPTED)
    config.plan_path.write_text(
        '{"stages":{"generate":{"tokens":5000,"disk_bytes":70000,"load_s":1200,"work_s":6000,"rows":1}}}'
    )
    config.training_log_path.parent.mkdir(parents=True)
    config.training_log_path.write_text(
        '{"step":10,"loss":4.5,"acceptance_predicted":1.25,"rate":1}\n'
        '{"step":20,"loss":3.5,"acceptance_predicted":2.5,"rate":1}\n'
    )
    config.validation_log_path.write_text('{"step":20,"loss":3.75,"whole":{"length":2.25}}\n')


def test_a_full_run_has_every_section(config: RunConfig) -> None:
    """In order, each with its figures; the page is closed and fetches nothing."""
    fill(config)
    html = report_html(config, run_figures(config))
    page = Page(html)
    assert page.sections == SECTIONS
    assert all(re.fullmatch(r"#[a-z-]+", link) for link in page.links)
    assert not re.search(r"https?:|url\(|@import", html)
    assert len(set(page.ids)) == len(page.ids)
    told = " ".join(page.text.split())
    for said in (
        "Traces 2",
        "Failed rows 1",
        "Thinking tokens 6",
        "Response tokens 1",
        "Cut by the budget 50.0%",
        "Kept 50.0%",
        "Output tokens/s 1,234",
        "Hours of generation 1.50",
        "Cut: 1 in the thinking.",
        "1 of 2 traces were kept.",
        "repetition 1 · 50.0%",
        "native 60.0%, asked 75.0%",
        "blend 40.0%, asked 25.0%",
        "Counted over 7 output tokens of 2 traces (all 2), which use 4 different ids. vocab.size is 512.",
        "temperature 0.7, top_p 0.95, max_tokens 8, thinking on",
        "engine vllm 0.32.0",
        "Best of 1 validations: acceptance length 2.25 after 20 updates.",
        "training: loss from 4.5 at 10 to 3.5 at 20 (updates).",
        "Acceptance length 1.80",
        "95 % of bootstraps 1.50 to 2.00",
        "Speed-up, one at a time 1.25×",
        "Same replies 8 of 8",
        "offline: accepted from 0.4 at 1 to 0.225 at 2 (draft position).",
        "draft: times the tokens/s from 1.25 at 1 to 0.9 at 8 (requests at a time).",
        "thinking 1.500 1.500 response 2.125 2.125",
        "8 100.0 80.0 0.90 (0.80 to 1.00) 2.50 2.50 4.25 4.25",
        "Not measured: the offline length: no states",
        "generate 5,000 2 h 0 min 1 h 30 min 68.4 KiB ",
        "All stages together: 1 h 34 min.",
    ):
        assert said in told


def test_hostile_text_is_only_text(config: RunConfig) -> None:
    """From a domain, a source, an excerpt, a failure or a server's name."""
    fill(config)
    html = report_html(config, run_figures(config))
    assert "script" not in Page(html).tags
    assert "<script" not in html
    assert "\x1b" not in html
    assert html.count("&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt;&amp;␛") >= 5


def test_what_isnt_there_has_no_section(config: RunConfig) -> None:
    """An empty directory, then one that holds traces alone, without thinking or manifest."""
    page = Page(report_html(config, run_figures(config)))
    assert page.sections == []
    assert "Nothing is in this run directory yet." in page.text
    write_journal(config.traces_path, [trace("a", [5, 6], sampling=NO_THINKING, thinking=None)])
    page = Page(report_html(config, run_figures(config)))
    assert page.sections == [
        "Key figures",
        "Lengths",
        "Sources and domains",
        "Vocabulary coverage",
        "Throughput",
    ]
    assert "Thinking tokens 0" in " ".join(page.text.split())


def test_a_run_that_was_only_screened_or_mixed_is_shown_as_far(config: RunConfig) -> None:
    """Manifests without their journals; one that isn't complete gives no figures."""
    note(config.screen_path, "screen", {"kept": 3, "dropped": 0})
    note(config.dataset_path, "mix", {}, complete=False)
    page = Page(report_html(config, run_figures(config)))
    assert page.sections == ["Screening", "What ran"]
    assert "mix (not complete)" in page.text


def test_many_domains_are_cut_to_the_largest(config: RunConfig) -> None:
    """Twenty of them, and how many more there are."""
    write_journal(config.traces_path, [trace(f"{i:02}", [5, 6], domain=f"d{i:02}") for i in range(23)])
    told = Page(report_html(config, run_figures(config))).text
    assert "d19" in told
    assert "d20" not in told
    assert "3 more are left out here." in told


def test_figures_of_another_shape_are_refused(config: RunConfig) -> None:
    """With the file, the field and what to do."""
    note(config.screen_path, "screen", {"kept": "all", "dropped": 0})
    with pytest.raises(ArtifactError, match=r"screen/manifest\.json: figures .* `\$\.kept`\. Remove"):
        run_figures(config)


def test_a_run_that_isnt_there_is_refused(path: Path) -> None:
    """Rather than reported as empty."""
    with pytest.raises(
        ConfigError, match=r"run_dir .*/run isn't there: run `synthgen generate CONFIG` first"
    ):
        run_figures(load_config(path))


def test_the_command_prints_the_path_or_the_figures(path: Path, config: RunConfig, tmp_path: Path) -> None:
    """On stdout; the page is written either way, in place of an older one."""
    fill(config)
    told = CliRunner().invoke(app, ["report", str(path)])
    assert told.exit_code == 0
    assert told.stdout == f"{config.run_dir}/report.html\n"
    other = tmp_path / "deep" / "page.html"
    told = CliRunner().invoke(app, ["report", str(path), "--out", str(other), "--json"])
    figures = msgspec.json.decode(told.stdout)
    assert figures["corpus"]["thinking_tokens"] == 6
    assert figures["corpus"]["thinking_shares"] == [0, 0, 0, 0, 0, 0, 0, 1, 0, 1]
    assert figures["mix"]["parts"]["blend"]["train"]["response_tokens"] == 400
    assert [stage["name"] for stage in figures["stages"]] == ["generate", "screen", "mix", "accept"]
    assert other.read_text() == (config.run_path / "report.html").read_text()


def test_the_page_opens_in_the_browser_that_is_asked(path: Path, config: RunConfig, tmp_path: Path) -> None:
    """BROWSER names it, as for other programs."""
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/opened\n')
    browser.chmod(0o755)
    subprocess.run(
        [sys.executable, "-m", "synthgen", "report", str(path), "--open"],
        env=os.environ | {"BROWSER": str(browser)},
        check=True,
        capture_output=True,
    )
    assert (tmp_path / "opened").read_text() == f"{(config.run_path / 'report.html').as_uri()}\n"


def test_the_page_is_the_same_each_time(config: RunConfig) -> None:
    """The traces whose ids are counted are drawn with the run's seed."""
    fill(config)
    first = write_report(config, run_figures(config)).read_text()
    assert write_report(config, run_figures(config)).read_text() == first

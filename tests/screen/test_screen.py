"""The screen stage: one verdict a trace, a report, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from synthgen.__main__ import app
from synthgen.corpus.config import RunConfig
from synthgen.corpus.journal import read_journal, write_journal
from synthgen.corpus.manifest import digest_of, manifest_of, read_manifest, write_manifest
from synthgen.corpus.records import Trace
from synthgen.corpus.settings import load_config
from synthgen.corpus.verdicts import DropReason, Verdict
from synthgen.errors import ArtifactError
from synthgen.generate.stage import generate
from synthgen.screen.stage import screen
from tests.screen.screened import IM_END, THINK_END, a_trace
from tests.scripted_server import SPECIAL, ScriptedServer

TRACES = (
    a_trace(seed_id="0" * 15 + "1"),
    a_trace(seed_id="0" * 15 + "2", ask="Again?", response="I'm sorry, but I can't help with that."),
    a_trace(seed_id="0" * 15 + "3", ask="And then?", output=(10, IM_END, 12, THINK_END, 13, 14, IM_END)),
    a_trace(seed_id="0" * 15 + "1", sample_index=1, source="other.jsonl"),
)


def corpus(config: RunConfig, *traces: Trace, complete: bool = True, **figures: Any) -> None:
    """A corpus of these traces, as generating leaves it."""
    write_journal(config.traces_path, traces)
    figures = {"traces": len(traces), "special_tokens": {"<|im_end|>": IM_END}} | figures
    made = manifest_of("generate", settings={}, inputs={}, figures=figures, seconds=1.0, complete=complete)
    write_manifest(config.corpus_path, made)


@pytest.fixture
def config(demo_values: dict[str, Any], write_config: Any) -> RunConfig:
    """The demo's config in a fresh run directory."""
    return load_config(write_config(demo_values))


def dropping(config: RunConfig, *rules: DropReason) -> RunConfig:
    """The config with other rules that drop."""
    return msgspec.structs.replace(config, screen=msgspec.structs.replace(config.screen, drop=rules))


def test_each_trace_has_a_verdict_in_the_order_of_the_traces(config: RunConfig) -> None:
    """Segments and shards of the journal included; the traces themselves stay as they are."""
    corpus(config, *TRACES[:2], traces=4)
    write_journal(config.traces_path.with_name("traces.00001.jsonl"), TRACES[2:3])
    write_journal(config.traces_path.with_name("traces-1of2.jsonl"), TRACES[3:])
    before = {path.name: path.read_bytes() for path in config.corpus_path.iterdir()}
    screen(config)
    verdicts = list(read_journal(config.verdicts_path, Verdict))
    assert [verdict.trace for verdict in verdicts] == [
        trace.id for trace in read_journal(config.traces_path, Trace)
    ]
    assert {verdict.trace: verdict.reason for verdict in verdicts} == {
        "0000000000000001-0": None,
        "0000000000000001-1": DropReason.DUPLICATE,
        "0000000000000002-0": DropReason.REFUSAL,
        "0000000000000003-0": DropReason.LEAKED_TOKENS,
    }
    assert {path.name: path.read_bytes() for path in config.corpus_path.iterdir()} == before


def test_a_journal_that_was_cut_is_refused(config: RunConfig) -> None:
    """Verdicts on a part of a corpus would pass for all of it."""
    corpus(config, *TRACES[:2], traces=4)
    with pytest.raises(ArtifactError, match="has 2 traces, the manifest beside it says 4"):
        screen(config)
    assert not config.screen_path.exists()


def test_the_manifest_is_the_report(config: RunConfig) -> None:
    """Counts by rule, tokens by source, and examples; the corpus is its input."""
    corpus(config, *TRACES)
    made = screen(config)
    assert made == read_manifest(config.screen_path)
    assert made.inputs == {"corpus": digest_of(read_manifest(config.corpus_path) or made)}
    figures = made.figures
    assert (figures["traces"], figures["kept"], figures["dropped"]) == (4, 1, 3)
    assert {rule: count for rule, count in figures["by_reason"].items() if count} == {
        "leaked_tokens": 1,
        "refusal": 1,
        "duplicate": 1,
    }
    assert list(figures["tags"]) == [rule.value for rule in DropReason]
    assert figures["tokens_kept"] == {"math.jsonl": 7}
    assert figures["tokens_dropped"] == {"math.jsonl": 14, "other.jsonl": 7}
    assert figures["examples"]["refusal"] == [
        {"trace": "0000000000000002-0", "excerpt": "I'm sorry, but I can't help with that."}
    ]
    assert figures["examples"]["degenerate"] == []
    assert load_config(config.screen_path / "run.yaml") == config


def test_three_examples_of_each_rule_are_kept(config: RunConfig) -> None:
    """The first three, each of at most 200 characters."""
    corpus(
        config,
        *(
            a_trace(sample_index=n, response="!" * 900, output=(n + 1, IM_END), think_end=None)
            for n in range(5)
        ),
    )
    made = screen(config)
    assert made.figures["tags"]["degenerate"] == 5
    assert [example["trace"][-1] for example in made.figures["examples"]["degenerate"]] == ["0", "1", "2"]
    assert {example["excerpt"] for example in made.figures["examples"]["degenerate"]} == {"!" * 200}


def test_a_rule_that_does_not_drop_is_only_noted(config: RunConfig) -> None:
    """Its tags are counted; its traces are kept."""
    corpus(config, *TRACES)
    figures = screen(dropping(config, DropReason.REFUSAL)).figures
    assert (figures["kept"], figures["tags"]["duplicate"], figures["by_reason"]["duplicate"]) == (3, 1, 0)


def test_nothing_is_done_twice(config: RunConfig, capsys: pytest.CaptureFixture[str]) -> None:
    """The same settings over the same corpus say so and leave the verdicts alone."""
    corpus(config, *TRACES)
    made = screen(config)
    written = config.verdicts_path.stat().st_mtime_ns
    assert screen(config) == made
    assert config.verdicts_path.stat().st_mtime_ns == written
    assert "screen: nothing to do for" in capsys.readouterr().err


def test_other_settings_or_another_corpus_make_the_verdicts_anew(config: RunConfig) -> None:
    """Without a word of refusal, and without what was there before."""
    corpus(config, *TRACES)
    assert screen(config).figures["kept"] == 1
    assert screen(dropping(config)).figures["kept"] == 4
    corpus(config, *TRACES[:2])
    assert screen(config).figures["traces"] == 2
    assert len(list(read_journal(config.verdicts_path, Verdict))) == 2
    config.verdicts_path.unlink()
    assert screen(config).figures["traces"] == 2
    assert config.verdicts_path.exists()


@pytest.mark.parametrize(("there", "state"), [(False, "is missing"), (True, "is not complete")])
def test_a_corpus_that_is_not_complete_is_refused(config: RunConfig, there: bool, state: str) -> None:
    """With the command that makes it."""
    if there:
        corpus(config, *TRACES, complete=False)
    with pytest.raises(ArtifactError, match=rf"corpus {state}: run `synthgen generate CONFIG` first"):
        screen(config)
    assert not config.screen_path.exists()


def test_a_broken_trace_is_named_and_older_verdicts_stay(config: RunConfig) -> None:
    """Complete or absent: a pass that fails leaves what was there before."""
    corpus(config, *TRACES)
    screen(config)
    before = config.verdicts_path.read_bytes()
    with config.traces_path.open("ab") as file:
        file.write(b'{"seed_id": 1}\n')
    with pytest.raises(ArtifactError, match=re.escape(f"{config.traces_path}:5: not a Trace")):
        screen(dropping(config))
    assert config.verdicts_path.read_bytes() == before
    assert sorted(path.name for path in config.run_path.iterdir()) == ["corpus", "screen"]


def test_a_corpus_of_an_older_release_has_no_special_tokens(config: RunConfig) -> None:
    """Then only names in the text are found."""
    corpus(config, TRACES[2])
    path = config.corpus_path / "manifest.json"
    manifest = msgspec.json.decode(path.read_bytes())
    del manifest["figures"]["special_tokens"]
    path.write_bytes(msgspec.json.encode(manifest))
    assert screen(config).figures["kept"] == 1


def test_the_command_prints_a_table_and_examples(config: RunConfig, tmp_path: Path) -> None:
    """Within 100 columns; --json is the figures alone."""
    corpus(config, *TRACES, a_trace(ask="[red]?", response="[bold]word[/] " * 60))
    arguments = ["screen", str(tmp_path / "config.yaml")]
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 0, shown.output
    assert max(map(len, shown.stdout.splitlines())) <= 100
    assert re.search(r"refusal +1 +1 +20\.00%", shown.stdout)
    assert re.search(r"truncated_in_response +0 +only noted", shown.stdout)
    assert "1 of 5 traces kept, 7 of 35 output tokens" in shown.stdout
    assert re.search(r"0000000000000002-0 +I'm sorry", shown.stdout)
    assert "[bold]word[/]" in shown.stdout
    told = CliRunner().invoke(app, [*arguments, "--json"])
    manifest = read_manifest(config.screen_path)
    assert manifest is not None
    assert msgspec.json.decode(told.stdout) == manifest.figures


def test_the_command_ends_with_2_without_a_corpus(config: RunConfig, tmp_path: Path) -> None:
    """And says what to run first."""
    ended = CliRunner().invoke(app, ["screen", str(tmp_path / "config.yaml")])
    assert ended.exit_code == 2
    assert "run `synthgen generate CONFIG` first" in " ".join(ended.stderr.split())


def test_a_generated_corpus_can_be_screened_without_its_server(
    scripted_config: RunConfig, server: ScriptedServer
) -> None:
    """The special tokens are in its manifest, and stay there when it is gone on with."""
    generate(scripted_config)
    manifest = read_manifest(scripted_config.corpus_path)
    assert manifest is not None
    assert manifest.figures["special_tokens"] == SPECIAL
    generate(scripted_config)
    assert read_manifest(scripted_config.corpus_path) == manifest
    server.healthy = False
    figures = screen(scripted_config).figures
    assert (figures["traces"], figures["kept"], figures["tags"]["leaked_tokens"]) == (12, 12, 0)

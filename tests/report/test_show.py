"""`synthgen show`: replies by id, with spans that are legible without colours, and no control characters."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from synthgen.__main__ import app
from synthgen.corpus.config import RunConfig
from synthgen.corpus.console import printable
from synthgen.corpus.journal import write_journal
from synthgen.corpus.records import Finish, FunctionCall, Message, ToolCall, TruncatedIn
from synthgen.corpus.samples import DatasetRow, Origin, Span, SpanKind
from synthgen.corpus.settings import load_config
from synthgen.corpus.verdicts import DropReason, Verdict
from synthgen.errors import ArtifactError, ConfigError
from synthgen.report.show import find, print_reply
from tests.report.replies import THINK_END, TOOL, trace

A, B, C = "00000000000000aa", "00000000000000ab", "ffffffffffffffff"
Show = Callable[..., Result]


@pytest.fixture
def path(demo_values: dict[str, Any], write_config: Any) -> Path:
    """The config of a run in a fresh directory."""
    written: Path = write_config(demo_values)
    return written


@pytest.fixture
def config(path: Path) -> RunConfig:
    """The same, loaded."""
    return load_config(path)


@pytest.fixture
def show(path: Path) -> Show:
    """The command, as a script calls it."""

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, ["show", str(path), *arguments])

    return run


def row(sample_id: str) -> DatasetRow:
    """A sample that somebody else wrote."""
    return DatasetRow(
        id=sample_id,
        domain="chat",
        token_ids=(1, 2, 3, 4),
        spans=(Span(start=1, end=3, kind=SpanKind.RESPONSE),),
        part="blend",
        source="blend.jsonl",
        origin=Origin.VERBATIM,
        prompt="p",
        messages=(Message(role="user", content="Hello?"),),
        response="Hello.",
        server="0",
    )


def test_a_reply_in_plain_text(show: Show, config: RunConfig) -> None:
    """Each part stands under its label with its place among the tokens."""
    write_journal(config.traces_path, [trace(A, [5, 6, THINK_END, 7, 8])])
    told = show()
    assert told.exit_code == 0
    rule, *lines = told.stdout.splitlines()
    assert rule.startswith(f"{A}-0 ──")
    assert " ".join(" ".join(lines[:-6]).split()) == (
        "math · a.jsonl · stop · 3 prompt, 3 thinking, 2 response tokens · temperature 0.7, top_p 0.95, at "
        "most 8 tokens, thinking on · 2.0 s"
    )
    assert lines[-6:] == [
        "[user]",
        "What is 2 + 2?",
        "[thinking 3:6]",
        "Two and two.",
        "[response 6:8]",
        "It is 4.",
    ]


def test_the_mask_in_plain_text(show: Show, config: RunConfig) -> None:
    """Without colours each id has its kind behind it: a dot where nothing is supervised."""
    call = ToolCall(id="1", function=FunctionCall(name="search", arguments='{"q": 1}'))
    made = trace(A, [5, THINK_END, 7, TOOL, 163606], tool_calls=(call,), finish=Finish.TOOL_CALLS)
    write_journal(config.traces_path, [made])
    lines = show(f"{A}-0", "--mask").stdout.splitlines()
    assert lines[-14:] == [
        "[thinking 3:5]",
        "Two and two.",
        "[response 5:6]",
        "It is 4.",
        "[tool 6:8]",
        'search({"q": 1})',
        "[ids prompt 0:3]",
        "1:. 2:. 3:.",
        "[ids thinking 3:5]",
        " 5:t 90:t",
        "[ids response 5:6]",
        "7:r",
        "[ids tool 6:8]",
        "    91:c 163606:c",
    ]
    assert show(f"{A}-0", "--ids").stdout.splitlines()[-8:] == [
        "[ids prompt 0:3]",
        "1 2 3",
        "[ids thinking 3:5]",
        " 5 90",
        "[ids response 5:6]",
        "7",
        "[ids tool 6:8]",
        "    91 163606",
    ]


def test_the_mask_in_colour(config: RunConfig) -> None:
    """On a terminal zeros and ones stand under ids in the colours of their spans."""
    write_journal(config.traces_path, [trace(A, [5, THINK_END, 7])])
    out = Console(file=io.StringIO(), force_terminal=True, color_system="standard", no_color=False, width=60)
    print_reply(out, find(config, (f"{A}-0",), 1)[0], ids=False, mask=True)
    told = out.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b[2m1 2 3\x1b[0m\n\x1b[1m0 0 0\x1b[0m\n" in told
    assert "\x1b[36m 5 90\x1b[0m\n\x1b[1m 1  1\x1b[0m\n" in told
    assert "\x1b[32m7\x1b[0m\n\x1b[1m1\x1b[0m\n" in told


def test_where_a_reply_was_cut_and_what_screening_found(show: Show, config: RunConfig) -> None:
    """The budget that ran out, the part it ran out in, and the verdict."""
    made = trace(A, [5, 5], finish=Finish.LENGTH, truncated_in=TruncatedIn.THINKING, response=None)
    write_journal(config.traces_path, [made])
    tags = (DropReason.REPETITION, DropReason.TRUNCATED_IN_THINKING)
    verdict = Verdict(
        trace=made.id, source="", domain="", prompt="", tokens=2, reason=DropReason.REPETITION, tags=tags
    )
    config.screen_path.mkdir(parents=True)
    write_journal(config.verdicts_path, [verdict])
    told = show().stdout
    assert told.endswith("[cut in the thinking: the budget of 8 tokens ran out]\n")
    assert "dropped: repetition (found: truncated_in_thinking)" in " ".join(told.split())
    assert "[response" not in told


def test_no_control_character_reaches_the_terminal(show: Show, config: RunConfig) -> None:
    """Neither from a text, nor from a role, a domain or a source; markup is text."""
    evil = "\x1b]0;owned\x07\x9b31m[bold]x[/bold]\x7f\r\x00"
    made = trace(
        A,
        [5, THINK_END, 7],
        domain=evil,
        source=evil,
        thinking=evil,
        response=evil,
        messages=(Message(role=evil, content=evil),),
    )
    write_journal(config.traces_path, [made])
    told = show("--mask").stdout
    assert not [c for c in told if (ord(c) < 32 and c != "\n") or 127 <= ord(c) < 160]
    assert "␛]0;owned␇" in told
    assert "[bold]x[/bold]" in told
    assert printable("a\tb\r\nc\x1b") == "a\tb\nc␛"


def test_output_that_is_no_terminal_is_at_most_100_columns_wide(show: Show, config: RunConfig) -> None:
    """Ids too, whatever COLUMNS says."""
    write_journal(config.traces_path, [trace(A, list(range(100_000, 100_400)))])
    told = show("--mask").stdout
    assert max(map(len, told.splitlines())) <= 100


def test_ids_seeds_and_beginnings(config: RunConfig) -> None:
    """An id is one reply, a seed id all of its prompt's, a beginning the prompt that has it; each once."""
    write_journal(
        config.traces_path,
        [
            trace(A, [5]),
            trace(A, [5], sample_index=1),
            trace(A, [5], sample_index=1, turn=1),
            trace(A, [5], sample_index=10),
            trace(C, [5]),
        ],
    )

    def found(*asked: str) -> list[str]:
        return [shown.reply.id for shown in find(config, asked, 1)]

    assert found() == [f"{A}-0"]
    assert found(f"{A}-1") == [f"{A}-1"]
    assert found(f"{A}-1.1", f"{A}-0") == [f"{A}-1.1", f"{A}-0"]
    assert found(A) == [f"{A}-0", f"{A}-1", f"{A}-1.1", f"{A}-10"]
    assert found("ff", f"{C}-0") == [f"{C}-0"]
    assert [shown.reply.id for shown in find(config, (), 2)] == [f"{A}-0", f"{A}-1"]


def test_the_search_stops_where_all_is_found(config: RunConfig) -> None:
    """What comes after the last one is not read, broken or not."""
    write_journal(config.traces_path, [trace(A, [5]), trace(B, [5])])
    with config.traces_path.open("ab") as file:
        file.write(b"broken\n")
    assert [shown.reply.id for shown in find(config, (f"{B}-0", f"{A}-0"), 1)] == [f"{B}-0", f"{A}-0"]
    with pytest.raises(ArtifactError, match=r"traces\.jsonl:3: not a Trace with a key"):
        find(config, (f"{C}-0",), 1)


def test_samples_of_the_dataset_are_found_too(show: Show, config: RunConfig) -> None:
    """What is no trace may be a row of the dataset; what is both is shown as a trace."""
    write_journal(config.traces_path, [trace(A, [5])])
    config.dataset_path.mkdir(parents=True)
    write_journal(config.train_path, [row(f"{A}-0")])
    write_journal(config.validation_path, [row(f"{B}-0")])
    told = show(f"{B}-0", "--ids").stdout
    assert "dataset part blend, verbatim" in " ".join(told.split())
    assert told.splitlines()[-6:] == [
        "[ids prompt 0:1]",
        "1",
        "[ids response 1:3]",
        "2 3",
        "[ids unsupervised 3:4]",
        "4",
    ]
    assert "dataset part" not in show(f"{A}-0").stdout


def test_an_unknown_id_is_answered_with_the_nearest(show: Show, config: RunConfig) -> None:
    """Those with most of its beginning in common, and how to see more."""
    write_journal(config.traces_path, [trace(C, [5]), trace(A, [5]), trace(B, [5])])
    with pytest.raises(ConfigError) as error:
        find(config, (f"{B}-7",), 1)
    assert str(error.value) == (
        f"no trace or sample '{B}-7' in {config.run_path}: the nearest ids are {B}-0, {A}-0, {C}-0; "
        f"`synthgen show CONFIG --count 10` shows the first ten"
    )
    told = show("00000000000000a")
    assert told.exit_code == 2
    assert f"begins the ids of several prompts, {A} and {B} for instance" in " ".join(told.stderr.split())


def test_a_run_without_replies_says_what_to_do(show: Show, config: RunConfig) -> None:
    """With an id and without."""
    for arguments in ((), (f"{A}-0",)):
        told = show(*arguments)
        assert told.exit_code == 2
        assert "run `synthgen generate CONFIG` first" in " ".join(told.stderr.split())


def test_json_has_one_reply_a_line(show: Show, config: RunConfig) -> None:
    """With spans, and with ids and mask when they are asked for."""
    write_journal(config.traces_path, [trace(A, [5, THINK_END, 7]), trace(B, [5])])
    first, second = (
        msgspec.json.decode(line) for line in show("--count", "2", "--mask", "--json").stdout.splitlines()
    )
    assert (first["id"], second["id"]) == (f"{A}-0", f"{B}-0")
    assert first["tokens"] == {"prompt": 3, "thinking": 2, "response": 1, "tool": 0}
    assert first["spans"] == [
        {"start": 3, "end": 5, "kind": "thinking"},
        {"start": 5, "end": 6, "kind": "response"},
    ]
    assert first["token_ids"] == [1, 2, 3, 5, THINK_END, 7]
    assert first["mask"] == [0, 0, 0, 1, 1, 1]
    assert first["verdict"] is None
    assert "token_ids" not in msgspec.json.decode(show("--json").stdout)

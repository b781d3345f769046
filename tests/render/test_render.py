"""The render stage against a scripted server: spans, drops, refusals, and how much is rendered."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from typer.testing import CliRunner

from synthgen.__main__ import app
from synthgen.corpus.config import RunConfig
from synthgen.corpus.journal import read_journal, write_journal
from synthgen.corpus.manifest import Manifest, read_manifest
from synthgen.corpus.records import Message, SeedPrompt, prompt_key, seed_id
from synthgen.corpus.samples import DatasetRow, Origin, SpanKind
from synthgen.corpus.settings import load_config, save_config
from synthgen.errors import ArtifactError, DiskError, InputError, ServerMismatch, ServerUnreachable
from synthgen.generate.stage import generate
from synthgen.render.stage import ROWS_FILE, inputs_of, render, settings_of
from tests import templates
from tests.scripted_server import THINK_END, TURN_END, ScriptedServer, chat_reply, text_of


@pytest.fixture
def corpus(scripted_config: RunConfig, server: ScriptedServer) -> RunConfig:
    """A complete corpus of twelve traces, each of two thinking and two response tokens."""

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(chat_reply([11, THINK_END, 12, TURN_END]))

    server.handler = answer
    server.template = templates.kimi
    generate(scripted_config)
    return scripted_config


def with_replies(config: RunConfig, path: Path, rows: list[Any], share: float = 0.5, **mix: Any) -> RunConfig:
    """The run with a second part that has the replies of `rows`."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    values: dict[str, Any] = msgspec.to_builtins(config)
    values["mix"]["parts"] = [
        {"name": "native", "share": 1 - share, "traces": [], "replies": None},
        {"name": "other", "share": share, "traces": None, "replies": str(path)},
    ]
    values["mix"] |= mix
    values["prompts"]["on_bad_row"] = "skip"
    return msgspec.convert(values, RunConfig)


def qa(question: str, answer: str) -> dict[str, str]:
    """A row with one reply."""
    return {"question": question, "answer": answer}


def rows_of(config: RunConfig) -> list[DatasetRow]:
    """The rows there are."""
    return list(read_journal(config.rendered_path / ROWS_FILE, DatasetRow))


def supervised(row: DatasetRow) -> list[str]:
    """The texts of the spans."""
    return [text_of(row.token_ids[span.start : span.end]) for span in row.spans]


def figures(manifest: Manifest | None) -> dict[str, Any]:
    """Of the part with replies."""
    assert manifest is not None
    found: dict[str, Any] = manifest.figures["parts"]["other"]
    return found


CHAT = {
    "messages": [
        {"role": "user", "content": "a?"},
        {"role": "assistant", "content": "A."},
        {"role": "user", "content": "b?"},
        {"role": "assistant", "content": "B."},
    ],
    "category": "talk",
}


def test_a_row_has_the_servers_ids_and_a_span_for_each_reply(corpus: RunConfig, tmp_path: Path) -> None:
    """From where the prompt for it ends, to its end-of-turn token; the rest of the row says what it is."""
    config = with_replies(corpus, tmp_path / "chat.jsonl", [CHAT])
    render(config)
    (row,) = rows_of(config)
    assert text_of(row.token_ids) == (
        "<|im_start|>user>a?<|im_end|><|im_start|>assistant><think></think>A.<|im_end|>"
        "<|im_start|>user>b?<|im_end|><|im_start|>assistant><think></think>B.<|im_end|>"
    )
    assert supervised(row) == ["A.<|im_end|>", "B.<|im_end|>"]
    assert {span.kind for span in row.spans} == {SpanKind.RESPONSE}
    assert (row.part, row.source, row.domain) == ("other", "chat.jsonl", "talk")
    assert (row.origin, row.sampling, row.thinking, row.response) == (Origin.VERBATIM, None, None, "B.")
    assert [message.content for message in row.messages] == ["a?", "A.", "b?"]
    assert row.prompt == prompt_key(row.messages)
    assert row.id.startswith("v-")
    manifest = read_manifest(config.corpus_path)
    assert manifest is not None
    assert row.server == manifest.inputs["server"]


def test_a_tool_call_is_a_span_of_its_kind(corpus: RunConfig, tmp_path: Path) -> None:
    """From the token that opens the section to the end of the turn."""
    call = {"id": "f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "a?"},
        {"role": "assistant", "content": "Look:", "tool_calls": [call]},
    ]
    config = with_replies(corpus, tmp_path / "chat.jsonl", [{"messages": messages}])
    render(config)
    (row,) = rows_of(config)
    assert supervised(row) == ["Look:", "<|tool_calls_section_begin|>{}<|im_end|>"]
    assert [span.kind for span in row.spans] == [SpanKind.RESPONSE, SpanKind.TOOL]
    assert row.tool_calls[0].function.arguments == "{}"


def test_a_special_token_inside_a_reply_is_dropped_wherever_it_comes_from(
    corpus: RunConfig, server: ScriptedServer, tmp_path: Path
) -> None:
    """Here from a call's arguments, whose text isn't looked at. The corpus knows names that the server no
    longer tells.
    """
    server.names_tokens = False
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"{arguments}?"},
                {
                    "role": "assistant",
                    "content": "Look:",
                    "tool_calls": [
                        {"id": "f:0", "type": "function", "function": {"name": "f", "arguments": arguments}}
                    ],
                },
            ]
        }
        for arguments in ('{"a": "<|im_user|>"}', '{"a": "b"}')
    ]
    config = with_replies(corpus, tmp_path / "chat.jsonl", rows)
    found = figures(render(config))
    assert (found["rows"], found["drops"]) == (1, {"special_tokens": 1})
    assert "among a reply's ids is that of '<|im_user|>'" in found["examples"][0]
    (row,) = rows_of(config)
    assert supervised(row) == ["Look:", '<|tool_calls_section_begin|>{"a": "b"}<|im_end|>']


def test_what_a_template_writes_after_the_end_of_turn_is_no_part_of_a_row(
    scripted_config: RunConfig, server: ScriptedServer, corpus: RunConfig, tmp_path: Path
) -> None:
    """SmolLM2's line break stands between two turns, unsupervised, and not at the end."""
    server.template = templates.smollm
    _of_this_server(corpus, server)
    config = with_replies(corpus, tmp_path / "chat.jsonl", [CHAT])
    render(config)
    (row,) = rows_of(config)
    assert text_of(row.token_ids) == (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\na?<|im_end|>\n<|im_start|>assistant\nA.<|im_end|>\n"
        "<|im_start|>user\nb?<|im_end|>\n<|im_start|>assistant\nB.<|im_end|>"
    )
    assert supervised(row) == ["A.<|im_end|>", "B.<|im_end|>"]


def _of_this_server(config: RunConfig, server: ScriptedServer) -> None:
    """Generate the corpus anew, with the server as it is now."""
    for path in (config.corpus_path / "manifest.json", config.traces_path):
        path.unlink()
    generate(config)


def test_of_a_history_that_is_rewritten_only_what_stays_is_supervised(
    corpus: RunConfig, server: ScriptedServer, tmp_path: Path
) -> None:
    """The last reply follows what the model would be given; the first one doesn't any more."""
    server.template = templates.forgetful
    _of_this_server(corpus, server)
    config = with_replies(corpus, tmp_path / "chat.jsonl", [CHAT])
    render(config)
    (row,) = rows_of(config)
    assert supervised(row) == ["B.<|im_end|>"]
    assert "A." not in text_of(row.token_ids)


def test_a_template_that_asks_otherwise_than_it_tells_gives_no_row(
    corpus: RunConfig, server: ScriptedServer, tmp_path: Path
) -> None:
    """A prompt that ends inside the thinking doesn't continue with the bare reply: nothing is written."""
    server.template = templates.closing_later
    _of_this_server(corpus, server)
    config = with_replies(corpus, tmp_path / "chat.jsonl", [qa("a?", "A.")])
    with pytest.raises(
        InputError, match=r"none of 1 conversations gives a row for part 'other': inexact: .* as it asks"
    ):
        render(config)
    assert not config.rendered_path.exists()


def test_what_must_not_be_a_row_is_dropped_and_counted(
    corpus: RunConfig, server: ScriptedServer, tmp_path: Path
) -> None:
    """Each reason once, with an example; a row without a reply is left out before."""
    server.template = templates.alternating
    heldout = next(read_journal(corpus.heldout_path, SeedPrompt)).messages[0].content or ""
    excluded = tmp_path / "benchmark.jsonl"
    excluded.write_text(json.dumps({"prompt": "Benchmark?"}) + "\n")
    system = {"role": "system", "content": "s"}
    config = with_replies(
        corpus,
        tmp_path / "rows.jsonl",
        [
            qa("kept", "A."),
            qa("kept", "A."),
            qa(f" {heldout.upper()} ", "A."),
            qa("BENCHMARK?", "A."),
            qa("thinks", "<think>hm</think>A."),
            qa("names a token", "It ends with <|endoftext|>."),
            qa("long", "A" * 2000),
            {"question": "no answer"},
            {"prompt": "another shape", "answer": "A."},
        ],
    )
    values = msgspec.to_builtins(config)
    values["prompts"]["exclude"] = [str(excluded)]
    config = msgspec.convert(values, RunConfig)
    chat = tmp_path / "chat.jsonl"
    with_replies(config, chat, [{"messages": [system, *CHAT["messages"]]}, CHAT])
    values["mix"]["parts"] = [
        {"name": "native", "share": 0.4, "traces": [], "replies": None},
        {"name": "other", "share": 0.3, "traces": None, "replies": str(tmp_path / "rows.jsonl")},
        {"name": "chat", "share": 0.3, "traces": None, "replies": str(chat)},
    ]
    manifest = render(msgspec.convert(values, RunConfig))
    found = figures(manifest)
    assert (found["read"], found["left_out"], found["considered"], found["rows"]) == (9, 2, 7, 1)
    assert found["drops"] == {
        "heldout": 1,
        "excluded": 1,
        "duplicate": 1,
        "special_tokens": 2,
        "over_long": 1,
    }
    assert len(found["examples"]) == 5
    assert manifest is not None
    other = manifest.figures["parts"]["chat"]
    assert (other["rows"], other["drops"]) == (1, {"refused": 1})
    assert "System role not supported" in other["examples"][0]
    assert [row.part for row in rows_of(config)] == ["other", "chat"]


def test_near_duplicates_of_what_is_kept_for_evaluation_are_no_rows(
    corpus: RunConfig, tmp_path: Path
) -> None:
    """One word of sixty is another; without a threshold only the same words are kept away."""
    words = [" ".join(f"{stem}{i}" for i in range(60)) for stem in ("bench", "held", "other")]
    bench, held, other = words
    excluded = tmp_path / "benchmark.jsonl"
    excluded.write_text(json.dumps({"prompt": bench}) + "\n")
    messages = (Message(role="user", content=held),)
    write_journal(
        corpus.heldout_path,
        [SeedPrompt(id=seed_id(messages), source="s", domain="d", messages=messages)],
    )
    rows = [qa(text.replace("30", "thirty"), "A.") for text in (bench, held, other)]
    values = msgspec.to_builtins(with_replies(corpus, tmp_path / "rows.jsonl", rows))
    values["prompts"] |= {"exclude": [str(excluded)], "near_duplicates": 0.8}
    found = figures(render(msgspec.convert(values, RunConfig)))
    assert (found["rows"], found["drops"]) == (1, {"heldout": 1, "near_excluded": 1})
    values["prompts"]["near_duplicates"] = None
    assert figures(render(msgspec.convert(values, RunConfig)))["rows"] == 3


def test_a_disk_that_is_too_small_is_refused_before_the_server_is_asked(
    corpus: RunConfig, server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """48 tokens and a tenth are needed of a long source, of a short one its size."""
    config = with_replies(corpus, tmp_path / "rows.jsonl", [qa(f"r{i}", "A.") for i in range(1000)])
    short = with_replies(corpus, tmp_path / "short.jsonl", [qa("q", "A.")])
    before = server.tokenized
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 0, 10))
    with pytest.raises(DiskError, match=r"the rendered rows need 1\.7 KiB and a tenth to spare"):
        render(config)
    with pytest.raises(DiskError, match=r"the rendered rows need 34 B and a tenth to spare"):
        render(short)
    assert server.tokenized == before


def test_a_corpus_that_lost_its_held_out_prompts_is_refused_before_the_server_is_asked(
    corpus: RunConfig, server: ScriptedServer, tmp_path: Path
) -> None:
    """Their replies would be trained on."""
    config = with_replies(corpus, tmp_path / "rows.jsonl", [qa("q", "A.")])
    config.heldout_path.unlink()
    before = server.tokenized
    with pytest.raises(ArtifactError, match=r"heldout\.jsonl is missing"):
        render(config)
    assert server.tokenized == before
    assert not config.rendered_path.exists()


def test_as_much_is_rendered_as_the_mix_can_use(
    corpus: RunConfig, server: ScriptedServer, tmp_path: Path
) -> None:
    """Twelve traces of four tokens at half the mix leave 48 for others, and a tenth: the first 256 rows do.

    At a larger share more are read, again by hash; without traces all are.
    """
    rows = [qa(f"r{i}", "A.") for i in range(1000)]
    config = with_replies(corpus, tmp_path / "rows.jsonl", rows)
    found = figures(render(config))
    assert (found["needed"], found["rows"], found["supervised_tokens"]) == (53, 256, 768)
    few = {row.id for row in rows_of(config)}
    shutil.rmtree(config.rendered_path)
    config = with_replies(corpus, tmp_path / "rows.jsonl", rows, share=0.97)
    found = figures(render(config))
    assert found["needed"] == 1708
    assert 1708 <= found["supervised_tokens"] < 2100
    assert few < {row.id for row in rows_of(config)}
    shutil.rmtree(config.rendered_path)
    values = msgspec.to_builtins(config)
    values["mix"]["parts"] = [values["mix"]["parts"][1] | {"share": 1.0}]
    found = figures(render(msgspec.convert(values, RunConfig)))
    assert (found["needed"], found["rows"]) == (None, 1000)


def test_rows_are_counted_where_shares_are_of_rows(corpus: RunConfig, tmp_path: Path) -> None:
    """Twelve traces at three quarters leave four rows for others, and a tenth."""
    rows = [qa(f"r{i}", "A.") for i in range(10)]
    found = figures(render(with_replies(corpus, tmp_path / "rows.jsonl", rows, share=0.25, unit="rows")))
    assert (found["needed"], found["rows"]) == (5, 10)


def test_what_is_complete_is_not_rendered_again(
    corpus: RunConfig, server: ScriptedServer, tmp_path: Path
) -> None:
    """No question to the server; another part is rendered in its place."""
    config = with_replies(corpus, tmp_path / "rows.jsonl", [qa("q", "A.")])
    render(config)
    before = server.tokenized
    assert figures(render(config))["rows"] == 1
    assert server.tokenized == before
    assert load_config(config.rendered_path / "run.yaml") == config
    other = with_replies(corpus, tmp_path / "others.jsonl", [qa("q", "A.")])
    render(other)
    assert [row.source for row in rows_of(config)] == ["others.jsonl"]


def test_sources_that_changed_are_rendered_anew(
    corpus: RunConfig, server: ScriptedServer, tmp_path: Path
) -> None:
    """Replies and what is excluded, by their content; nobody has to ask a server for that."""
    excluded = tmp_path / "benchmark.jsonl"
    excluded.write_text('{"prompt": "p"}\n')
    values = msgspec.to_builtins(with_replies(corpus, tmp_path / "rows.jsonl", [qa("q", "A.")]))
    values["prompts"]["exclude"] = [str(excluded)]
    config = msgspec.convert(values, RunConfig)
    made = render(config)
    before = server.tokenized
    assert made is not None
    assert (made.settings, made.inputs) == (settings_of(config), inputs_of(config))
    assert made.inputs[f"source {excluded}"] == (
        "16 bytes, sha256 aa5167393d2232f9b1809e22817753249f216c1883461e475f0e389b720342c6"
    )
    assert sorted(made.inputs) == sorted(
        ["corpus", "server", f"source {tmp_path / 'rows.jsonl'}", f"source {excluded}"]
    )
    assert server.tokenized == before
    with_replies(corpus, tmp_path / "rows.jsonl", [qa("q", "A."), qa("p", "A."), qa("r", "A.")])
    assert made.inputs != inputs_of(config)
    found = figures(render(config))
    assert (found["rows"], found["drops"]) == (2, {"excluded": 1})
    excluded.write_text('{"prompt": "none"}\n')
    assert figures(render(config))["rows"] == 3


@pytest.mark.parametrize(
    ("key", "value"), [("field", "text"), ("near_duplicates", 0.5), ("on_bad_row", "refuse")]
)
def test_settings_of_the_prompts_that_matter_to_replies_are_settings_of_the_rows(
    corpus: RunConfig, tmp_path: Path, key: str, value: Any
) -> None:
    """The column of the prompts matters only to what is excluded."""
    config = with_replies(corpus, tmp_path / "rows.jsonl", [qa("q", "A.")])
    values = msgspec.to_builtins(config)
    values["prompts"][key] = value
    changed = msgspec.convert(values, RunConfig)
    assert (settings_of(changed) != settings_of(config)) is (key != "field")
    values["prompts"]["exclude"] = ["x.jsonl"]
    assert settings_of(msgspec.convert(values, RunConfig))[key] == value


def test_a_server_with_other_ids_is_refused(
    corpus: RunConfig, server: ScriptedServer, tmp_path: Path
) -> None:
    """Tokenizer or template: both digests are named, and nothing is written."""
    config = with_replies(corpus, tmp_path / "rows.jsonl", [qa("q", "A.")])
    server.template = templates.smollm
    with pytest.raises(ArtifactError, match=r"whose template has digest \w{16}, this one's has \w{16}"):
        render(config)
    server.tokenizer_suffix = [7]
    with pytest.raises(ArtifactError, match=r"whose tokenizer has digest \w{16}, this one's has \w{16}"):
        render(config)
    assert not config.rendered_path.exists()


def test_another_end_of_turn_than_the_corpus_has_is_refused(
    scripted_config: RunConfig, server: ScriptedServer, tmp_path: Path
) -> None:
    """The draft would learn two."""
    server.template = templates.kimi
    generate(scripted_config)  # whose replies end with 13
    config = with_replies(scripted_config, tmp_path / "rows.jsonl", [qa("q", "A.")])
    with pytest.raises(ServerMismatch, match=r"ends a reply with '<\|im_end\|>' \(902\).* end with \[13\]"):
        render(config)


def test_a_template_without_an_end_is_refused(
    scripted_config: RunConfig, server: ScriptedServer, tmp_path: Path
) -> None:
    """What ends a reply can't be told."""
    server.template = lambda body: "".join(message["content"] for message in body["messages"])
    generate(scripted_config)
    config = with_replies(scripted_config, tmp_path / "rows.jsonl", [qa("q", "A.")])
    with pytest.raises(ServerMismatch, match="writes nothing after a reply that shows where it ends"):
        render(config)


@pytest.mark.parametrize("status", [500, 503])
def test_a_server_that_fails_meanwhile_ends_the_stage_and_leaves_nothing(
    corpus: RunConfig, server: ScriptedServer, tmp_path: Path, status: int
) -> None:
    """It isn't the rows' fault."""
    config = with_replies(corpus, tmp_path / "rows.jsonl", [qa(f"r{i}", "A.") for i in range(40)])
    asked = 0

    def failing(body: dict[str, Any]) -> str:
        nonlocal asked
        asked += 1
        if asked > 30:
            server.healthy, server.tokenize_status = False, status
        return templates.kimi(body)

    server.template = failing
    with pytest.raises(ServerUnreachable, match="is gone"):
        render(config)
    assert not config.rendered_path.exists()
    assert not list(config.run_path.glob(".rendered*"))


@pytest.mark.parametrize("status", [401, 403, 404, 413])
def test_a_refusal_that_is_not_about_a_row_ends_the_stage(
    corpus: RunConfig, server: ScriptedServer, tmp_path: Path, status: int
) -> None:
    """A key that isn't taken is no fault of the conversations: none is dropped for it."""
    config = with_replies(corpus, tmp_path / "rows.jsonl", [qa(f"r{i}", "A.") for i in range(40)])
    asked = 0

    def refusing(body: dict[str, Any]) -> str:
        nonlocal asked
        asked += 1
        if asked > 30:
            server.tokenize_status = status
        return templates.kimi(body)

    server.template = refusing
    with pytest.raises(ServerMismatch, match=rf"refuses \w{{16}} of part 'other' with {status}: "):
        render(config)
    assert not config.rendered_path.exists()


def test_a_dead_server_is_one_line(corpus: RunConfig, tmp_path: Path) -> None:
    """Where nothing answers, the error says how to start one."""
    values = msgspec.to_builtins(with_replies(corpus, tmp_path / "rows.jsonl", [qa("q", "A.")]))
    values["server"]["base_urls"] = ["http://127.0.0.1:9/v1"]
    with pytest.raises(ServerUnreachable, match="nothing answers at"):
        render(msgspec.convert(values, RunConfig))


def test_a_broken_source_is_refused_before_the_server_is_asked(
    corpus: RunConfig, server: ScriptedServer, tmp_path: Path
) -> None:
    """Also at its last row."""
    config = with_replies(corpus, tmp_path / "rows.jsonl", [qa("q", "A."), {"question": "?"}])
    values = msgspec.to_builtins(config)
    values["prompts"]["on_bad_row"] = "refuse"
    before = server.tokenized
    with pytest.raises(InputError, match=r"rows\.jsonl:2:1: no reply"):
        render(msgspec.convert(values, RunConfig))
    assert server.tokenized == before


def test_no_escape_sequence_or_markup_of_data_reaches_the_terminal(corpus: RunConfig, tmp_path: Path) -> None:
    """Of part names, examples and paths; what looks like markup is shown as it is."""
    values = msgspec.to_builtins(with_replies(corpus, tmp_path / "rows.jsonl", [qa("q", "A.")]))
    rows = tmp_path / "[bold]rows.jsonl"
    rows.write_text(json.dumps(qa("q", "A.")) + "\n" + json.dumps(qa("p", "<|\x1b[31m|>")) + "\n")
    other = values["mix"]["parts"][1] | {"name": "[red]\x1b[2J", "replies": str(rows)}
    values["mix"]["parts"] = [values["mix"]["parts"][0], other]
    values["run_dir"] = str(corpus.run_path.rename(tmp_path / "[bold]run"))
    save_config(msgspec.convert(values, RunConfig), tmp_path / "with.yaml")
    for _ in range(2):
        done = CliRunner().invoke(app, ["render", str(tmp_path / "with.yaml")])
        assert done.exit_code == 0, done.output
        assert "\x1b" not in done.output
        assert "[red]␛[2J: 1 special_tokens" in done.stdout
        assert "special_tokens: " in done.stdout
        assert f"rows are in {tmp_path}/[bold]run/rendered/rows.jsonl" in done.stderr
    assert "nothing to do for" in done.stderr
    assert "[bold]run" in done.stderr.splitlines()[0]


def test_the_command_prints_parts_or_one_object(corpus: RunConfig, tmp_path: Path) -> None:
    """A table within 100 columns, or JSON; a mix without replies has nothing to render and ends with 0."""
    path = tmp_path / "with.yaml"
    save_config(corpus, path)
    done = CliRunner().invoke(app, ["render", str(path)])
    assert done.exit_code == 0
    assert "there is nothing to render" in done.stderr
    assert not corpus.rendered_path.exists()
    config = with_replies(corpus, tmp_path / "rows.jsonl", [qa("q", "A."), qa("p", "<think>A.")])
    save_config(config, path)
    done = CliRunner().invoke(app, ["render", str(path)])
    assert done.exit_code == 0, done.output
    assert "other: 1 special_tokens" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100
    done = CliRunner().invoke(app, ["render", str(path), "--json"])
    assert json.loads(done.stdout)["parts"]["other"]["supervised_tokens"] == 3

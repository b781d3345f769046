"""The audit: where the texts of a trace read back as other tokens than those that were sampled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from synthgen.__main__ import app
from synthgen.corpus.config import RunConfig
from synthgen.corpus.manifest import read_manifest
from synthgen.corpus.records import Finish
from synthgen.corpus.settings import save_config
from synthgen.corpus.token_ids import encode_ids
from synthgen.errors import ArtifactError
from synthgen.generate.stage import generate
from synthgen.render.audit import Difference, Reply, Where, audit, difference
from tests import templates
from tests.scripted_server import AB, THINK_END, TOOL_SECTION, TURN_END, ScriptedServer, chat_reply

CALL = {"id": "f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def reply(output: list[int], **changes: Any) -> Reply:
    """What is read of a trace with these output ids."""
    values: dict[str, Any] = {
        "seed_id": "abc",
        "sample_index": 0,
        "output_token_ids": output,
        "think_end": output.index(THINK_END) if THINK_END in output else None,
        "tool_start": output.index(TOOL_SECTION) if TOOL_SECTION in output else None,
        "thinking": None,
        "response": None,
        "finish": "stop",
        "sampling": {"thinking": True},
    }
    return msgspec.json.decode(msgspec.json.encode(values | changes), type=Reply)


THOUGHT = [1, 2, 3, THINK_END, 4, 5, TURN_END]


@pytest.mark.parametrize(
    ("sampled", "again", "expected"),
    [
        (THOUGHT, THOUGHT[:-1], None),
        (THOUGHT, [1, 9, 3, THINK_END, 4, 5], Difference(1, Where.THINKING, 5)),
        (THOUGHT, [1, 2, THINK_END, 4, 5], Difference(2, Where.BOUNDARY, 4)),
        (THOUGHT, [1, 2, 3, THINK_END, 9, 5], Difference(4, Where.BOUNDARY, 2)),
        (THOUGHT, [1, 2, 3, THINK_END, 4], Difference(5, Where.RESPONSE, 1)),
        (THOUGHT, [1, 2, 3, THINK_END, 4, 5, 6], Difference(6, Where.RESPONSE, 0)),
        ([1, TOOL_SECTION, 4, TURN_END], [1, TOOL_SECTION, 5], Difference(2, Where.TOOL, 1)),
        ([1, 2, TURN_END], [1], Difference(1, Where.THINKING, 1)),
    ],
    ids=["the same", "in thinking", "a blank before", "a blank after", "a blank at the end", "a token more",
         "in a tool call", "never closed"],
)  # fmt: skip
def test_the_first_difference_is_found_in_its_part(
    sampled: list[int], again: list[int], expected: Difference | None
) -> None:
    """Its index, the part, and the sampled tokens from there; the end of the turn is in no text."""
    assert difference(reply(sampled), tuple(again)) == expected


def test_a_cut_reply_has_no_end_of_turn_to_leave_away() -> None:
    """All its tokens are compared; without thinking they are the response."""
    cut = reply([1, 2], finish=Finish.LENGTH, sampling={"thinking": False})
    assert difference(cut, (1, 2)) is None
    assert difference(cut, (1, 3)) == Difference(1, Where.RESPONSE, 1)


@given(st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3)))
def test_what_stands_before_a_difference_is_the_same(sampled: list[int], again: list[int]) -> None:
    """For any two sequences; only equal ones have none."""
    output = encode_ids([*sampled, TURN_END])
    found = difference(reply(msgspec.json.decode(output)), tuple(again))
    assert (found is None) == (sampled == again)
    if found is not None:
        assert sampled[: found.index] == again[: found.index]
        assert sampled[found.index : found.index + 1] != again[found.index : found.index + 1]


@pytest.fixture
def corpus(scripted_config: RunConfig, server: ScriptedServer) -> RunConfig:
    """Twelve traces in three kinds: as the text reads, with a token that does not, with a tool call."""
    count = 0

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        nonlocal count
        count += 1
        x, tool = ord("x"), [TOOL_SECTION, *b"{}"]
        output = [
            [x, THINK_END, *b"ab", TURN_END],
            [x, THINK_END, *b"x", AB, x, TURN_END],
            [x, *tool, TURN_END],
        ]
        made = chat_reply(output[count % 3], reasoning="x", finish="tool_calls" if count % 3 == 2 else "stop")
        message = made["choices"][0]["message"]
        message["content"] = ("ab", "xabx", None)[count % 3]
        if count % 3 == 2:
            message["tool_calls"] = [CALL]
        return web.json_response(made)

    server.handler = answer
    server.template = templates.kimi
    generate(scripted_config)
    return scripted_config


def test_the_shares_and_examples_are_those_of_the_corpus(corpus: RunConfig) -> None:
    """Four of twelve traces; in each two of five tokens follow the difference."""
    figures = audit(corpus, 200).figures
    assert (figures["traces"], figures["differ"]) == (12, 4)
    assert (figures["tokens"], figures["tokens_after"]) == (4 * 4 + 4 * 5 + 4 * 4, 8)
    assert figures["where"] == {"thinking": 0, "boundary": 0, "response": 4, "tool": 0}
    assert len(figures["examples"]) == 4
    example = figures["examples"][0]
    assert (example["token"], example["where"]) == (3, "response")
    assert example["sampled"] == ["x", "</think>", "x", "ab", "x"]
    assert example["again"] == ["x", "</think>", "x", "a", "b", "x"]
    assert example["sampled_ids"] == [120, 900, 120, 950, 120]
    manifest = read_manifest(corpus.audit_path)
    assert manifest is not None
    assert manifest.figures == figures


def test_so_many_traces_are_chosen_by_hash(corpus: RunConfig) -> None:
    """The same each time."""
    assert audit(corpus, 5).figures == audit(corpus, 5).figures
    assert audit(corpus, 5).figures["traces"] == 5


def test_another_server_is_refused(corpus: RunConfig, server: ScriptedServer) -> None:
    """Its ids would differ by themselves."""
    server.tokenizer_suffix = [7]
    with pytest.raises(ArtifactError, match="whose tokenizer has digest"):
        audit(corpus, 5)


def test_the_command_prints_a_table_or_one_object(corpus: RunConfig, tmp_path: Path) -> None:
    """Within 100 columns, with the tokens of each example."""
    path = tmp_path / "run.yaml"
    save_config(corpus, path)
    done = CliRunner().invoke(app, ["audit", str(path)])
    assert done.exit_code == 0, done.output
    assert "4 of 12 (33.3%)" in done.stdout
    assert "sampled  x|</think>|x|ab|x" in done.stdout
    assert "again  x|</think>|x|a|b|x" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100
    done = CliRunner().invoke(app, ["audit", str(path), "--traces", "3", "--json"])
    assert json.loads(done.stdout)["traces"] == 3

"""A reply becomes a trace: exact ids, boundaries, ends; or a failure that says why not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from synthgen.client.control import Fingerprint, Markers
from synthgen.client.replies import ChatReply
from synthgen.corpus.records import (
    Failure,
    Finish,
    Message,
    Sampling,
    SeedPrompt,
    Timing,
    Trace,
    TruncatedIn,
    seed_id,
)
from synthgen.corpus.samples import thinking_length
from synthgen.errors import RequestFailed
from synthgen.generate.traces import ServerFacts, trace_of
from tests.scripted_server import THINK_END, TOOL_SECTION, chat_reply

SERVER = ServerFacts(
    fingerprint=Fingerprint(model="m", max_model_len=9, engine="e", tokenizer="t", template="u"),
    markers=Markers(think_end=THINK_END, tool_section=TOOL_SECTION),
)
MESSAGES = (Message(role="user", content="hi"),)
PROMPT = SeedPrompt(id=seed_id(MESSAGES), source="f", domain="d", messages=MESSAGES)


def trace(body: dict[str, Any], *, thinking: bool = True) -> Trace:
    """The trace of a reply."""
    reply = msgspec.json.decode(msgspec.json.encode(body), type=ChatReply)
    sampling = Sampling(temperature=1.0, top_p=1.0, max_tokens=9, thinking=thinking)
    return trace_of(PROMPT, 0, reply, sampling, SERVER, 1, Timing(started_at=0.0, seconds=1.0))


def test_ids_are_the_servers_and_the_text_stands_beside_them() -> None:
    """Nothing is tokenized here: ids and text are both kept as they came."""
    found = trace(chat_reply([7, 7, THINK_END, 5]))
    assert found.prompt_token_ids == (1, 2, 3)
    assert found.output_token_ids == (7, 7, THINK_END, 5)
    assert (found.think_end, found.tool_start) == (2, None)
    assert (found.thinking, found.response) == ("why", "because")
    assert found.server == SERVER.fingerprint.digest


def test_older_servers_name_the_thinking_otherwise() -> None:
    """`reasoning_content` is read where there is no `reasoning`."""
    body = chat_reply(reasoning=None)
    body["choices"][0]["message"]["reasoning_content"] = "old"
    assert trace(body).thinking == "old"


@pytest.mark.parametrize(
    ("output", "finish", "thinking", "think_end", "tool_start", "truncated_in", "thinking_tokens"),
    [
        ([1, 2], "length", True, None, None, TruncatedIn.THINKING, 2),
        ([1, THINK_END, 2], "length", True, 1, None, TruncatedIn.RESPONSE, 2),
        ([1, 2], "length", False, None, None, TruncatedIn.RESPONSE, 0),
        ([1, TOOL_SECTION, 2], "tool_calls", True, None, 1, None, 1),
        ([1, TOOL_SECTION, 2], "length", True, None, 1, TruncatedIn.RESPONSE, 1),
        ([1, THINK_END, TOOL_SECTION, 2], "tool_calls", True, 1, 2, None, 2),
        ([1, TOOL_SECTION, THINK_END, 2], "stop", True, None, 1, None, 1),
        ([THINK_END, 1], "stop", False, None, None, None, 0),
    ],
    ids=["cut in thinking", "cut in response", "cut, thinking off", "tool section closes thinking",
         "cut in tool section", "tool section after thinking", "</think> inside a tool section",
         "</think> with thinking off"],
)  # fmt: skip
def test_boundaries_and_cuts(
    output: list[int],
    finish: str,
    thinking: bool,
    think_end: int | None,
    tool_start: int | None,
    truncated_in: TruncatedIn | None,
    thinking_tokens: int,
) -> None:
    """Where thinking ends, where tools begin, and in which part a cut fell."""
    found = trace(chat_reply(output, finish=finish), thinking=thinking)
    assert (found.think_end, found.tool_start) == (think_end, tool_start)
    assert (found.finish, found.truncated_in) == (Finish(finish), truncated_in)
    length = thinking_length(found.sampling.thinking, found.think_end, found.tool_start, found.output_length)
    assert length == thinking_tokens


def test_a_cut_thinking_without_content_is_a_normal_record() -> None:
    """`content: null` with finish `length` is kept."""
    body = chat_reply([1, 2], finish="length")
    body["choices"][0]["message"]["content"] = None
    assert trace(body).response is None


def test_tool_calls_are_kept_as_the_parser_read_them() -> None:
    """Arguments stay the JSON text the model wrote."""
    body = chat_reply([TOOL_SECTION, 2], finish="tool_calls")
    call = {"id": "functions.add:0", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    body["choices"][0]["message"]["tool_calls"] = [call]
    (found,) = trace(body).tool_calls
    assert (found.id, found.function.name, found.function.arguments) == ("functions.add:0", "add", '{"a": 1}')


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (chat_reply(choices=[]), "has no choices"),
        (chat_reply(prompt_token_ids=None), "has no token ids: does the server know `return_token_ids`"),
        (chat_reply([]), "has no token ids"),
        (chat_reply(usage={"prompt_tokens": 3, "completion_tokens": 9}), "4 token ids, but usage says 9"),
        (chat_reply(finish="content_filter"), "unknown finish_reason 'content_filter'"),
    ],
)
def test_a_reply_that_contradicts_itself_is_malformed(body: dict[str, Any], message: str) -> None:
    """It becomes a failure, never a trace with guessed parts."""
    with pytest.raises(RequestFailed, match=message):
        trace(body)


def test_a_failure_has_the_key_its_trace_would_have_had() -> None:
    """So that both can be laid side by side."""
    failed = Failure(seed_id=PROMPT.id, sample_index=0, kind="malformed", message="m", attempts=1)  # type: ignore[arg-type]
    assert failed.key == trace(chat_reply()).key

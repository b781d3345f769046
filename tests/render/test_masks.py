"""Masks against a real server: which tokens of a conversation are supervised, token by token.

A table has a line for each stretch of tokens: 0 is not supervised, 1 is, with its kind. What a model samples
may differ between machines, so where it is free only the boundaries are compared; where a reply is given, or
only one token is allowed, the table is literal. `Ġ` is a blank, as the tokenizer writes it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import httpx
import msgspec
import pytest
import yaml

from synthgen.client.api import ApiClient
from synthgen.client.bodies import chat_body
from synthgen.client.control import Control
from synthgen.client.launch import plain, rendering, started
from synthgen.client.replies import ChatReply
from synthgen.corpus.config import RunConfig
from synthgen.corpus.journal import read_journal, write_journal
from synthgen.corpus.records import Finish, Message, Sampling, SeedPrompt, Timing, Trace, seed_id
from synthgen.corpus.samples import DatasetRow, Sample, sample_of
from synthgen.corpus.settings import load_config
from synthgen.corpus.token_ids import encode_ids
from synthgen.generate.stage import generate
from synthgen.generate.traces import ServerFacts, trace_of
from synthgen.render.audit import audit
from synthgen.render.stage import ROWS_FILE, render
from tests.conftest import ROOT

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

PORT = 8425
MODEL = "tiny-kimi"
GREEDY = Sampling(temperature=0.0, top_p=1.0, max_tokens=256, thinking=True)
NO_THINKING = msgspec.structs.replace(GREEDY, thinking=False)
USER = Message(role="user", content="What is 2 + 3?")
HEAD = (
    "<|im_user|> user <|im_middle|> What Ġis Ġ 2 Ġ+ Ġ 3 ? <|im_end|> <|im_assistant|> assistant <|im_middle|>"
)
CALL = {
    "id": "functions.add:0",
    "type": "function",
    "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'},
}


@dataclass(frozen=True, slots=True)
class Served:
    """The demo's verifier served with its weights, and a render server beside it."""

    config: RunConfig
    url: str
    render_url: str
    facts: ServerFacts

    def ids(self, *messages: dict[str, Any], **options: Any) -> list[int]:
        """Ids of a conversation as the template writes it."""
        return Control(self.url).tokenize(MODEL, messages=list(messages), **options)

    def id_of(self, text: str) -> int:
        """Id of a text that is one token."""
        (token,) = Control(self.url).tokenize(MODEL, prompt=text)
        return token

    def names(self, ids: tuple[int, ...]) -> list[str]:
        """The tokenizer's names of ids that it would choose itself."""
        body = {"model": MODEL, "add_special_tokens": False, "return_token_strs": True}
        body["prompt"] = Control(self.url).detokenize(MODEL, list(ids))
        answer = httpx.post(self.url.removesuffix("/v1") + "/tokenize", json=body).json()
        assert answer["tokens"] == list(ids)
        return list(answer["token_strs"])

    def trace(self, *messages: Message, sampling: Sampling = GREEDY, **extra: Any) -> Trace:
        """The verifier's own reply."""
        prompt = SeedPrompt(id=seed_id(messages), source="s", domain="d", messages=messages)
        reply = asyncio.run(self._ask(chat_body(prompt, MODEL, sampling) | extra))
        return self.as_trace(prompt, reply, sampling)

    def as_trace(self, prompt: SeedPrompt, reply: ChatReply, sampling: Sampling) -> Trace:
        """A reply as it would stand in a corpus."""
        return trace_of(prompt, 0, reply, sampling, self.facts, 1, Timing(started_at=0.0, seconds=1.0))

    async def _ask(self, body: dict[str, Any]) -> ChatReply:
        client = ApiClient(
            self.url, api_key=None, concurrency=1, timeout_s=100, retry_attempts=1, retry_seconds=1
        )
        async with client:
            return (await client.chat(body))[0]

    def table(self, sample: Sample) -> str:
        """The mask of a sample over its tokens."""
        marks = ["0"] * len(sample.token_ids)
        for span in sample.spans:
            marks[span.start : span.end] = [f"1 {span.kind}"] * (span.end - span.start)
        pairs = zip(marks, self.names(sample.token_ids), strict=True)
        stretches = groupby(pairs, key=lambda pair: pair[0])
        return "\n".join(f"{mark}: {' '.join(name for _, name in pairs)}" for mark, pairs in stretches)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One server of each kind for all tests."""
    directory = tmp_path_factory.mktemp("masks")
    values: dict[str, Any] = yaml.safe_load((ROOT / "configs/demo.yaml").read_text())
    values["run_dir"] = str(directory / "run")
    values["server"]["port"] = PORT
    path = directory / "run.yaml"
    path.write_text(yaml.safe_dump(values))
    config = load_config(path)
    beside = dataclasses.replace(rendering(config), port=PORT + 1)
    with started(config, plain(config), beside) as (engine, renderer):
        values["server"]["base_urls"] = [engine.base_url]
        path.write_text(yaml.safe_dump(values))
        control = Control(engine.base_url)
        facts = ServerFacts(fingerprint=control.fingerprint(MODEL), markers=control.markers(config.verifier))
        yield Served(load_config(path), engine.base_url, renderer.base_url, facts)


def assert_thinking_then_response(served: Served, trace: Trace, prompt: str) -> None:
    """The table of a free reply: the prompt, thinking with `</think>`, the response with `<|im_end|>`."""
    thinking, response = _parts(served.names(trace.output_token_ids))
    assert trace.finish is Finish.STOP
    assert response[-1] == "<|im_end|>"
    assert len(thinking) > 1
    assert served.table(sample_of(trace)) == (
        f"0: {prompt}\n1 thinking: {' '.join(thinking)}\n1 response: {' '.join(response)}"
    )


def _parts(names: list[str]) -> tuple[list[str], list[str]]:
    end = names.index("</think>") + 1
    return names[:end], names[end:]


def test_thinking_and_response(served: Served) -> None:
    """The prompt opens the thinking, so the output starts inside it."""
    assert_thinking_then_response(served, served.trace(USER), f"{HEAD} <think>")


def test_a_system_prompt_is_prompt(served: Served) -> None:
    """A turn of its own before the user's."""
    trace = served.trace(Message(role="system", content="Be brief."), USER)
    system = "<|im_system|> system <|im_middle|> Be Ġbrief . <|im_end|>"
    assert_thinking_then_response(served, trace, f"{system} {HEAD} <think>")


def test_two_turns(served: Served) -> None:
    """The earlier answer is prompt, with the empty thinking that the template leaves of it."""
    trace = served.trace(USER, Message(role="assistant", content="5"), USER)
    assert_thinking_then_response(served, trace, f"{HEAD} <think> </think> 5 <|im_end|> {HEAD} <think>")


def test_thinking_off(served: Served) -> None:
    """The prompt closes the thinking at once: all the model writes is response."""
    trace = served.trace(USER, sampling=NO_THINKING)
    output = " ".join(served.names(trace.output_token_ids))
    assert served.table(sample_of(trace)) == f"0: {HEAD} <think> </think>\n1 response: {output}"


@pytest.mark.parametrize(
    ("allowed", "sampling", "expected"),
    [
        ("a", GREEDY, "<think>\n1 thinking: a a a"),
        ("a", NO_THINKING, "<think> </think>\n1 response: a a a"),
        ("</think>", GREEDY, "<think>\n1 thinking: </think>\n1 response: </think> </think>"),
        ("<|tool_calls_section_begin|>", GREEDY,
         "<think>\n1 tool: " + " ".join(["<|tool_calls_section_begin|>"] * 3)),
    ],
    ids=["cut in thinking", "cut in the response", "empty thinking", "tool call at once"],
)  # fmt: skip
def test_replies_of_one_token_three_times(
    served: Served, allowed: str, sampling: Sampling, expected: str
) -> None:
    """The server may sample nothing else, and is cut after three."""
    three = msgspec.structs.replace(sampling, max_tokens=3)
    trace = served.trace(USER, sampling=three, allowed_token_ids=[served.id_of(allowed)])
    assert trace.finish is Finish.LENGTH
    assert served.table(sample_of(trace)) == f"0: {HEAD} {expected}"


SECTION = (
    "<|tool_calls_section_begin|> <|tool_call_begin|> functions . add : 0 <|tool_call_argument_begin|> "
    '{" a ": Ġ 1 , Ġ" b ": Ġ 2 } <|tool_call_end|> <|tool_calls_section_end|> <|im_end|>'
)


@pytest.mark.parametrize(
    ("closed", "thinking"), [(True, "1 thinking: H m </think>"), (False, "1 thinking: H m")]
)
def test_a_tool_call_ends_thinking_with_or_without_closing_it(
    served: Served, closed: bool, thinking: str
) -> None:
    """The ids of a call as the template writes it, taken as a reply: the demo's verifier makes none."""
    asked = {"role": "user", "content": USER.content}
    called = {"role": "assistant", "content": "", "reasoning": "Hm", "tool_calls": [CALL]}
    prompt = served.ids(asked, add_generation_prompt=True)
    output = served.ids(asked, called, add_generation_prompt=False)[len(prompt) :]
    if not closed:
        output.remove(served.id_of("</think>"))
    reply = {
        "choices": [{"message": {}, "finish_reason": "tool_calls", "token_ids": output}],
        "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(output)},
        "prompt_token_ids": prompt,
    }
    seed = SeedPrompt(id="0", source="s", domain="d", messages=(USER,))
    trace = served.as_trace(seed, msgspec.json.decode(json.dumps(reply), type=ChatReply), GREEDY)
    assert served.table(sample_of(trace)) == f"0: {HEAD} <think>\n{thinking}\n1 tool: {SECTION}"


@pytest.fixture(scope="module")
def mixed(served: Served, tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    """A run with a small corpus and a part whose replies others wrote."""
    directory = tmp_path_factory.mktemp("mixed")
    prompts, replies = directory / "prompts.jsonl", directory / "replies.jsonl"
    prompts.write_text("".join(f'{{"prompt": "What is {i} + 1?"}}\n' for i in range(4)))
    asked, told = {"from": "human", "value": USER.content}, {"from": "gpt", "value": "It is 5."}
    call = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    rows: list[dict[str, Any]] = [
        {"domain": "one", "conversations": [asked, told]},
        {"domain": "two", "conversations": [{"from": "system", "value": "Be brief."}, asked, told, asked,
                                            {"from": "gpt", "value": "Still 5."}]},
    ]  # fmt: skip
    calls = directory / "calls.jsonl"
    calls.write_text(
        json.dumps({"messages": [{"role": "user", "content": USER.content}, call], "domain": "call"})
    )
    replies.write_text("".join(json.dumps(row) + "\n" for row in rows))
    values: dict[str, Any] = msgspec.to_builtins(served.config)
    values["run_dir"] = str(directory / "run")
    values["prompts"] |= {"sources": [str(prompts)], "limit": None, "heldout": 1}
    values["accept"] |= {"prompts": 1, "single_prompts": 1}
    values["mix"]["parts"] = [
        {"name": "native", "share": 0.5, "traces": [], "replies": None},
        {"name": "replies", "share": 0.3, "traces": None, "replies": str(replies)},
        {"name": "calls", "share": 0.2, "traces": None, "replies": str(calls)},
    ]
    config = msgspec.convert(values, RunConfig)
    generate(config)
    return config


def _rendered(config: RunConfig) -> dict[str, DatasetRow]:
    render(config)
    return {row.domain: row for row in read_journal(config.rendered_path / ROWS_FILE, DatasetRow)}


def test_replies_of_others_are_masked_as_the_models_own_without_thinking(
    served: Served, mixed: RunConfig
) -> None:
    """One reply, two with a system prompt, and a tool call; each reply ends with its end of turn."""
    rows = _rendered(mixed)
    assert served.table(rows["one"]) == (f"0: {HEAD} <think> </think>\n1 response: It Ġis Ġ 5 . <|im_end|>")
    assert served.table(rows["two"]) == (
        f"0: <|im_system|> system <|im_middle|> Be Ġbrief . <|im_end|> {HEAD} <think> </think>\n"
        f"1 response: It Ġis Ġ 5 . <|im_end|>\n"
        f"0: {HEAD} <think> </think>\n"
        f"1 response: S ti ll Ġ 5 . <|im_end|>"
    )
    assert served.table(rows["call"]) == f"0: {HEAD} <think> </think>\n1 tool: {SECTION}"


def test_a_render_server_gives_the_same_rows_as_one_with_weights(served: Served, mixed: RunConfig) -> None:
    """Byte for byte, and the same fingerprint."""
    rows = _rendered(mixed)
    values: dict[str, Any] = msgspec.to_builtins(mixed)
    values["server"]["base_urls"] = [served.render_url]
    (mixed.rendered_path / "manifest.json").unlink()
    assert _rendered(msgspec.convert(values, RunConfig)) == rows
    assert Control(served.render_url).fingerprint(MODEL) == served.facts.fingerprint


def test_the_audit_finds_replies_that_read_back_as_other_tokens(served: Served, mixed: RunConfig) -> None:
    """A reply held to single letters: its text reads back as fewer tokens."""
    letters = [served.id_of(letter) for letter in "aeinrst"]
    hot = msgspec.structs.replace(GREEDY, temperature=2.0, max_tokens=40)
    trace = served.trace(USER, sampling=hot, allowed_token_ids=letters)
    write_journal(mixed.traces_path, [trace])
    figures = audit(mixed, 10).figures
    assert (figures["traces"], figures["differ"], figures["tokens"]) == (1, 1, 40)
    assert figures["where"] == {"thinking": 1, "boundary": 0, "response": 0, "tool": 0}
    example = figures["examples"][0]
    index = example["token"]
    assert figures["tokens_after"] == 40 - index
    assert example["sampled_ids"] == list(trace.output_token_ids[max(0, index - 4) : index + 5])
    assert encode_ids(example["again_ids"]) != encode_ids(example["sampled_ids"])

"""The mock server: vLLM's shapes, replies that follow from the request, queueing, speeds, restarts."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from synthgen.client.api import ApiClient
from synthgen.client.control import Control
from synthgen.client.replies import ChatReply, CompletionReply
from synthgen.corpus.sections import VerifierConfig
from synthgen.errors import ConfigError, RequestFailed
from synthgen.mock.distributions import Fixed, Lognormal, Uniform, parse_distribution
from synthgen.mock.faults import HalfOpen, Restart, Rule
from synthgen.mock_server import MockConfig, MockServer, Preset, body_hash

# One client for all, since making one takes longer than most tests; it keeps no connection.
HTTP = httpx.Client(trust_env=False, timeout=10.0, limits=httpx.Limits(max_keepalive_connections=0))
SHORT: dict[str, Any] = {"thinking_tokens": Uniform(5, 30), "response_tokens": Uniform(5, 20)}


def body(text: str = "Why?", **changes: Any) -> dict[str, Any]:
    """A chat completion as the harness sends it."""
    asked = {
        "model": "mock",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 100,
        "return_token_ids": True,
        "chat_template_kwargs": {"thinking": True},
    }
    return asked | changes


def post(server: MockServer, asked: dict[str, Any], path: str = "/v1/chat/completions") -> httpx.Response:
    """Send it; a patient client without retries."""
    return HTTP.post(server.root_url + path, json=asked)


def choice_of(server: MockServer, asked: dict[str, Any]) -> dict[str, Any]:
    """The one choice of a reply."""
    choice: dict[str, Any] = post(server, asked).json()["choices"][0]
    return choice


def events_of(server: MockServer, asked: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a stream, which ends with [DONE]."""
    lines = post(server, asked | {"stream": True}).content.split(b"\n\n")
    assert lines[-2:] == [b"data: [DONE]", b""]
    return [msgspec.json.decode(line.removeprefix(b"data: ")) for line in lines[:-2]]


def client_of(server: MockServer, **changes: Any) -> ApiClient:
    """The client that the harness uses."""
    settings: dict[str, Any] = {
        "api_key": None,
        "concurrency": 64,
        "timeout_s": 10.0,
        "retry_attempts": 4,
        "retry_seconds": 20.0,
    }
    return ApiClient(server.base_url, **(settings | changes))


@pytest.fixture(scope="module")
def plain() -> Iterator[MockServer]:
    """A server without faults or delays."""
    with MockServer(MockConfig(seed=1, **SHORT)) as server:
        yield server


def test_the_client_reads_its_replies(plain: MockServer) -> None:
    """Ids of prompt and output, both texts, counts and finish arrive as from vLLM, on the first try."""

    async def work() -> tuple[tuple[ChatReply, int], tuple[CompletionReply, int]]:
        async with client_of(plain) as client:
            chat = await client.chat(body())
            prompt = list(chat[0].prompt_token_ids or ())
            return chat, await client.complete(
                {"model": "mock", "prompt": prompt, "max_tokens": 100, "return_token_ids": True}
            )

    (reply, attempts), (completion, _) = asyncio.run(work())
    choice = reply.choices[0]
    assert (attempts, choice.finish_reason) == (1, "stop")
    assert choice.token_ids is not None
    assert reply.usage.completion_tokens == len(choice.token_ids)
    assert reply.usage.prompt_tokens == len(reply.prompt_token_ids or ())
    assert choice.message.reasoning
    assert choice.message.content
    assert completion.choices[0].token_ids
    assert completion.usage.prompt_tokens == reply.usage.prompt_tokens


def test_the_same_request_gets_the_same_bytes(plain: MockServer) -> None:
    """Whatever the order of keys, on another server too; another seed or prompt says something else."""
    first = post(plain, body()).content
    assert post(plain, dict(reversed(body().items()))).content == first
    with MockServer(MockConfig(seed=1, **SHORT)) as twin, MockServer(MockConfig(seed=2, **SHORT)) as other:
        assert post(twin, body()).content == first
        assert choice_of(other, body()) != choice_of(plain, body())
    assert choice_of(plain, body("How?")) != choice_of(plain, body())


def test_text_is_the_ids_without_special_tokens(plain: MockServer) -> None:
    """Thinking, `</think>`, response and `<|im_end|>` of the ids are the two texts of the message."""
    choice = choice_of(plain, body())
    whole = post(plain, {"tokens": choice["token_ids"]}, "/detokenize").json()["prompt"]
    message = choice["message"]
    assert whole == f"{message['reasoning']}</think>{message['content']}<|im_end|>"
    assert Control(plain.base_url).tokenize("mock", prompt=whole) == choice["token_ids"]


@pytest.mark.parametrize("limit", [{"max_tokens": 4}, {"max_completion_tokens": 4}])
def test_a_limit_cuts_to_an_exact_prefix(plain: MockServer, limit: dict[str, Any]) -> None:
    """Cut inside the thinking: finish `length`, no content, and the ids that an uncut reply begins with."""
    full = choice_of(plain, body())
    cut = choice_of(plain, body(**limit))
    assert cut["finish_reason"] == "length"
    assert cut["token_ids"] == full["token_ids"][:4]
    assert cut["message"]["content"] is None
    assert full["message"]["reasoning"].startswith(cut["message"]["reasoning"])


@pytest.mark.parametrize("switch", [{"thinking": False}, {"enable_thinking": False}])
def test_thinking_can_be_off(plain: MockServer, switch: dict[str, bool]) -> None:
    """Then the prompt closes the thinking, and the reply has none."""
    reply = post(plain, body(chat_template_kwargs=switch)).json()
    prompt = post(plain, {"tokens": reply["prompt_token_ids"]}, "/detokenize").json()["prompt"]
    assert prompt == (
        "<|im_user|>user<|im_middle|>Why?<|im_end|><|im_assistant|>assistant<|im_middle|><think></think>"
    )
    assert reply["choices"][0]["message"]["reasoning"] is None
    assert reply["choices"][0]["message"]["content"]


def test_a_stream_says_the_same(plain: MockServer) -> None:
    """Role and prompt ids come first; ids and texts of the deltas add up to the reply in one piece."""
    reply = post(plain, body()).json()
    events = events_of(plain, body(stream_options={"include_usage": True}))
    choices = [event["choices"][0] for event in events[:-1]]
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert events[0]["prompt_token_ids"] == reply["prompt_token_ids"]
    whole = reply["choices"][0]
    assert [i for choice in choices for i in choice.get("token_ids", [])] == whole["token_ids"]
    for part in ("reasoning", "content"):
        joined = "".join(choice["delta"].get(part, "") for choice in choices)
        assert joined == whole["message"][part]
    assert [choice["finish_reason"] for choice in choices[-2:]] == [None, "stop"]
    assert (events[-1]["choices"], events[-1]["usage"]) == ([], reply["usage"])


def test_chunks_may_hold_several_tokens() -> None:
    """Larger chunks cut neither thinking and response nor the ids differently."""
    with MockServer(MockConfig(seed=1, tokens_per_chunk=7, **SHORT)) as server:
        choices = [event["choices"][0] for event in events_of(server, body())]
        ids = [choice.get("token_ids", []) for choice in choices]
        assert max(map(len, ids)) == 7
        assert [i for chunk in ids for i in chunk] == choice_of(server, body())["token_ids"]
        assert all(len(choice["delta"]) <= 1 for choice in choices[1:])


def test_ids_are_sent_only_when_asked_for(plain: MockServer) -> None:
    """Without `return_token_ids` neither a reply nor a stream has any."""
    asked = body(return_token_ids=False)
    reply = post(plain, asked).json()
    assert (reply["prompt_token_ids"], reply["choices"][0]["token_ids"]) == (None, None)
    for event in events_of(plain, asked):
        assert "prompt_token_ids" not in event
        assert "token_ids" not in event["choices"][0]


def test_it_streams_completions_too(plain: MockServer) -> None:
    """Text and ids of the events add up to the completion, prompt ids come with the first."""
    asked = {"model": "mock", "prompt": "Once <think>", "return_token_ids": True, "max_tokens": 9}
    whole = post(plain, asked, "/v1/completions").json()["choices"][0]
    raw = post(plain, asked | {"stream": True}, "/v1/completions").content.split(b"\n\n")[:-2]
    choices = [msgspec.json.decode(line.removeprefix(b"data: "))["choices"][0] for line in raw]
    assert "".join(choice["text"] for choice in choices) == whole["text"]
    assert [i for choice in choices for i in choice["token_ids"]] == whole["token_ids"]
    assert choices[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert choices[-1]["finish_reason"] == whole["finish_reason"] == "length"


def test_control_knows_it_as_a_server(plain: MockServer) -> None:
    """Health, fingerprint, and markers of one token each."""
    control = Control(plain.base_url)
    verifier = VerifierConfig(
        model="x",
        revision=None,
        served_name="mock",
        think_end="</think>",
        tool_section="<|tool_calls_section_begin|>",
        trust_remote_code=False,
    )
    assert control.is_healthy()
    fingerprint = control.fingerprint("mock")
    assert (fingerprint.max_model_len, fingerprint.engine) == (32768, "vllm 0.32.0+mock")
    markers = control.markers(verifier)
    assert markers.think_end in choice_of(plain, body())["token_ids"]
    assert markers.tool_section not in (None, markers.think_end)
    assert sorted(markers.special) == [
        "</think>",
        "<think>",
        "<|im_assistant|>",
        "<|im_end|>",
        "<|im_middle|>",
        "<|im_system|>",
        "<|im_user|>",
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
    ]
    assert markers.special["</think>"] == markers.think_end


def test_tokenize_renders_a_conversation_as_a_completion_does(plain: MockServer) -> None:
    """Tools and lists of text parts included; special tokens within a text are single ones."""
    messages = [{"role": "user", "content": [{"type": "text", "text": "naïve </think> 🙂\u2028"}]}]
    tools = [{"type": "function", "function": {"name": "f"}}]
    reply = post(plain, body(messages=messages, tools=tools)).json()
    told = post(plain, {"model": "mock", "messages": messages, "tools": tools}, "/tokenize").json()
    assert told["tokens"] == reply["prompt_token_ids"]
    assert told["count"] == len(told["tokens"])
    text = post(plain, {"tokens": told["tokens"]}, "/detokenize").json()["prompt"]
    assert '"name":"f"' in text
    assert "naïve </think> 🙂\u2028<|im_end|>" in text


@pytest.mark.parametrize(
    ("changes", "status", "said"),
    [
        ({"model": "other"}, 404, "`other` does not exist"),
        ({"max_tokens": 40000}, 400, "maximum context length is 32768 tokens"),
        ({"max_tokens": 0}, 400, "$.max_tokens"),
        ({"messages": "hi"}, 400, "$.messages"),
        ({"n": 2}, 400, "n is 2"),
    ],
)
def test_what_vllm_refuses_is_refused(
    plain: MockServer, changes: dict[str, Any], status: int, said: str
) -> None:
    """In the shape of vLLM's errors, with the reason."""
    response = post(plain, body(**changes))
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (status, status)
    assert said in error["message"]


def test_a_body_that_is_no_json_is_refused(plain: MockServer) -> None:
    """With 400, not a traceback."""
    response = HTTP.post(f"{plain.base_url}/chat/completions", content=b"{")
    assert (response.status_code, response.json()["error"]["type"]) == (400, "BadRequestError")


def test_nothing_is_lost_or_doubled_under_harsh_faults() -> None:
    """A hundred requests through the client: each gets its reply or a failure, and the books agree."""
    config = MockConfig(clock_speed=100.0, faults=Preset.harsh.rules, seed=4, **SHORT)
    bodies = [body(str(number)) for number in range(100)]

    async def all_of_them() -> list[ChatReply | BaseException]:
        async with client_of(server, concurrency=100, timeout_s=3.0, retry_attempts=2) as client:

            async def one(asked: dict[str, Any]) -> ChatReply:
                return (await client.chat(asked))[0]

            return await asyncio.gather(*map(one, bodies), return_exceptions=True)

    with MockServer(config) as server:
        replies = asyncio.run(all_of_them())
    lost = [reply for reply in replies if not isinstance(reply, ChatReply)]
    assert {type(error) for error in lost} == {RequestFailed}
    keys = [body_hash(asked) for asked in bodies]
    answered = {key for key, reply in zip(keys, replies, strict=True) if isinstance(reply, ChatReply)}
    assert 0 < len(lost) == 100 - len(answered) < 20
    assert server.counters.requests.keys() == set(keys)
    assert server.counters.served.keys() < answered
    assert max(server.counters.served.values()) == 1
    assert len(server.counters.faults) == 14


def test_a_port_that_is_taken_is_named(plain: MockServer) -> None:
    """With what to do about it."""
    with pytest.raises(ConfigError, match=rf"can't listen at 127.0.0.1:{plain.port}: .*choose another"):
        MockServer(MockConfig(port=plain.port)).start()


def test_settings_are_checked() -> None:
    """Where they are made."""
    with pytest.raises(ConfigError, match="max_num_seqs 0 must be above 0"):
        MockConfig(max_num_seqs=0)
    with pytest.raises(ConfigError, match="needs a window with an end"):
        Rule(Restart())
    with pytest.raises(ConfigError, match="probability 2"):
        Rule(HalfOpen(), 2.0)


def test_distributions_are_written_in_one_word() -> None:
    """A number, or a name with its numbers; anything else is refused with the ways to write it."""
    assert parse_distribution("0.5") == Fixed(0.5)
    assert parse_distribution("uniform:1,5") == Uniform(1, 5)
    assert parse_distribution("lognormal:2,0.7") == Lognormal(2, 0.7)
    for wrong in ("", "normal:1,2", "uniform:1", "uniform:5,1", "nan"):
        with pytest.raises(ConfigError):
            parse_distribution(wrong)


def test_serve_runs_until_ctrl_c() -> None:
    """It prints where it is in one line, answers there, and ends with its books."""
    script = "from synthgen.mock_server import *; serve(MockConfig(model='m'))"
    process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True)
    with process:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert line.startswith("m is at http://127.0.0.1:")
        url = line.split()[3].rstrip(",")
        assert HTTP.get(f"{url}/models").json()["data"][0]["id"] == "m"
        process.send_signal(signal.SIGINT)
        assert "0 requests, 0 served whole, at most 0 in flight; faults: none" in process.stderr.read()
    assert process.returncode == 0

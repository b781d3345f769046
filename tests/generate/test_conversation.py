"""Conversations turn by turn: each reply a trace, nothing sent twice, whatever is lost between them."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from synthgen.corpus.config import RunConfig
from synthgen.corpus.journal import read_journal, write_journal
from synthgen.corpus.manifest import read_manifest
from synthgen.corpus.records import Failure, FailureKind, Finish, Message, Trace, TruncatedIn
from synthgen.errors import ServerUnreachable
from synthgen.generate.conversation import Open
from synthgen.generate.preview import preview
from synthgen.generate.resume import held
from synthgen.generate.stage import Request, Shard, generate
from synthgen.mock_server import Fixed, MockConfig, MockServer
from tests.generate.test_resume import failure, trace
from tests.scripted_server import THINK_END, Handler, ScriptedServer, chat_reply


def messages(*texts: str) -> list[dict[str, Any]]:
    """A conversation that begins with a system message, user and assistant in turn."""
    roles = ("user", "assistant")
    said = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
    return [{"role": "system", "content": "be brief"}, *said]


def answering(
    server: ScriptedServer, *, unlike: dict[str, dict[str, Any]] | None = None, delay_s: float = 0.0
) -> Handler:
    """Answers `re: TEXT` to the last message, with its number of messages as prompt ids; some otherwise."""

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(delay_s)
        asked = body["messages"][-1]["content"]
        reply = chat_reply(prompt_token_ids=[len(body["messages"])])
        reply["choices"][0]["message"]["content"] = f"re: {asked}"
        changes = (unlike or {}).get(asked, {})
        reply["choices"][0] |= changes.get("choice", {})
        reply["choices"][0]["message"] |= changes.get("message", {})
        return web.json_response(reply)

    return answer


def asked(server: ScriptedServer) -> list[str]:
    """The last message of each request, in order."""
    return [body["messages"][-1]["content"] for body in server.requests]


def traces(config: RunConfig) -> dict[str, list[Trace]]:
    """What the journal holds, by the first user message, in order of turns."""
    found: dict[str, list[Trace]] = {}
    for one in sorted(read_journal(config.traces_path, Trace), key=lambda trace: trace.turn):
        found.setdefault(one.messages[1].content or "", []).append(one)
    return found


def of_three_turns(config: RunConfig, tmp_path: Path, rows: int, **changes: Any) -> RunConfig:
    """The run on `rows` conversations a, b, … of three turns each: a, a1, a2."""
    path = tmp_path / "conversations.jsonl"
    names = [chr(ord("a") + number) for number in range(rows + 1)]
    lines = [{"messages": messages(n, "x", f"{n}1", "y", f"{n}2", "z"), "domain": "d"} for n in names]
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    return msgspec.structs.replace(
        config,
        prompts=msgspec.structs.replace(config.prompts, sources=(str(path),), heldout=1),
        accept=msgspec.structs.replace(config.accept, prompts=1, single_prompts=1),
        generate=msgspec.structs.replace(config.generate, **changes),
    )


def plain(trace: Trace) -> list[dict[str, Any]]:
    """What was answered, as it was sent."""
    return [msgspec.to_builtins(message) for message in trace.messages]


@pytest.fixture
def two(server: ScriptedServer, scripted_config: RunConfig, tmp_path: Path) -> RunConfig:
    """Two conversations; which of the three names they have is the split's choice."""
    server.handler = answering(server)
    return of_three_turns(scripted_config, tmp_path, rows=2)


def names(config: RunConfig) -> list[str]:
    """The first user messages of the conversations that are no held-out prompt, from a run that was whole."""
    return sorted(traces(config))


def test_a_conversation_of_three_turns_is_three_traces(server: ScriptedServer, two: RunConfig) -> None:
    """Each turn is sent after the model's own answers, whose thinking is left out."""
    manifest, tally = generate(two)
    assert (manifest.complete, manifest.figures["traces"], manifest.figures["failures"]) == (True, 6, 0)
    assert (tally.wanted, tally.done, tally.answered, tally.traces) == (2, 2, 2, 6)
    name = names(two)[0]
    first, second, third = traces(two)[name]
    said = (name, f"re: {name}", f"{name}1", f"re: {name}1", f"{name}2")
    assert plain(first) == messages(*said[:1])
    assert plain(second) == messages(*said[:3])
    assert plain(third) == messages(*said)
    assert [(t.turn, t.turns_left) for t in (first, second, third)] == [(0, 2), (1, 1), (2, 0)]
    assert [t.id for t in (first, second, third)] == [
        f"{first.seed_id}-0",
        f"{first.seed_id}-0.1",
        f"{first.seed_id}-0.2",
    ]
    assert [t.prompt_token_ids for t in (first, second, third)] == [(2,), (4,), (6,)]
    assert third.output_token_ids == (11, THINK_END, 12, 13)
    assert [body["messages"] for body in server.requests if name in str(body["messages"][1])] == [
        messages(*said[:1]),
        messages(*said[:3]),
        messages(*said),
    ]
    server.requests.clear()
    assert generate(two)[0].complete
    assert server.requests == []


def test_no_more_requests_run_than_allowed_and_turns_follow_each_other(
    server: ScriptedServer, scripted_config: RunConfig, tmp_path: Path
) -> None:
    """With one slot a conversation is played to its end before the next begins."""
    server.handler = answering(server, delay_s=0.02)
    generate(of_three_turns(scripted_config, tmp_path, rows=3, concurrency=1))
    assert server.most_running == 1
    first = [text[0] for text in asked(server)]
    assert [first[i : i + 3] for i in (0, 3, 6)] == [[name] * 3 for name in first[::3]]


def test_each_sample_of_a_prompt_is_a_conversation_of_its_own(
    server: ScriptedServer, scripted_config: RunConfig, tmp_path: Path
) -> None:
    """Two samples of one prompt: six replies."""
    server.handler = answering(server)
    config = of_three_turns(scripted_config, tmp_path, rows=1, samples_per_prompt=2)
    _, tally = generate(config)
    (found,) = traces(config).values()
    assert sorted((t.sample_index, t.turn) for t in found) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert (tally.done, tally.wanted) == (2, 2)


CUT = {"choice": {"finish_reason": "length"}}
CALLED = {"choice": {"finish_reason": "tool_calls"}, "message": {"tool_calls": []}}
SILENT = {"message": {"content": " "}}


@pytest.mark.parametrize("unlike", [CUT, CALLED, SILENT], ids=["cut", "tool calls", "no text"])
def test_a_conversation_ends_with_a_reply_that_nobody_goes_on_from(
    server: ScriptedServer, two: RunConfig, unlike: dict[str, Any]
) -> None:
    """The second of three: two traces stand, the row has ended, and nothing more is sent for it."""
    server.handler = answering(server, unlike={f"{name}1": unlike for name in "abc"})
    manifest, tally = generate(two)
    assert [[t.turn for t in found] for found in traces(two).values()] == [[0, 1], [0, 1]]
    assert [t.turns_left for found in traces(two).values() for t in found] == [2, 1, 2, 1]
    assert (manifest.complete, manifest.figures["failures"], tally.done) == (True, 0, 2)
    server.requests.clear()
    generate(two)
    generate(two, Request(retry_failed=True))
    assert server.requests == []


def test_a_failure_in_a_later_turn_keeps_what_was_before_and_is_sent_again_alone(
    server: ScriptedServer, two: RunConfig
) -> None:
    """The second turn is refused, as when the context is too long; --retry-failed goes on from there."""
    good = server.handler

    async def refuse_second(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return (
            web.Response(status=400, text="too long")
            if len(server.requests) > 1
            else await good(request, body)
        )

    one = msgspec.structs.replace(two, generate=msgspec.structs.replace(two.generate, concurrency=1))
    server.handler = refuse_second
    manifest, tally = generate(one, Request(limit=1))
    (found,) = read_journal(one.failures_path, Failure)
    assert (found.turn, found.kind, found.message) == (1, FailureKind.REJECTED, "400: too long")
    assert (manifest.figures["traces"], manifest.figures["failures"]) == (1, 1)
    assert (tally.done, tally.wanted, tally.answered) == (1, 1, 0)
    name = asked(server)[0]
    server.handler = good
    server.requests.clear()
    assert generate(one)[0].complete
    assert not any(text.startswith(name) for text in asked(server))
    server.requests.clear()
    manifest, tally = generate(one, Request(retry_failed=True))
    assert asked(server) == [f"{name}1", f"{name}2"]
    assert server.requests[0]["messages"] == messages(name, f"re: {name}", f"{name}1")
    assert (manifest.complete, manifest.figures["traces"], manifest.figures["failures"]) == (True, 6, 0)
    assert (tally.done, tally.wanted) == (1, 1)


def test_a_conversation_goes_on_after_the_first_trace(server: ScriptedServer, two: RunConfig) -> None:
    """As kill -9 leaves a journal of one line: only what is missing is sent, with the same history."""
    whole = generate(two)[0].figures["traces"]
    lines = two.traces_path.read_bytes().splitlines(keepends=True)
    two.traces_path.write_bytes(lines[0] + lines[1][:100])
    before = msgspec.json.decode(lines[0], type=Trace)
    name = before.messages[1].content
    server.requests.clear()
    manifest, _ = generate(two)
    assert (manifest.complete, manifest.figures["traces"]) == (True, whole)
    assert len(server.requests) == 5
    assert [body["messages"] for body in server.requests if body["messages"][1]["content"] == name] == [
        messages(f"{name}", f"re: {name}", f"{name}1"),
        messages(f"{name}", f"re: {name}", f"{name}1", f"re: {name}1", f"{name}2"),
    ]


def test_a_server_that_goes_away_mid_conversation_is_gone_on_with(
    server: ScriptedServer, two: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It breaks off at the third request and comes back: each turn is answered once, on its first try."""
    monkeypatch.setattr("synthgen.generate.pool.PROBE_S", 0.1)
    good = server.handler

    async def restart(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if len(server.requests) == 3:
            server.healthy = False
            threading.Timer(0.5, setattr, (server, "healthy", True)).start()
        if not server.healthy:
            assert request.transport is not None
            request.transport.close()
        return await good(request, body)

    server.handler = restart
    manifest, tally = generate(two)
    assert (manifest.figures["traces"], manifest.figures["failures"], tally.retried) == (6, 0, 0)
    assert [[t.turn for t in found] for found in traces(two).values()] == [[0, 1, 2], [0, 1, 2]]
    assert {t.attempts for found in traces(two).values() for t in found} == {1}


def test_a_server_that_stays_away_leaves_a_conversation_to_go_on_later(
    server: ScriptedServer, two: RunConfig
) -> None:
    """The traces before stay; the next call sends the rest."""
    good = server.handler

    async def die(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if len(server.requests) > 3:
            server.healthy = False
            assert request.transport is not None
            request.transport.close()
        return await good(request, body)

    server.handler = die
    impatient = msgspec.structs.replace(two, generate=msgspec.structs.replace(two.generate, down_wait_s=1.0))
    with pytest.raises(ServerUnreachable):
        generate(impatient)
    kept = [(t.key, t.turn) for found in traces(two).values() for t in found]
    made = read_manifest(two.corpus_path)
    assert made is not None
    assert (made.complete, made.figures["traces"], made.figures["failures"]) == (False, len(kept), 0)
    server.healthy, server.handler = True, good
    server.requests.clear()
    generate(two)
    assert len(server.requests) == 6 - len(kept) >= 3


def test_a_signal_keeps_the_turn_in_flight_and_sends_no_next_one(
    server: ScriptedServer, two: RunConfig
) -> None:
    """Both conversations are in their second turn then; the third comes with the next call."""
    good, slow = server.handler, answering(server, delay_s=1.0)

    async def signalled(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if len(server.requests) == 4:
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        return await (slow if len(body["messages"]) == 4 else good)(request, body)

    server.handler = signalled
    with pytest.raises(KeyboardInterrupt):
        generate(two)
    assert [[t.turn for t in found] for found in traces(two).values()] == [[0, 1], [0, 1]]
    server.handler = good
    server.requests.clear()
    assert generate(two)[0].complete
    assert sorted(text[1:] for text in asked(server)) == ["2", "2"]


def test_another_division_into_shards_goes_on_with_open_conversations(
    server: ScriptedServer, scripted_config: RunConfig, tmp_path: Path
) -> None:
    """Six begun as a whole, ended by three parts, whose journals are read in any order."""
    server.handler = answering(server)
    config = of_three_turns(scripted_config, tmp_path, rows=6)
    generate(config)
    lines = config.traces_path.read_bytes().splitlines(keepends=True)
    kept = [line for line in lines if b'"turn":1' not in line and b'"turn":2' not in line]
    config.traces_path.write_bytes(b"".join(kept))
    server.requests.clear()
    sent = [generate(config, Request(shard=Shard(number, 3)))[1].answered for number in (1, 2, 3)]
    assert (sum(sent), len(server.requests)) == (6, 12)
    assert held(config).open == {}
    assert [[t.turn for t in found] for found in traces(config).values()] == [[0, 1, 2]] * 6


USER = Message(role="user", content="q")


def turn_of(seed: str, turn: int, turns_left: int, **changes: Any) -> Trace:
    """A turn of a conversation whose context is as long as it should be."""
    context = tuple(Message(role=("user", "assistant")[i % 2], content="q") for i in range(2 * turn + 1))
    return trace(seed, (5, 9, 6), turn=turn, turns_left=turns_left, messages=context, think_end=1, **changes)


HELD = [
    turn_of("open", 0, 3),
    turn_of("open", 1, 2, response="last"),
    turn_of("whole", 0, 1),
    turn_of("whole", 1, 0),
    turn_of("cut", 0, 2),
    turn_of("cut", 1, 1, finish=Finish.LENGTH, truncated_in=TruncatedIn.RESPONSE),
    turn_of("silent", 0, 1, response=None),
    turn_of("tools", 0, 1, tool_start=2),
    turn_of("single", 0, 0),
]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.permutations(HELD), st.integers(0, len(HELD)))
def test_traces_may_be_read_in_any_order(scripted_config: RunConfig, order: list[Trace], cut: int) -> None:
    """Split over the journals of two shards, too."""
    path = scripted_config.traces_path
    write_journal(path.with_stem(f"{path.stem}-1of2"), order[:cut])
    write_journal(path.with_stem(f"{path.stem}-2of2"), order[cut:])
    found = held(scripted_config)
    assert found.done == {(seed, 0) for seed in ("whole", "cut", "silent", "tools", "single")}
    last = Message(role="assistant", content="last")
    context = (USER, Message(role="assistant", content="q"), USER, last)
    assert found.open == {("open", 0): Open(turn=2, messages=context)}
    assert (found.counts.traces, found.counts.answered, found.failed) == (9, 5, set())


@pytest.mark.parametrize(("turn", "failed"), [(0, False), (1, False), (2, True)])
def test_a_failure_that_was_made_good_is_none_while_the_conversation_is_open(
    scripted_config: RunConfig, turn: int, failed: bool
) -> None:
    """Two replies are there: a failure of the first or second is an old one."""
    write_journal(scripted_config.traces_path, HELD[:2])
    old = msgspec.structs.replace(failure("open"), turn=turn)
    write_journal(scripted_config.failures_path, [old])
    assert held(scripted_config).failed == ({("open", 0)} if failed else set())


@pytest.mark.timeout(300)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(part=st.floats(0, 1), seed=st.integers(0, 99))
def test_whatever_prefix_survives_each_turn_is_there_once_after_a_rerun(
    server: ScriptedServer,
    scripted_config: RunConfig,
    tmp_path_factory: pytest.TempPathFactory,
    part: float,
    seed: int,
) -> None:
    """Cut at any byte; what is left is sent no second time, and each history is the one that was answered."""
    cut = {f"{name}{random.Random(seed).randint(1, 2)}": CUT for name in "bd"}
    server.handler = answering(server, unlike=cut)
    directory = tmp_path_factory.mktemp("run")
    config = of_three_turns(scripted_config, directory, rows=5)
    config = msgspec.structs.replace(config, run_dir=str(directory / "run"))
    generate(config)
    whole = Counter((t.key, t.turn) for found in traces(config).values() for t in found)
    journal = config.traces_path.read_bytes()
    config.traces_path.write_bytes(journal[: round(len(journal) * part)])
    kept = sum(len(found) for found in traces(config).values())
    server.requests.clear()
    manifest, tally = generate(config)
    found = [t for one in traces(config).values() for t in one]
    assert Counter((t.key, t.turn) for t in found) == whole
    assert set(whole.values()) == {1}
    assert len(server.requests) == len(found) - kept
    assert all(
        answer.content == f"re: {question.content}"
        for t in found
        for question, answer in zip(t.messages[1::2], t.messages[2::2], strict=False)
    )
    assert manifest.complete
    assert tally.done == tally.wanted
    shutil.rmtree(directory)


def test_a_preview_shows_the_first_turn_and_says_what_follows(
    scripted_config: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing else of the conversation is sent."""
    mock = MockConfig(thinking_tokens=Fixed(6), response_tokens=Fixed(3))
    with MockServer(mock) as server:
        config = of_three_turns(scripted_config, tmp_path, rows=1)
        preview(
            msgspec.structs.replace(
                config,
                verifier=msgspec.structs.replace(config.verifier, served_name="mock"),
                server=msgspec.structs.replace(config.server, base_urls=(server.base_url,)),
            ),
            1,
        )
        assert server.counters.served.total() == 1
    shown = capsys.readouterr()
    assert "11 tokens, stop; 2 more turns are not played here" in shown.err + shown.out

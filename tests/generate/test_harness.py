"""The harness through its stage: bounded, durable, resumable. Against a real HTTP server."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from synthgen.corpus.config import RunConfig
from synthgen.corpus.journal import read_journal
from synthgen.corpus.lock import claimed
from synthgen.corpus.manifest import read_manifest
from synthgen.corpus.records import Failure, FailureKind, SeedPrompt, Trace
from synthgen.corpus.settings import save_config
from synthgen.errors import ArtifactError, ConfigError, ServerMismatch, ServerUnreachable
from synthgen.generate.stage import WHOLE, Request, Shard, generate
from tests.scripted_server import ScriptedServer, chat_reply


def traces(config: RunConfig) -> list[Trace]:
    """What the journal holds."""
    return list(read_journal(config.traces_path, Trace))


def asked(server: ScriptedServer) -> list[str]:
    """The prompts the server was asked, in order."""
    return [body["messages"][0]["content"] for body in server.requests]


def against_both(config: RunConfig, one: ScriptedServer, other: ScriptedServer) -> RunConfig:
    """The same run on two servers."""
    urls = (one.base_url, other.base_url)
    return msgspec.structs.replace(config, server=msgspec.structs.replace(config.server, base_urls=urls))


def test_every_prompt_gets_one_trace(server: ScriptedServer, scripted_config: RunConfig) -> None:
    """Twelve prompts, twelve traces, two held out and never sent."""
    manifest, _ = generate(scripted_config)
    heldout = list(read_journal(scripted_config.heldout_path, SeedPrompt))
    assert manifest.figures["traces"] == len(traces(scripted_config)) == len(server.requests) == 12
    assert (manifest.figures["thinking_tokens"], manifest.figures["response_tokens"]) == (24, 24)
    assert manifest.complete
    assert not {p.messages[0].content for p in heldout} & set(asked(server))


def test_a_request_asks_for_ids_and_says_how_to_sample(
    server: ScriptedServer, scripted_config: RunConfig
) -> None:
    """The body is what vLLM expects, sampling as configured."""
    generate(scripted_config)
    body = server.requests[0]
    assert body["return_token_ids"] is True
    assert body["chat_template_kwargs"] == {"thinking": True}
    assert (body["temperature"], body["top_p"], body["max_tokens"]) == (0.7, 1.0, 384)
    assert body["messages"] == [{"role": "user", "content": body["messages"][0]["content"]}]


def test_no_more_requests_run_than_allowed(server: ScriptedServer, scripted_config: RunConfig) -> None:
    """The server counts at most four at once, and four are reached."""

    async def slow(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(0.05)
        return web.json_response(chat_reply())

    server.handler = slow
    generate(scripted_config)
    assert server.most_running == 4


def test_a_complete_corpus_sends_nothing(server: ScriptedServer, scripted_config: RunConfig) -> None:
    """Running again is free."""
    generate(scripted_config)
    generate(scripted_config)
    assert len(server.requests) == 12


def test_a_failed_row_is_a_record_and_is_sent_again_on_request(
    server: ScriptedServer, scripted_config: RunConfig
) -> None:
    """One refused prompt doesn't stop the others; what it was stands in failures.jsonl."""

    async def refuse_one(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if body["messages"][0]["content"] == asked(server)[0]:
            return web.Response(status=400, text="too long")
        return web.json_response(chat_reply())

    server.handler = refuse_one
    manifest, _ = generate(scripted_config)
    (failure,) = read_journal(scripted_config.failures_path, Failure)
    assert (manifest.figures["traces"], manifest.figures["failures"]) == (11, 1)
    assert (failure.kind, failure.message, failure.attempts) == (FailureKind.REJECTED, "400: too long", 1)
    refused = asked(server)[0]
    server.requests.clear()
    server.handler = server._answer
    assert generate(scripted_config)[0].complete
    assert server.requests == []
    manifest, _ = generate(scripted_config, Request(retry_failed=True))
    assert (manifest.figures["traces"], manifest.figures["failures"]) == (12, 0)
    assert asked(server) == [refused]


def test_a_server_that_goes_away_stops_the_run_and_loses_nothing(
    server: ScriptedServer, scripted_config: RunConfig
) -> None:
    """Replies before are kept; going on later completes the same set, each prompt once."""

    async def die_after_five(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if len(server.requests) > 5:
            server.healthy = False
            assert request.transport is not None
            request.transport.close()
        return web.json_response(chat_reply())

    server.handler = die_after_five
    impatient = msgspec.structs.replace(
        scripted_config, generate=msgspec.structs.replace(scripted_config.generate, down_wait_s=1.0)
    )
    with pytest.raises(
        ServerUnreachable, match=r"no server has answered for 1 s .* run the same command again"
    ):
        generate(impatient)
    kept = traces(scripted_config)
    found = read_manifest(scripted_config.corpus_path)
    assert 1 <= len(kept) <= 5
    assert found is not None
    assert not found.complete
    server.healthy, server.handler = True, server._answer
    generate(scripted_config)
    keys = [trace.key for trace in traces(scripted_config)]
    assert len(keys) == len(set(keys)) == 12


def test_a_server_that_comes_back_is_gone_on_with_and_no_try_is_spent(
    server: ScriptedServer, scripted_config: RunConfig
) -> None:
    """A restart in the middle: everything waits, then all twelve replies come, each on its first try."""

    async def restart(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if not server.healthy or len(server.requests) == 6:
            if server.healthy:
                server.healthy = False
                threading.Timer(1.0, setattr, (server, "healthy", True)).start()
            assert request.transport is not None
            request.transport.close()
        return web.json_response(chat_reply())

    server.handler = restart
    manifest, tally = generate(scripted_config)
    assert (manifest.figures["traces"], manifest.figures["failures"]) == (12, 0)
    assert [trace.attempts for trace in traces(scripted_config)] == [1] * 12
    assert tally.retried == 0
    assert tally.seconds_down > 0.5


def test_two_servers_share_the_requests_and_one_may_die(
    server: ScriptedServer, scripted_config: RunConfig
) -> None:
    """Both are used; what the dying one held goes to the other, and nothing fails."""
    other = ScriptedServer()
    other.start()
    try:
        both = against_both(scripted_config, server, other)

        async def slow(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
            await asyncio.sleep(0.1)
            return web.json_response(chat_reply())

        async def die(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
            other.healthy = False
            assert request.transport is not None
            request.transport.close()
            return web.Response()

        server.handler, other.handler = slow, die
        manifest, tally = generate(both)
    finally:
        other.stop()
    assert (manifest.figures["traces"], manifest.figures["failures"]) == (12, 0)
    assert len(other.requests) >= 1
    assert tally.retried == 0


def test_servers_that_differ_are_refused_with_the_field(
    server: ScriptedServer, scripted_config: RunConfig
) -> None:
    """The other one's tokenizer gives other ids."""
    other = ScriptedServer()
    other.tokenizer_suffix = [7]
    other.start()
    try:
        both = against_both(scripted_config, server, other)
        with pytest.raises(ServerMismatch, match=r"is another server than the run's: its tokenizer is"):
            generate(both)
    finally:
        other.stop()
    assert server.requests == other.requests == []


def test_a_server_that_comes_back_as_another_ends_the_run_after_what_is_in_flight(
    server: ScriptedServer, scripted_config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other server's long replies are kept; then the field that differs is named."""
    monkeypatch.setattr("synthgen.generate.pool.PROBE_S", 0.1)
    other = ScriptedServer()
    other.start()
    try:
        both = against_both(scripted_config, server, other)

        async def slow(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
            await asyncio.sleep(2)
            return web.json_response(chat_reply())

        async def die(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
            if other.healthy and not other.tokenizer_suffix:
                other.healthy, other.tokenizer_suffix = False, [7]
                threading.Timer(0.3, setattr, (other, "healthy", True)).start()
            assert request.transport is not None
            request.transport.close()
            return web.Response()

        server.handler, other.handler = slow, die
        with pytest.raises(ServerMismatch, match="its tokenizer is"):
            generate(both)
    finally:
        other.stop()
    assert len(traces(scripted_config)) == 4


def test_another_division_into_shards_waits_for_the_first(
    server: ScriptedServer, scripted_config: RunConfig
) -> None:
    """While a part of two is written, neither all nor a part of four may be: rows would be paid for twice."""
    with claimed(scripted_config.corpus_path, parts=2):
        for shard, said in ((WHOLE, "--shard i/2"), (Shard(1, 4), "--shard i/2")):
            with pytest.raises(
                ArtifactError, match=f"another process is writing part of the corpus, as {said}"
            ):
                generate(scripted_config, Request(shard=shard))
        generate(scripted_config, Request(shard=Shard(1, 2)))
    with (
        claimed(scripted_config.corpus_path, parts=1),
        pytest.raises(ArtifactError, match="another process is writing the whole corpus"),
    ):
        generate(scripted_config, Request(shard=Shard(2, 2)))
    generate(scripted_config, Request(shard=Shard(1, 4)))


def test_a_reply_that_is_no_trace_is_kept_with_its_failure(
    server: ScriptedServer, scripted_config: RunConfig
) -> None:
    """It was paid for, and may be worth a look."""

    async def wrong_count(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(chat_reply(usage={"prompt_tokens": 3, "completion_tokens": 9}))

    server.handler = wrong_count
    generate(scripted_config)
    for failure in read_journal(scripted_config.failures_path, Failure):
        assert failure.message == "4 token ids, but usage says 9"
        assert '"content":"because"' in (failure.reply or "")


def test_more_requests_than_files_can_be_open_are_refused(
    server: ScriptedServer, scripted_config: RunConfig, tmp_path: Path
) -> None:
    """Before anything is sent, with both numbers."""
    settings = msgspec.structs.replace(scripted_config.generate, concurrency=12)
    save_config(msgspec.structs.replace(scripted_config, generate=settings), tmp_path / "run.yaml")
    ended = subprocess.run(
        [sys.executable, "-m", "synthgen", "generate", str(tmp_path / "run.yaml")],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (70, 70)),
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 2
    assert "12 requests in flight need 76 open files, this process may have 70" in ended.stderr
    assert server.requests == []


def test_shards_split_the_prompts_and_make_one_corpus(
    server: ScriptedServer, scripted_config: RunConfig
) -> None:
    """Three parts, each prompt in one of them; the corpus is complete after the last."""
    complete = []
    for number in (1, 2, 3):
        manifest, _ = generate(scripted_config, Request(shard=Shard(number, 3)))
        complete.append(manifest.complete)
    assert len(asked(server)) == len(set(asked(server))) == 12
    assert complete == [False, False, True]
    assert len(traces(scripted_config)) == 12


@pytest.mark.parametrize("text", ["0/3", "4/3", "2", "a/b", "1/"])
def test_a_wrong_shard_is_refused(text: str) -> None:
    """i/n with 1 <= i <= n."""
    with pytest.raises(ConfigError, match="write it as i/n"):
        Shard.parse(text)


def test_a_limited_call_leaves_the_corpus_incomplete(
    server: ScriptedServer, scripted_config: RunConfig
) -> None:
    """Five rows now, the other seven with the next call."""
    manifest, _ = generate(scripted_config, Request(limit=5))
    assert (manifest.complete, len(server.requests)) == (False, 5)
    manifest, _ = generate(scripted_config)
    assert (manifest.complete, len(server.requests)) == (True, 12)


def test_a_prompt_may_override_the_sampling(
    server: ScriptedServer, scripted_config: RunConfig, tmp_path: Path
) -> None:
    """Its own temperature and thinking are sent and recorded; the rest is the run's."""
    path = tmp_path / "own.jsonl"
    path.write_text(
        "".join(
            f'{{"prompt": "q{i}", "sampling": {{"temperature": 0.1, "thinking": false}}}}\n' for i in range(3)
        )
    )
    own = msgspec.structs.replace(
        scripted_config, prompts=msgspec.structs.replace(scripted_config.prompts, sources=(str(path),))
    )
    generate(own)
    (trace,) = traces(own)
    assert (server.requests[0]["temperature"], server.requests[0]["top_p"]) == (0.1, 1.0)
    assert server.requests[0]["chat_template_kwargs"] == {"thinking": False}
    assert (trace.sampling.temperature, trace.sampling.thinking, trace.think_end) == (0.1, False, None)


def signalled_at_six(server: ScriptedServer, *signals: tuple[float, signal.Signals]) -> None:
    """From the sixth request on replies take two seconds; the signals come meanwhile, after their delays."""

    async def slow(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if len(server.requests) == 6:
            for delay_s, number in signals:
                threading.Timer(delay_s, os.kill, (os.getpid(), number)).start()
        if len(server.requests) >= 6:
            await asyncio.sleep(2)
        return web.json_response(chat_reply())

    server.handler = slow


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "signals",
    [
        [(0.1, signal.SIGINT)],
        [(0.1, signal.SIGTERM)],
        [(0.1, signal.SIGTERM), (0.4, signal.SIGTERM)],
    ],
    ids=["ctrl-c", "sigterm", "sigterm to all, and passed on"],
)
def test_one_signal_waits_for_what_is_in_flight_and_sends_nothing_more(
    server: ScriptedServer, scripted_config: RunConfig, signals: list[tuple[float, signal.Signals]]
) -> None:
    """Five replies were there and four on their way: nine traces; the other three come with the next call."""
    signalled_at_six(server, *signals)
    with pytest.raises(KeyboardInterrupt):
        generate(scripted_config)
    assert len(traces(scripted_config)) == len(server.requests) == 9
    found = read_manifest(scripted_config.corpus_path)
    assert found is not None
    assert (found.figures["traces"], found.complete) == (9, False)
    assert found.seconds > 2
    server.handler = server._answer
    manifest, _ = generate(scripted_config)
    assert manifest.figures["traces"] == len(server.requests) == 12
    assert manifest.seconds > found.seconds


@pytest.mark.timeout(30)
def test_a_second_signal_stops_at_once(server: ScriptedServer, scripted_config: RunConfig) -> None:
    """What was in flight is dropped and sent again later; what was answered is kept."""
    signalled_at_six(server, (0.1, signal.SIGINT), (1.3, signal.SIGTERM))
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        generate(scripted_config)
    assert time.monotonic() - began < 2
    assert len(traces(scripted_config)) == 5
    server.handler = server._answer
    assert generate(scripted_config)[0].figures["traces"] == 12


@pytest.mark.timeout(30)
def test_a_signal_while_no_server_is_there_ends_the_wait(
    server: ScriptedServer, scripted_config: RunConfig
) -> None:
    """Nothing is in flight then, so there is nothing to wait for."""

    async def die(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if server.healthy:
            server.healthy = False
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    server.handler = die
    began, before = time.monotonic(), signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        generate(scripted_config)
    assert time.monotonic() - began < 5
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_full_disk_stops_the_run_and_all_before_is_kept(
    server: ScriptedServer, scripted_config: RunConfig, tmp_path: Path
) -> None:
    """The write that fails ends within a record: it is cut off, and only what it held is asked for again."""
    room_bytes = 4000
    save_config(scripted_config, tmp_path / "run.yaml")
    ended = subprocess.run(
        [sys.executable, "-m", "synthgen", "generate", str(tmp_path / "run.yaml")],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room_bytes, room_bytes)),
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 2
    assert f"{scripted_config.traces_path}: File too large. All records before are safe" in ended.stderr
    assert scripted_config.traces_path.stat().st_size == room_bytes
    kept = {trace.messages[0].content for trace in traces(scripted_config)}
    assert 1 <= len(kept) < 12
    server.requests.clear()
    generate(scripted_config)
    assert len(traces(scripted_config)) == 12
    assert not kept & set(asked(server))


def test_another_server_is_refused_for_the_same_corpus(
    server: ScriptedServer, scripted_config: RunConfig
) -> None:
    """A corpus has one model, template and tokenizer; the tokenizer changed here."""
    config = msgspec.structs.replace(
        scripted_config, prompts=msgspec.structs.replace(scripted_config.prompts, limit=4)
    )
    generate(config)

    server.tokenizer_suffix = [7]
    with pytest.raises(ArtifactError, match=r"by a server whose tokenizer is '\w+', this one's is '\w+'"):
        generate(scripted_config)
    assert len(traces(scripted_config)) == 4


def test_prompts_that_were_held_out_stay_held_out(
    server: ScriptedServer, scripted_config: RunConfig, tmp_path: Path
) -> None:
    """A file that is added later takes no prompt out of the held-out set, so none is trained on."""
    generate(scripted_config)
    before = list(read_journal(scripted_config.heldout_path, SeedPrompt))
    more = tmp_path / "more.jsonl"
    more.write_text("".join(f'{{"prompt": "new {i}"}}\n' for i in range(30)))
    files = (*scripted_config.prompts.sources, str(more))
    larger = msgspec.structs.replace(
        scripted_config, prompts=msgspec.structs.replace(scripted_config.prompts, sources=files)
    )
    generate(larger)
    assert list(read_journal(larger.heldout_path, SeedPrompt)) == before
    assert len(traces(larger)) == 42
    assert not {p.id for p in before} & {trace.seed_id for trace in traces(larger)}
    reseeded = msgspec.structs.replace(larger, seed=8)
    with pytest.raises(ArtifactError, match=r"settings\.seed = 7, this run has 8"):
        generate(reseeded)


def test_a_prompt_that_a_server_goes_away_with_each_time_becomes_a_failure(
    server: ScriptedServer, scripted_config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five restarts with the same prompt are the prompt's doing; the others come through."""
    monkeypatch.setattr("synthgen.generate.pool.PROBE_S", 0.1)
    deadly: list[str] = []

    async def die_on_one(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        content = body["messages"][0]["content"]
        deadly.append(content) if not deadly else None
        if content == deadly[0]:
            server.healthy = False
            threading.Timer(0.2, setattr, (server, "healthy", True)).start()
            assert request.transport is not None
            request.transport.close()
        return web.json_response(chat_reply())

    server.handler = die_on_one
    manifest, _ = generate(scripted_config)
    assert (manifest.figures["traces"], manifest.figures["failures"]) == (11, 1)
    (failure,) = read_journal(scripted_config.failures_path, Failure)
    assert (failure.kind, failure.attempts) == (FailureKind.TRANSPORT, 5)


def test_other_sampling_is_refused_for_the_same_corpus(scripted_config: RunConfig) -> None:
    """The field and both values are named."""
    generate(scripted_config)
    hotter = msgspec.structs.replace(
        scripted_config, generate=msgspec.structs.replace(scripted_config.generate, temperature=1.0)
    )
    with pytest.raises(ArtifactError, match=r"settings\.sampling\.temperature = 0\.7, this run has 1\.0"):
        generate(hotter)


def test_a_dead_server_or_another_model_is_refused_before_anything_is_sent(
    server: ScriptedServer, scripted_config: RunConfig
) -> None:
    """The two first mistakes of a new user."""
    other = msgspec.structs.replace(
        scripted_config, verifier=msgspec.structs.replace(scripted_config.verifier, served_name="kimi")
    )
    with pytest.raises(ServerMismatch, match="serves 'scripted', not 'kimi'"):
        generate(other)
    dead = msgspec.structs.replace(
        scripted_config,
        server=msgspec.structs.replace(scripted_config.server, base_urls=("http://127.0.0.1:9/v1",)),
    )
    with pytest.raises(ServerUnreachable, match="nothing answers at"):
        generate(dead)
    assert server.requests == []


def test_several_samples_a_prompt_are_numbered(server: ScriptedServer, scripted_config: RunConfig) -> None:
    """Each prompt is asked twice, as samples 0 and 1."""
    twice = msgspec.structs.replace(
        scripted_config, generate=msgspec.structs.replace(scripted_config.generate, samples_per_prompt=2)
    )
    generate(twice)
    assert sorted(trace.sample_index for trace in traces(twice)) == [0] * 12 + [1] * 12

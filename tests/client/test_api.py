"""The client: what is retried, what fails at once, what is a result. Against a real HTTP server."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

import pytest
from aiohttp import web

from synthgen.client.api import ApiClient, kept_alive
from synthgen.client.replies import ChatReply
from synthgen.corpus.records import FailureKind
from synthgen.errors import RequestFailed, ServerUnreachable
from tests.scripted_server import ScriptedServer, chat_reply


def chat(server: ScriptedServer, *, attempts: int = 3, timeout_s: float = 5.0) -> tuple[ChatReply, int]:
    """Send one chat completion."""

    async def work() -> tuple[ChatReply, int]:
        client = ApiClient(
            server.base_url,
            api_key="a-secret",
            concurrency=2,
            timeout_s=timeout_s,
            retry_attempts=attempts,
            retry_seconds=20.0,
        )
        async with client:
            return await client.chat({"model": "m", "messages": []})

    return asyncio.run(work())


def replies_in_turn(server: ScriptedServer, *answers: Any) -> None:
    """Let the server give these answers, one a request; the last one for ever."""
    waiting = list(answers)

    async def handler(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        answer = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        response: web.StreamResponse = await answer(request) if callable(answer) else answer
        return response

    server.handler = handler


async def cut_off(request: web.Request) -> web.StreamResponse:
    """Promise a thousand bytes, send ten, hang up."""
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b"0123456789")
    assert request.transport is not None
    request.transport.close()
    return response


async def slow(request: web.Request) -> web.StreamResponse:
    """Answer later than anybody waits."""
    await asyncio.sleep(3)
    return web.json_response(chat_reply())


def test_a_reply_is_decoded_with_its_ids(server: ScriptedServer) -> None:
    """Prompt ids, output ids, both texts and the finish reason arrive typed, on the first try."""
    reply, attempts = chat(server)
    assert attempts == 1
    assert reply.prompt_token_ids == (1, 2, 3)
    assert reply.choices[0].token_ids == (11, 900, 12, 13)
    assert (reply.choices[0].message.reasoning, reply.choices[0].message.content) == ("why", "because")
    assert server.headers[0]["Authorization"] == "Bearer a-secret"


def test_a_500_is_tried_again(server: ScriptedServer) -> None:
    """A passing fault costs a try, not the row."""

    async def broken(request: web.Request) -> web.StreamResponse:
        return web.Response(status=500, text="oops")

    async def fine(request: web.Request) -> web.StreamResponse:
        return web.json_response(chat_reply())

    replies_in_turn(server, broken, fine)
    assert chat(server)[1] == 2
    assert len(server.requests) == 2


def test_retry_after_is_honoured(server: ScriptedServer) -> None:
    """The second request comes no sooner than the server asked for."""
    times: list[float] = []

    async def busy(request: web.Request) -> web.StreamResponse:
        times.append(time.monotonic())
        return web.Response(status=429, headers={"Retry-After": "1"})

    async def fine(request: web.Request) -> web.StreamResponse:
        times.append(time.monotonic())
        return web.json_response(chat_reply())

    replies_in_turn(server, busy, fine)
    chat(server)
    assert 1.0 <= times[1] - times[0] < 3.0


@pytest.mark.parametrize(
    ("answer", "kind"), [(cut_off, FailureKind.TRANSPORT), (slow, FailureKind.TRANSPORT)], ids=["cut", "slow"]
)
def test_a_broken_or_slow_connection_fails_after_its_tries(
    server: ScriptedServer, answer: Any, kind: FailureKind
) -> None:
    """A cut body is never a result; time limits hold."""
    replies_in_turn(server, answer)
    with pytest.raises(RequestFailed) as caught:
        chat(server, attempts=2, timeout_s=0.5)
    assert caught.value.kind == kind
    assert caught.value.attempts == 2
    assert len(server.requests) == 2


def test_overload_on_every_try_is_told_from_refusal(server: ScriptedServer) -> None:
    """503 on all tries is `overloaded`, with the server's words."""

    async def full(request: web.Request) -> web.StreamResponse:
        return web.Response(status=503, text="queue is full")

    replies_in_turn(server, full)
    with pytest.raises(RequestFailed, match="503: queue is full") as caught:
        chat(server, attempts=2)
    assert (caught.value.kind, caught.value.status) == (FailureKind.OVERLOADED, 503)


def test_a_400_fails_at_once(server: ScriptedServer) -> None:
    """A request the server refuses isn't sent again."""

    async def refuse(request: web.Request) -> web.StreamResponse:
        return web.Response(status=400, text="too long")

    replies_in_turn(server, refuse)
    with pytest.raises(RequestFailed, match="400: too long") as caught:
        chat(server)
    assert (caught.value.kind, caught.value.attempts) == (FailureKind.REJECTED, 1)
    assert caught.value.status == 400
    assert len(server.requests) == 1


def test_a_reply_that_is_no_completion_is_malformed(server: ScriptedServer) -> None:
    """What can't be decoded is named by its path."""

    async def odd(request: web.Request) -> web.StreamResponse:
        return web.json_response({"choices": "none"})

    replies_in_turn(server, odd)
    with pytest.raises(
        RequestFailed, match=r"can't be read: Expected `array`, got `str` - at `\$\.choices`"
    ) as caught:
        chat(server)
    assert (caught.value.kind, caught.value.status) == (FailureKind.MALFORMED, None)


def test_the_key_is_in_no_error(server: ScriptedServer) -> None:
    """Errors are shown and stored; the key is neither."""

    async def echo(request: web.Request) -> web.StreamResponse:
        return web.Response(status=401, text=f"invalid: {request.headers['Authorization']}")

    replies_in_turn(server, echo)
    with pytest.raises(RequestFailed) as caught:
        chat(server)
    assert str(caught.value) == "401: invalid: Bearer (the key)"


def test_a_500_of_a_server_that_is_unhealthy_costs_the_row_no_try(server: ScriptedServer) -> None:
    """A dying engine answers 500 to all that is in flight."""

    async def dying(request: web.Request) -> web.StreamResponse:
        server.healthy = False
        return web.Response(status=500, text="EngineCore died")

    replies_in_turn(server, dying)
    with pytest.raises(ServerUnreachable, match="is gone: 500: EngineCore died"):
        chat(server, attempts=1)


def test_nobody_listening_is_a_server_that_is_gone(server: ScriptedServer) -> None:
    """A dead port is told from a failed row: no tries are spent on it."""
    server.port = 9  # discard: nothing listens there
    with pytest.raises(ServerUnreachable, match=r"http://127\.0\.0\.1:9/v1 is gone"):
        chat(server)


def test_a_silent_connection_is_kept_alive() -> None:
    """A reply may take an hour: the socket probes its peer after a minute, and four times."""
    with kept_alive((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 1))) as made:
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == 4

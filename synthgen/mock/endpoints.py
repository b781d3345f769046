"""The paths of the mock server, in vLLM's shapes."""

from __future__ import annotations

import asyncio
import math
import random
import socket
import struct
from typing import NoReturn

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from synthgen.mock import replies
from synthgen.mock.config import MockConfig, MockCounters, body_hash
from synthgen.mock.engine import Clock, Engine, QueueFull, metrics
from synthgen.mock.faults import (
    CutShort,
    Dealer,
    Fault,
    HalfOpen,
    Refusal,
    Reset,
    SlowHeaders,
    TooManyRequests,
    Unavailable,
)
from synthgen.mock.requests import (
    ApiError,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TextRequest,
    body_of,
    read,
)

METRICS_TYPE = "text/plain; version=1.0.0; charset=utf-8"


class Endpoints:
    """Answers requests; belongs to one event loop."""

    def __init__(self, config: MockConfig, counters: MockCounters) -> None:
        self.clock = Clock(config.clock_speed)
        self._config = config
        self._counters = counters
        self._dealer = Dealer(config.faults, config.seed)
        self.restart()

    def restart(self) -> None:
        """Forget queue and metrics, as a server does that is started again."""
        config = self._config
        self._engine = Engine(
            self.clock,
            max_num_seqs=config.max_num_seqs,
            max_queued=config.max_queued,
            kv_cache_tokens=config.kv_cache_tokens,
            prefill_tokens_per_s=config.prefill_tokens_per_s,
            decode_tokens_per_s=config.decode_tokens_per_s,
            max_decode_tokens_per_s=config.max_decode_tokens_per_s,
        )

    def application(self) -> web.Application:
        """All paths."""
        app = web.Application(middlewares=[self._guard], client_max_size=2**30)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/detokenize", self._detokenize)
        app.router.add_get("/version", self._version)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            if not request.path.endswith("/completions"):  # those draw their faults themselves
                await self._fail_with(request, self._dealer.of_everything(self.clock.now_s))
            return await handler(request)
        except ApiError as error:
            return error.response()
        except ConnectionResetError:  # the client left within its reply
            await _hang()

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._complete(request, ChatRequest)

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._complete(request, TextRequest)

    async def _complete(
        self, request: web.Request, kind: type[ChatRequest] | type[TextRequest]
    ) -> web.StreamResponse:
        body = await body_of(request)
        asked = read(body, kind)
        prompt_ids = asked.prompt_ids()
        room = self._room(asked, prompt_ids)
        key = body_hash(body)
        with self._counters.request(key) as attempt:
            fault = self._dealer.deal(key, attempt, self.clock.now_s)
            if fault.is_one:
                self._counters.faults[fault.kind] += 1
            await self._fail_with(request, fault)
            reply = replies.compose(
                self._config.seed,
                body,
                prompt_ids,
                room,
                self._config.thinking_tokens,
                self._config.response_tokens,
            )
            return await self._run(request, asked, fault.alter(reply), fault, key, attempt)

    def _room(self, asked: CompletionRequest, prompt_ids: list[int]) -> int:
        """Longest reply to a request, in tokens. Raises ApiError when it can't be served."""
        config = self._config
        if asked.model not in (None, config.model):
            raise ApiError(404, f"The model `{asked.model}` does not exist.")
        if asked.n not in (None, 1):
            raise ApiError(400, f"n is {asked.n}: the mock server gives one choice")
        room = config.max_model_len_tokens - len(prompt_ids)
        if not prompt_ids or room < max(1, asked.limit or 1):
            raise ApiError(
                400,
                f"This model's maximum context length is {config.max_model_len_tokens} tokens. However, you "
                f"requested {asked.limit or 1} output tokens and your prompt contains {len(prompt_ids)} "
                f"input tokens. Please reduce the length of the input prompt or the number of requested "
                f"output tokens.",
            )
        return asked.limit or room

    async def _fail_with(self, request: web.Request, fault: Fault) -> None:
        """Act on a fault that comes instead of a reply; return for any other."""
        if isinstance(fault, SlowHeaders):
            await self.clock.sleep(fault.seconds)
        elif isinstance(fault, TooManyRequests):
            seconds = fault.retry_after_s / self.clock.speed
            raise ApiError(fault.status, fault.message, {"Retry-After": f"{seconds:.6g}"})
        elif isinstance(fault, Refusal):
            raise ApiError(fault.status, fault.message)
        elif isinstance(fault, Reset):
            reset(request.transport)
            await _hang()
        elif isinstance(fault, HalfOpen):
            await _hang()

    async def _run(
        self,
        request: web.Request,
        asked: CompletionRequest,
        reply: replies.Reply,
        fault: Fault,
        key: str,
        attempt: int,
    ) -> web.StreamResponse:
        """Queue for a slot, spend the time that the reply takes, and send it."""
        engine, is_chat = self._engine, isinstance(asked, ChatRequest)
        form = replies.Form(
            request_id=f"{'chatcmpl' if is_chat else 'cmpl'}-{key}",
            model=self._config.model,
            chat=is_chat,
            with_ids=bool(asked.return_token_ids),
            with_usage=bool((asked.stream_options or {}).get("include_usage")),
        )
        latency = random.Random(f"{self._config.seed}:latency:{key}:{attempt}")
        try:
            async with engine.slot(len(reply.prompt_ids) + len(reply.output_ids)):
                await self.clock.sleep(self._config.latency_s.draw(latency))
                await engine.prefill(len(reply.prompt_ids))
                if asked.stream:
                    return await self._stream(request, reply, form, fault, key)
                await engine.decode(len(reply.output_ids))
        except QueueFull as error:
            self._counters.faults["queue-full"] += 1
            raise ApiError(503, Unavailable.message) from error
        return await self._send(request, reply, form, fault, key)

    async def _send(
        self, request: web.Request, reply: replies.Reply, form: replies.Form, fault: Fault, key: str
    ) -> web.StreamResponse:
        body = fault.damage(msgspec.json.encode(replies.whole(reply, form)))
        if not isinstance(fault, CutShort):
            self._count_served(fault, key)
            return web.Response(body=body, content_type="application/json")
        headers = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        await response.write(body[: int(len(body) * fault.part_sent)])
        await _hang_up(request)

    async def _stream(
        self, request: web.Request, reply: replies.Reply, form: replies.Form, fault: Fault, key: str
    ) -> web.StreamResponse:
        engine = self._engine
        events = list(replies.chunks(reply, form, self._config.tokens_per_chunk))
        sent = math.ceil(len(events) * fault.part_sent) if isinstance(fault, CutShort) else len(events)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        for tokens, event in events[:sent]:
            await engine.decode(tokens)
            await response.write(b"data: " + fault.damage(msgspec.json.encode(event)) + b"\n\n")
        if isinstance(fault, CutShort):
            await _hang_up(request)
        self._count_served(fault, key)
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    def _count_served(self, fault: Fault, key: str) -> None:
        """Count a sound reply, before its last bytes: whoever has read it finds it counted."""
        if not fault.is_one or isinstance(fault, SlowHeaders):
            self._counters.served[key] += 1

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await body_of(request)
        asked = read(body, ChatRequest if "messages" in body else TextRequest)
        ids = asked.prompt_ids()
        limit = self._config.max_model_len_tokens
        names = [replies.decode([token], with_specials=True) for token in ids]
        strs = names if asked.return_token_strs else None
        return web.json_response(
            {"count": len(ids), "max_model_len": limit, "tokens": ids, "token_strs": strs}
        )

    async def _detokenize(self, request: web.Request) -> web.Response:
        ids = read(await body_of(request), DetokenizeRequest).tokens
        return web.json_response({"prompt": replies.decode(ids, with_specials=True)})

    async def _models(self, request: web.Request) -> web.Response:
        name = self._config.model
        card = {"id": name, "object": "model", "created": replies.CREATED, "owned_by": "vllm", "root": name}
        card |= {"parent": None, "max_model_len": self._config.max_model_len_tokens, "permission": []}
        return web.json_response({"object": "list", "data": [card]})

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": self._config.version})

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _metrics(self, request: web.Request) -> web.Response:
        text = metrics(self._engine, self._config.model)
        return web.Response(body=text.encode(), headers={"Content-Type": METRICS_TYPE})


async def _hang_up(request: web.Request) -> NoReturn:
    if request.transport is not None:
        request.transport.close()
    await _hang()


async def _hang() -> NoReturn:
    """Wait until the connection is gone: then the handler is cancelled."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError("unreachable: nothing sets that future")


def reset(transport: asyncio.BaseTransport | None) -> None:
    """Close a connection with RST instead of FIN."""
    if isinstance(transport, asyncio.Transport):
        at_once = struct.pack("ii", 1, 0)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
        transport.abort()

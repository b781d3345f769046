"""One request, one reply: the `openai` package's aiohttp transport, decoded by msgspec into types.

The only place that retries: transport errors and 408/409/425/429/5xx, with jitter, `Retry-After`
honoured, bounded in count and time. Any other 4xx fails at once. A cut reply is a result. When the
server itself is gone, no retry is spent: that is ServerUnreachable, and for the caller to wait out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx2
import msgspec
from openai import DefaultAioHttpClient
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    stop_after_attempt,
    stop_before_delay,
    wait_random_exponential,
)

from synthgen.client.control import HEALTH_TIMEOUT_S, ServerLoad, api_key, parse_load
from synthgen.client.replies import ChatReply, CompletionReply
from synthgen.client.stream import read_stream
from synthgen.corpus.config import RunConfig
from synthgen.corpus.records import FailureKind, Sampling, SeedPrompt
from synthgen.errors import RequestFailed, ServerUnreachable

RETRIED_STATUSES = frozenset({408, 409, 425, 429})
REFUSALS = frozenset({429, 503})
GATEWAY_STATUSES = frozenset({502, 503, 504})
"""What a proxy answers when the server behind it is gone; a busy server answers 503 too."""
# vLLM closes idle sockets after 5 s; reusing one at that moment loses the request.
KEEPALIVE_S = 4.0
BASE_TIMEOUT_S = 60.0
CONTROL_CONNECTIONS = 2
"""So that health and metrics don't wait behind the requests."""
_BACKOFF = wait_random_exponential(multiplier=0.5, max=20)
JSON = {"Content-Type": "application/json"}
T = TypeVar("T")


class _Transient(Exception):
    """A failure that another try may mend, unless the server is gone."""

    def __init__(
        self,
        kind: FailureKind,
        message: str,
        *,
        retry_after_s: float | None = None,
        may_be_down: bool = False,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.retry_after_s = retry_after_s
        self.may_be_down = may_be_down


class ApiClient:
    """One session with one server, used as `async with ApiClient(…) as client`."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None,
        concurrency: int,
        timeout_s: float,
        retry_attempts: int,
        retry_seconds: float,
    ) -> None:
        self._base_url = base_url.rstrip("/")
        self._root_url = self._base_url.removesuffix("/v1")
        self.refused = 0
        """Replies 429 and 503 so far."""
        self.retried = 0
        """Tries beyond the first so far."""
        self._retry_attempts = retry_attempts
        self._retry_seconds = retry_seconds
        self._http = DefaultAioHttpClient(
            timeout=httpx2.Timeout(timeout_s, connect=10.0),
            limits=httpx2.Limits(
                max_connections=concurrency + CONTROL_CONNECTIONS, keepalive_expiry=KEEPALIVE_S
            ),
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            trust_env=False,
        )

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.__aexit__(kind, error, trace)

    async def chat(self, body: dict[str, Any]) -> tuple[ChatReply, int]:
        """Send a chat completion; return the reply and how many tries it took.

        With `stream: true` in the body the reply is put together from its events: the same record.
        Raises RequestFailed, or ServerUnreachable when the server is gone.
        """
        content = msgspec.json.encode(body)
        if body.get("stream"):
            return await self._retried(lambda: self._stream_once("/chat/completions", content))
        return await self._retried(lambda: self._post_once("/chat/completions", content, ChatReply))

    async def complete(self, body: dict[str, Any]) -> tuple[CompletionReply, int]:
        """Send a completion from token ids; return the reply and the tries. Raises as `chat`."""
        content = msgspec.json.encode(body)
        return await self._retried(lambda: self._post_once("/completions", content, CompletionReply))

    async def load(self) -> ServerLoad | None:
        """How busy the server is; None when it shows no metrics or doesn't answer."""
        try:
            response = await self._http.get(self._root_url + "/metrics", timeout=HEALTH_TIMEOUT_S)
        except httpx2.TransportError:
            return None
        return parse_load(response.text)

    async def is_healthy(self) -> bool:
        """Whether the server answers its health check."""
        try:
            response = await self._http.get(self._root_url + "/health", timeout=HEALTH_TIMEOUT_S)
            return response.status_code == 200
        except httpx2.TransportError:
            return False

    async def _retried(self, send: Callable[[], Awaitable[T]]) -> tuple[T, int]:
        attempts = 0
        try:
            async for attempt in AsyncRetrying(
                stop=stop_after_attempt(self._retry_attempts) | stop_before_delay(self._retry_seconds),
                wait=_wait,
                retry=retry_if_exception_type(_Transient),
                reraise=True,
            ):
                with attempt:
                    attempts = attempt.retry_state.attempt_number
                    self.retried += attempts > 1
                    return await self._told_apart(send), attempts
        except _Transient as error:
            raise RequestFailed(str(error), kind=error.kind, attempts=attempts) from error
        except RequestFailed as error:
            error.attempts = attempts
            raise
        raise AssertionError("unreachable: the loop returns or raises")

    async def _told_apart(self, send: Callable[[], Awaitable[T]]) -> T:
        """One try; a failure that the server's absence explains is the server's, not the row's."""
        try:
            return await send()
        except _Transient as error:
            if error.may_be_down and not await self.is_healthy():
                raise ServerUnreachable(f"{self._base_url} is gone: {error}") from error
            raise

    async def _post_once(self, path: str, content: bytes, kind: type[T]) -> T:
        with _transport_errors():
            response = await self._http.post(self._base_url + path, content=content, headers=JSON)
        self._require_success(response)
        with _decode_errors():
            return msgspec.json.decode(response.content, type=kind)

    async def _stream_once(self, path: str, content: bytes) -> ChatReply:
        with _transport_errors():
            url = self._base_url + path
            async with self._http.stream("POST", url, content=content, headers=JSON) as response:
                if response.status_code != 200:
                    await response.aread()
                self._require_success(response)
                with _decode_errors():
                    reply = await read_stream(response.aiter_bytes())
        if reply is None:
            raise _Transient(FailureKind.TRANSPORT, "the stream ended before the reply did", may_be_down=True)
        return reply

    def _require_success(self, response: httpx2.Response) -> None:
        status = response.status_code
        self.refused += status in REFUSALS
        if status in RETRIED_STATUSES or status >= 500:
            raise _Transient(
                FailureKind.OVERLOADED,
                _said(response),
                retry_after_s=_retry_after_s(response),
                may_be_down=status in GATEWAY_STATUSES,
            )
        if status != 200:
            raise RequestFailed(_said(response), kind=FailureKind.REJECTED, attempts=1)


def client_for(
    config: RunConfig, base_url: str, *, concurrency: int, max_tokens: int, retried: bool = True
) -> ApiClient:
    """A session with one of a run's servers, its time limit fit for replies of `max_tokens`.

    `retried=False` is for measurements: a request that is sent twice is counted twice.
    """
    settings = config.generate
    return ApiClient(
        base_url,
        api_key=api_key(config.server.api_key_env),
        concurrency=concurrency,
        timeout_s=BASE_TIMEOUT_S + settings.seconds_per_token * max_tokens,
        retry_attempts=settings.retry_attempts if retried else 1,
        retry_seconds=settings.retry_seconds,
    )


def chat_body(prompt: SeedPrompt, model: str, sampling: Sampling, *, stream: bool = False) -> dict[str, Any]:
    """The chat completion that asks for a prompt's reply with its token ids."""
    body: dict[str, Any] = {
        "model": model,
        "messages": msgspec.to_builtins(prompt.messages),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
        "return_token_ids": True,
        "chat_template_kwargs": {"thinking": sampling.thinking},
    }
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    if prompt.tools:
        body["tools"] = list(prompt.tools)
    return body


@contextlib.contextmanager
def _transport_errors() -> Iterator[None]:
    try:
        yield
    except httpx2.TransportError as error:
        message = f"{type(error).__name__}: {error}".removesuffix(": ")
        raise _Transient(FailureKind.TRANSPORT, message, may_be_down=True) from error


@contextlib.contextmanager
def _decode_errors() -> Iterator[None]:
    try:
        yield
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise RequestFailed(
            f"the reply can't be read: {error}", kind=FailureKind.MALFORMED, attempts=1
        ) from error


def _said(response: httpx2.Response) -> str:
    return f"{response.status_code}: {response.text[:300]}"


def _retry_after_s(response: httpx2.Response) -> float | None:
    try:
        return float(response.headers["retry-after"])
    except (KeyError, ValueError):  # absent, or a date, which no inference server sends
        return None


def _wait(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    if isinstance(error, _Transient) and error.retry_after_s is not None:
        return error.retry_after_s
    return float(_BACKOFF(state))

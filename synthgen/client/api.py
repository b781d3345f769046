"""One request, one reply: an aiohttp session under the `openai` package's transport, decoded by msgspec.

Streams and control calls go through the package's client. A reply that comes whole is posted on the session
itself: at 1,000 requests a second the layers between cost as much as all the rest (docs/log.md).

The only place that retries: transport errors and 408/409/425/429/5xx, with jitter, `Retry-After`
honoured, bounded in count and time. Any other 4xx fails at once. A cut reply is a result. When the
server itself is gone, no retry is spent: that is ServerUnreachable, and for the caller to wait out.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

import aiohttp
import httpx2
import msgspec
from openai import DefaultAioHttpClient
from openai._vendor.httpx_aiohttp import AiohttpTransport
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    stop_after_attempt,
    stop_before_delay,
    wait_random_exponential,
)

from synthgen.client.control import HEALTH_TIMEOUT_S, api_key, without_key
from synthgen.client.metrics import ServerLoad, parse_load
from synthgen.client.replies import ChatReply, CompletionReply, TokenizeReply
from synthgen.client.stream import read_stream
from synthgen.corpus.config import RunConfig
from synthgen.corpus.records import FailureKind
from synthgen.errors import RequestFailed, ServerUnreachable

RETRIED_STATUSES = frozenset({408, 409, 425, 429})
REFUSALS = frozenset({429, 503})
# vLLM closes idle sockets after 5 s; reusing one at that moment loses the request.
KEEPALIVE_S = 4.0
BASE_TIMEOUT_S = 60.0
CONNECT_TIMEOUT_S = 10.0
TCP_KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
"""A reply may take an hour in silence: probes keep routers from forgetting it and find a dead peer."""
CONTROL_CONNECTIONS = 2
"""So that health and metrics don't wait behind the requests."""
_BACKOFF = wait_random_exponential(multiplier=0.5, max=20)
TRANSPORT_ERRORS = (aiohttp.ClientError, TimeoutError, httpx2.TransportError)
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
        reply_lost: bool = False,
        status: int | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.reply_lost = reply_lost
        self.retry_after_s = retry_after_s
        self.may_be_down = may_be_down
        self.status = status


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
        self.replies_lost = 0
        """Replies so far that broke off, or came too late."""
        self._retry_attempts = retry_attempts
        self._retry_seconds = retry_seconds
        self._concurrency = concurrency
        self._timeout_s = timeout_s
        self._api_key = api_key
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=self._concurrency + CONTROL_CONNECTIONS,
                keepalive_timeout=KEEPALIVE_S,
                socket_factory=kept_alive,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(sock_connect=CONNECT_TIMEOUT_S, sock_read=self._timeout_s),
        )
        self._http = DefaultAioHttpClient(
            transport=AiohttpTransport(client=self._session),
            timeout=httpx2.Timeout(self._timeout_s, connect=CONNECT_TIMEOUT_S, pool=None),
            headers=self._headers,
            trust_env=False,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()  # and the session with it

    async def chat(self, body: dict[str, Any]) -> tuple[ChatReply, int]:
        """Send a chat completion; return the reply and how many tries it took.

        With `stream: true` in the body the reply is put together from its events: the same record.
        Raises RequestFailed, or ServerUnreachable when the server is gone.
        """
        content = msgspec.json.encode(body)
        if body.get("stream"):
            return await self._retried(lambda: self._stream_once("/chat/completions", content))
        url = self._base_url + "/chat/completions"
        return await self._retried(lambda: self._post_once(url, content, ChatReply))

    async def complete(self, body: dict[str, Any]) -> tuple[CompletionReply, int]:
        """Send a completion from token ids; return the reply and the tries. Raises as `chat`."""
        content = msgspec.json.encode(body)
        url = self._base_url + "/completions"
        return await self._retried(lambda: self._post_once(url, content, CompletionReply))

    async def tokenize(self, body: dict[str, Any]) -> tuple[int, ...]:
        """Ids of a text or a conversation, by the server's tokenizer and template. Raises as `chat`."""
        content = msgspec.json.encode({"add_special_tokens": False, **body})
        url = self._root_url + "/tokenize"
        reply, _ = await self._retried(lambda: self._post_once(url, content, TokenizeReply))
        return reply.tokens

    async def load(self) -> ServerLoad | None:
        """How busy the server is; None when it shows no metrics or doesn't answer."""
        try:
            response = await self._http.get(self._root_url + "/metrics", timeout=HEALTH_TIMEOUT_S)
        except TRANSPORT_ERRORS:
            return None
        return parse_load(response.text)

    async def is_healthy(self) -> bool:
        """Whether the server answers its health check."""
        try:
            response = await self._http.get(self._root_url + "/health", timeout=HEALTH_TIMEOUT_S)
            return response.status_code == 200
        except TRANSPORT_ERRORS:
            return False

    async def _retried(self, send: Callable[[], Awaitable[T]]) -> tuple[T, int]:
        try:
            return await self._told_apart(send), 1
        except _Transient as error:
            return await self._tried_again(send, error)

    async def _tried_again(self, send: Callable[[], Awaitable[T]], first: _Transient) -> tuple[T, int]:
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
                    if attempts == 1:
                        raise first  # made already, without this machinery
                    self.retried += 1
                    return await self._told_apart(send), attempts
        except _Transient as error:
            raise RequestFailed(
                str(error), kind=error.kind, attempts=attempts, status=error.status
            ) from error
        except RequestFailed as error:
            error.attempts = attempts
            raise
        raise AssertionError("unreachable: the loop returns or raises")

    async def _told_apart(self, send: Callable[[], Awaitable[T]]) -> T:
        """One try; a failure that the server's absence explains is the server's, not the row's."""
        try:
            return await send()
        except _Transient as error:
            self.replies_lost += error.reply_lost
            if error.may_be_down and not await self.is_healthy():
                raise ServerUnreachable(f"{self._base_url} is gone: {error}") from error
            raise

    async def _post_once(self, url: str, content: bytes, kind: type[T]) -> T:
        with _transport_errors():
            async with self._session.post(url, data=content, headers=JSON) as response:
                body = await response.read()
        self._require_success(response.status, response.headers, body)
        with self._decode_errors(body):
            return msgspec.json.decode(body, type=kind)

    async def _stream_once(self, path: str, content: bytes) -> ChatReply:
        with _transport_errors():
            url = self._base_url + path
            async with self._http.stream("POST", url, content=content, headers=JSON) as response:
                body = await response.aread() if response.status_code != 200 else b""
                self._require_success(response.status_code, response.headers, body)
                with self._decode_errors(b""):
                    reply = await read_stream(response.aiter_bytes())
        if reply is None:
            raise _Transient(
                FailureKind.TRANSPORT,
                "the stream ended before the reply did",
                may_be_down=True,
                reply_lost=True,
            )
        return reply

    @contextlib.contextmanager
    def _decode_errors(self, body: bytes) -> Iterator[None]:
        try:
            yield
        except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
            unread = RequestFailed(
                f"the reply can't be read: {error}", kind=FailureKind.MALFORMED, attempts=1
            )
            unread.reply = self._without_key(body.decode(errors="replace")) or None
            raise unread from error

    def _without_key(self, text: str) -> str:
        return without_key(text, self._api_key)

    def _require_success(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        if status == 200:
            return
        self.refused += status in REFUSALS
        said = f"{status}: {self._without_key(body.decode(errors='replace'))[:300]}"
        if status in RETRIED_STATUSES or status >= 500:
            raise _Transient(
                FailureKind.OVERLOADED,
                said,
                retry_after_s=_retry_after_s(headers),
                may_be_down=status >= 500,
                status=status,
            )
        raise RequestFailed(said, kind=FailureKind.REJECTED, attempts=1, status=status)


def kept_alive(address: aiohttp.AddrInfoType) -> socket.socket:
    """A TCP socket that probes its peer while it waits for a long reply."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in TCP_KEEPALIVE.items():
        if hasattr(socket, name):  # macOS lacks one
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made


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


@contextlib.contextmanager
def _transport_errors() -> Iterator[None]:
    try:
        yield
    except TRANSPORT_ERRORS as error:
        message = f"{type(error).__name__}: {error}".removesuffix(": ")
        raise _Transient(
            FailureKind.TRANSPORT,
            message,
            may_be_down=True,
            reply_lost=not isinstance(error, aiohttp.ClientConnectorError | httpx2.ConnectError),
        ) from error


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    try:
        return float(headers["retry-after"])
    except (KeyError, ValueError):  # absent, or a date, which no inference server sends
        return None


def _wait(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    if isinstance(error, _Transient) and error.retry_after_s is not None:
        return error.retry_after_s
    return float(_BACKOFF(state))

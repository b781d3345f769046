"""One request, one reply: the `openai` package's aiohttp transport, decoded by msgspec into types.

The only place that retries: transport errors and 408/409/425/429/5xx, with jitter, `Retry-After`
honoured, bounded in count and time. Any other 4xx fails at once. A cut reply is a result.
"""

from __future__ import annotations

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
    stop_after_delay,
    wait_random_exponential,
)

from synthgen.corpus.records import FailureKind, Sampling, SeedPrompt, ToolCall
from synthgen.errors import RequestFailed

RETRIED_STATUSES = frozenset({408, 409, 425, 429})
# vLLM closes idle sockets after 5 s; reusing one at that moment loses the request.
KEEPALIVE_S = 4.0
_BACKOFF = wait_random_exponential(multiplier=0.5, max=20)
T = TypeVar("T")


class ReplyMessage(msgspec.Struct, frozen=True):
    """The message of a reply; older servers write `reasoning_content`."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: tuple[ToolCall, ...] | None = None


class ReplyChoice(msgspec.Struct, frozen=True):
    """One choice of a chat completion."""

    message: ReplyMessage
    finish_reason: str | None = None
    token_ids: tuple[int, ...] | None = None


class ReplyUsage(msgspec.Struct, frozen=True):
    """Token counts by the server."""

    prompt_tokens: int
    completion_tokens: int = 0


class ChatReply(msgspec.Struct, frozen=True):
    """A chat completion, reduced to what is used."""

    choices: tuple[ReplyChoice, ...]
    usage: ReplyUsage
    prompt_token_ids: tuple[int, ...] | None = None
    kv_transfer_params: dict[str, Any] | None = None


class CompletionChoice(msgspec.Struct, frozen=True):
    """One choice of a completion from token ids."""

    token_ids: tuple[int, ...] | None = None
    finish_reason: str | None = None


class CompletionReply(msgspec.Struct, frozen=True):
    """A completion from token ids, reduced to what is used."""

    choices: tuple[CompletionChoice, ...]
    usage: ReplyUsage
    kv_transfer_params: dict[str, Any] | None = None


class _Transient(Exception):
    """A failure that another try may mend."""

    def __init__(self, kind: FailureKind, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.retry_after_s = retry_after_s


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
        self._retry_attempts = retry_attempts
        self._retry_seconds = retry_seconds
        self._http = DefaultAioHttpClient(
            timeout=httpx2.Timeout(timeout_s, connect=10.0),
            limits=httpx2.Limits(max_connections=concurrency, keepalive_expiry=KEEPALIVE_S),
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
        """Send a chat completion; return the reply and how many tries it took. Raises RequestFailed."""
        return await self._post("/chat/completions", body, ChatReply)

    async def complete(self, body: dict[str, Any]) -> tuple[CompletionReply, int]:
        """Send a completion from token ids; return the reply and the tries. Raises RequestFailed."""
        return await self._post("/completions", body, CompletionReply)

    async def _post(self, path: str, body: dict[str, Any], kind: type[T]) -> tuple[T, int]:
        content = msgspec.json.encode(body)
        attempts = 0
        try:
            async for attempt in AsyncRetrying(
                stop=stop_after_attempt(self._retry_attempts) | stop_after_delay(self._retry_seconds),
                wait=_wait,
                retry=retry_if_exception_type(_Transient),
                reraise=True,
            ):
                with attempt:
                    attempts = attempt.retry_state.attempt_number
                    return await self._post_once(path, content, kind), attempts
        except _Transient as error:
            raise RequestFailed(str(error), kind=error.kind, attempts=attempts) from error
        raise AssertionError("unreachable: the loop returns or raises")

    async def _post_once(self, path: str, content: bytes, kind: type[T]) -> T:
        try:
            response = await self._http.post(
                self._base_url + path, content=content, headers={"Content-Type": "application/json"}
            )
        except httpx2.TransportError as error:
            raise _Transient(FailureKind.TRANSPORT, f"{type(error).__name__}: {error}") from error
        status = response.status_code
        if status in RETRIED_STATUSES or status >= 500:
            raise _Transient(FailureKind.OVERLOADED, _said(response), _retry_after_s(response))
        if status != 200:
            raise RequestFailed(_said(response), kind=FailureKind.REJECTED, attempts=1)
        try:
            return msgspec.json.decode(response.content, type=kind)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise RequestFailed(
                f"the reply can't be read: {error}", kind=FailureKind.MALFORMED, attempts=1
            ) from error


def chat_body(prompt: SeedPrompt, model: str, sampling: Sampling) -> dict[str, Any]:
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
    if prompt.tools:
        body["tools"] = list(prompt.tools)
    return body


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

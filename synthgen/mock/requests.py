"""Requests to the mock server, as far as it reads them, and its refusals, in vLLM's shapes."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Any, TypeVar

import msgspec
from aiohttp import web

from synthgen.mock import replies

Tokens = Annotated[int, msgspec.Meta(ge=1)]
TokenId = Annotated[int, msgspec.Meta(ge=0, lt=replies.VOCABULARY_SIZE)]
T = TypeVar("T")


class ApiError(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers or {}

    def response(self) -> web.Response:
        """It, as vLLM writes it."""
        phrase = HTTPStatus(self.status).phrase.replace(" ", "")
        name = {400: "BadRequestError", 404: "NotFoundError"}.get(self.status, phrase)
        error = {"message": str(self), "type": name, "param": None, "code": self.status}
        return web.json_response({"error": error}, status=self.status, headers=self.headers)


class CompletionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What both kinds of completions have in common; fields it doesn't know are let pass."""

    model: str | None = None
    stream: bool | None = False
    stream_options: dict[str, Any] | None = None
    return_token_ids: bool | None = False
    max_tokens: Tokens | None = None
    n: int | None = 1
    return_token_strs: bool | None = False
    """Of /tokenize alone."""

    @property
    def limit(self) -> int | None:
        """Longest reply that is wanted, in tokens; None for as long as the model can."""
        return self.max_tokens

    def prompt_ids(self) -> list[int]:
        """Ids of the prompt."""
        raise NotImplementedError


class ChatRequest(CompletionRequest, frozen=True, kw_only=True):
    """To /v1/chat/completions; what it asks for is also what /tokenize takes."""

    messages: list[dict[str, Any]]
    tools: list[Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    max_completion_tokens: Tokens | None = None
    add_generation_prompt: bool = True

    @property
    def limit(self) -> int | None:
        """The newer name of the limit goes before the older."""
        return self.max_completion_tokens or self.max_tokens

    def prompt_ids(self) -> list[int]:
        """Ids of the conversation; thinking is on unless a switch is there and none is on, as in vLLM."""
        switches = self.chat_template_kwargs or {}
        named = [bool(switches[key]) for key in ("thinking", "enable_thinking") if key in switches]
        text = replies.render(
            self.messages,
            tools=self.tools or (),
            thinking=any(named) if named else True,
            generation_prompt=self.add_generation_prompt,
        )
        return replies.encode(text)


class TextRequest(CompletionRequest, frozen=True, kw_only=True):
    """To /v1/completions: a text or token ids."""

    prompt: str | list[TokenId]
    max_tokens: Tokens | None = 16
    """vLLM's default here."""

    def prompt_ids(self) -> list[int]:
        """Ids of the prompt."""
        return replies.encode(self.prompt) if isinstance(self.prompt, str) else self.prompt


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """To /detokenize."""

    tokens: list[TokenId]


async def body_of(request: web.Request) -> dict[str, Any]:
    """The JSON object that was sent. Raises ApiError for anything else."""
    try:
        return msgspec.json.decode(await request.read(), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ApiError(400, f"the body is no JSON object: {error}") from error


def read(body: dict[str, Any], kind: type[T]) -> T:
    """A body as a request. Raises ApiError that names the field."""
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        raise ApiError(400, str(error)) from error

"""What a server says about itself: health, model, tokenizer, template, counters.

These are the few calls around a run, not in it; they go through plain `httpx`.
"""

from __future__ import annotations

import functools
import os
import ssl
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec

from synthgen.client.metrics import ServerCounts, SpecCounters, parse_counts
from synthgen.corpus.manifest import digest
from synthgen.corpus.records import Record
from synthgen.corpus.sections import VerifierConfig
from synthgen.corpus.special_tokens import CONTROL_NAMES, is_control
from synthgen.errors import ConfigError, ServerMismatch, ServerUnreachable

TIMEOUT_S = 30.0
HEALTH_TIMEOUT_S = 5.0
# Fixed texts whose ids give a tokenizer and a template away without loading either.
TOKENIZER_PROBE = "The 3 quick foxes don't jump: 12,345.67 €  naïve 漢字 🙂\n\tdef f(x): return x**2"
TEMPLATE_PROBE = (
    {"role": "user", "content": "One?"},
    {"role": "assistant", "content": "Two."},
    {"role": "user", "content": "Three?"},
)
SYSTEM = {"role": "system", "content": "Count."}


class Fingerprint(Record, frozen=True, kw_only=True):
    """What has to be the same for two replies to belong to one corpus."""

    model: str
    max_model_len: int | None
    engine: str
    """vLLM's version."""
    tokenizer: str
    """Digest of the ids of a fixed text."""
    template: str
    """Digest of the ids of a fixed conversation."""

    @property
    def digest(self) -> str:
        """16 hex digits that stand for it in records."""
        return digest(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Markers:
    """Ids of the tokens that bound the parts of a reply, resolved by name; None where there is none."""

    think_end: int | None
    tool_section: int | None
    special: dict[str, int] = field(default_factory=dict)
    """These, and what the chat template writes around messages, by name."""


class Control:
    """The control calls of one server."""

    def __init__(self, base_url: str, api_key: str | None = None, timeout_s: float = TIMEOUT_S) -> None:
        self.base_url = base_url.rstrip("/")
        self.root_url = self.base_url.removesuffix("/v1")
        self._api_key = api_key
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout_s = timeout_s

    def is_healthy(self) -> bool:
        """Whether the server answers /health with 200."""
        try:
            return (
                httpx.get(
                    f"{self.root_url}/health", timeout=HEALTH_TIMEOUT_S, trust_env=False, verify=_tls()
                ).status_code
                == 200
            )
        except httpx.HTTPError:
            return False

    def models(self) -> list[dict[str, Any]]:
        """The models it serves. Raises ServerUnreachable when nothing answers."""
        return list(self._json("GET", f"{self.base_url}/models")["data"])

    def require_model(self, name: str) -> dict[str, Any]:
        """The entry of model `name`. Raises ServerMismatch naming what is served instead."""
        served = self.models()
        for entry in served:
            if entry["id"] == name:
                return entry
        names = ", ".join(repr(entry["id"]) for entry in served)
        raise ServerMismatch(
            f"{self.base_url} serves {names}, not {name!r}: set verifier.served_name, or server.base_urls to "
            f"the server that has it"
        )

    def tokenize(self, model: str, **content: Any) -> list[int]:
        """Token ids of `prompt=` a text or `messages=` a conversation, by the server's own tokenizer."""
        body = {"model": model, "add_special_tokens": False, **content}
        return list(self._json("POST", f"{self.root_url}/tokenize", json=body)["tokens"])

    def detokenize(self, model: str, tokens: list[int]) -> str:
        """The text of token ids, special tokens included, by the server's own tokenizer."""
        body = {"model": model, "tokens": tokens}
        return str(self._json("POST", f"{self.root_url}/detokenize", json=body)["prompt"])

    def captured(self, model: str, token_ids: list[int]) -> dict[str, Any] | None:
        """What a server with the connector tells of the hidden states of a prompt it was sent."""
        body = {"model": model, "prompt": token_ids, "max_tokens": 1, "temperature": 0}
        body["kv_transfer_params"] = {"states": "prompt"}
        told: dict[str, Any] | None = self._json("POST", f"{self.base_url}/completions", json=body).get(
            "kv_transfer_params"
        )
        return told

    def likeliest(self, model: str, token_ids: list[int]) -> list[int | None]:
        """After each token the one the model holds most likely; None after the last."""
        body = {"model": model, "prompt": token_ids, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 1}
        reply = self._json("POST", f"{self.base_url}/completions", json=body)
        by_token: list[dict[str, Any] | None] = reply["choices"][0]["prompt_logprobs"]
        return [*(_first_ranked(ranks) for ranks in by_token[1:]), None]

    def fingerprint(self, model: str) -> Fingerprint:
        """What the server is: model, limits, version, tokenizer and template."""
        entry = self.require_model(model)
        version = self._json("GET", f"{self.root_url}/version")["version"]
        return Fingerprint(
            model=model,
            max_model_len=entry.get("max_model_len"),
            engine=f"vllm {version}",
            tokenizer=digest(self.tokenize(model, prompt=TOKENIZER_PROBE)),
            template=digest(self.tokenize(model, messages=TEMPLATE_PROBE)),
        )

    def markers(self, verifier: VerifierConfig) -> Markers:
        """Ids of the configured boundary tokens. Raises ServerMismatch when one isn't a single token."""

        def single(text: str | None, key: str) -> int | None:
            if text is None:
                return None
            ids = self.tokenize(verifier.served_name, prompt=text)
            if len(ids) != 1:
                raise ServerMismatch(
                    f"verifier.{key} {text!r} is {len(ids)} tokens for {self.base_url}: it must be one; set "
                    f"it to null for a model without"
                )
            return ids[0]

        think_end = single(verifier.think_end, "think_end")
        tool_section = single(verifier.tool_section, "tool_section")
        named = ((verifier.think_end, think_end), (verifier.tool_section, tool_section))
        special = self.special_tokens(verifier.served_name)
        special |= {text: token for text, token in named if text is not None and token is not None}
        return Markers(think_end=think_end, tool_section=tool_section, special=special)

    def special_tokens(self, model: str) -> dict[str, int]:
        """Ids by name of the tokens that the chat template writes around messages, as far as they have names,
        and of the usual control tokens; none from a server that answers no `token_strs`.
        """
        try:
            conversation = self._special_in(model, messages=(SYSTEM, *TEMPLATE_PROBE))
        except ServerMismatch:  # a template that takes no system message
            conversation = self._special_in(model, messages=TEMPLATE_PROBE)
        return self._special_in(model, prompt="".join(CONTROL_NAMES)) | conversation

    def _special_in(self, model: str, **content: Any) -> dict[str, int]:
        body = {"model": model, "add_special_tokens": False, "return_token_strs": True, **content}
        answer = self._json("POST", f"{self.root_url}/tokenize", json=body)
        pairs = zip(answer.get("token_strs") or (), answer["tokens"], strict=False)
        return {text: token for text, token in pairs if is_control(text)}

    def spec_counters(self) -> SpecCounters:
        """The spec-decode counters. Raises ServerMismatch when the server has none."""
        counters = self.counts().spec
        if counters is None:
            raise ServerMismatch(
                f"{self.root_url}/metrics has no vllm:spec_decode counters: the server runs without a draft "
                f"(--speculative-config)"
            )
        return counters

    def counts(self) -> ServerCounts:
        """All that it has counted. Raises ServerMismatch when it shows no counters of vLLM's."""
        counts = parse_counts(self._request("GET", f"{self.root_url}/metrics").text)
        if not counts.is_vllm:
            raise ServerMismatch(
                f"{self.root_url}/metrics has no counters of vLLM: is it a vLLM, started without "
                f"--disable-log-stats, and does no proxy stand before its /metrics?"
            )
        return counts

    def _json(self, method: str, url: str, **arguments: Any) -> Any:
        response = self._request(method, url, **arguments)
        try:
            return msgspec.json.decode(response.content)
        except msgspec.DecodeError as error:
            raise ServerMismatch(f"{url} did not answer with JSON: is it a vLLM server?") from error

    def _request(self, method: str, url: str, **arguments: Any) -> httpx.Response:
        try:
            response = httpx.request(
                method,
                url,
                headers=self._headers,
                timeout=self._timeout_s,
                trust_env=False,
                verify=_tls(),
                **arguments,
            )
        except httpx.HTTPError as error:
            raise ServerUnreachable(
                f"nothing answers at {url}: {error or type(error).__name__}. Start the server "
                f"(`synthgen serve CONFIG`), or set server.base_urls to where it is"
            ) from error
        status = response.status_code
        if status == 429 or status >= 500:
            raise ServerUnreachable(f"{url} answered {status}: {self._said(response)}: is it still starting?")
        if status != 200:
            raise ServerMismatch(
                f"{url} answered {status}: {self._said(response)}. A base URL ends in /v1 and is a vLLM's"
            )
        return response

    def _said(self, response: httpx.Response) -> str:
        return without_key(response.text, self._api_key)[:300]


def without_key(text: str, api_key: str | None) -> str:
    """What a server said, without the key: some repeat the header that they refuse."""
    return text.replace(api_key, "(the key)") if api_key else text


def _first_ranked(ranks: dict[str, Any] | None) -> int | None:
    """The token of rank 1 among a position's `prompt_logprobs`."""
    return next((int(token) for token, told in (ranks or {}).items() if told["rank"] == 1), None)


@functools.cache
def _tls() -> ssl.SSLContext:
    """Made once: httpx would make one for each call, at a cost of some 30 ms."""
    return ssl.create_default_context()


def api_key(env_name: str) -> str | None:
    """The key in environment variable `env_name`; None when unset or empty.

    Raises ConfigError, without the key, when it can't stand in a header.
    """
    key = os.environ.get(env_name) or None
    if key is not None and not (key.isascii() and key.isprintable() and key == key.strip()):
        raise ConfigError(
            f"the key in environment variable {env_name} has blanks at an end, line breaks or letters beyond "
            f"ASCII: set it anew, without them"
        )
    return key

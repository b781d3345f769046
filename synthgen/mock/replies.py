"""What the mock server says: a small tokenizer, and replies that follow from seed and request alone.

The vocabulary is 256 bytes, some sixty words of one token each (a few outside ASCII, one of them
U+2028, which breaks readers that split JSONL by lines), and Kimi's special tokens. Text survives
encoding and decoding. A prompt renders as Kimi's template does, so the output starts inside the
thinking and `</think>` stands in it; as in vLLM, special tokens are in the ids and not in the text.

The same request gets the same ids and text, whether it is streamed or not; with less `max_tokens` it
gets an exact prefix of them.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from synthgen.corpus.manifest import digest
from synthgen.mock.distributions import Distribution

_WORD_LIST = (
    "the of and to in is that it for was on are as with his they at be this from have or by one had not "
    "but what all were when we there can an your which their said if do will each about how up out them "
    "then she many some so these would other into has more naïve 漢字 🙂 \u2028"
)
_WORDS = tuple(f" {word}" for word in _WORD_LIST.split(" "))
_SPECIALS = (
    "<|im_end|>",
    "<|im_user|>",
    "<|im_assistant|>",
    "<|im_system|>",
    "<|im_middle|>",
    "<think>",
    "</think>",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
)
_PIECES = [bytes([value]) for value in range(256)] + [text.encode() for text in (*_WORDS, *_SPECIALS)]
_IDS = {piece: index for index, piece in enumerate(_PIECES)}
_PIECE = re.compile(
    b"|".join(re.escape(piece) for piece in sorted(_PIECES[256:], key=len, reverse=True)) + b"|.", re.DOTALL
)
_WORD_IDS = range(256, 256 + len(_WORDS))
_FIRST_SPECIAL = 256 + len(_WORDS)
VOCABULARY_SIZE = len(_PIECES)
END, THINK, THINK_END = (_IDS[text.encode()] for text in ("<|im_end|>", "<think>", "</think>"))
EXCLAMATION = _IDS[b"!"]
# They change how a reply is sent, or where it is cut, but not what it says.
_NOT_THE_QUESTION = frozenset(
    {"stream", "stream_options", "return_token_ids", "max_tokens", "max_completion_tokens"}
)
# The same request gets the same bytes, so there is no clock in a reply.
CREATED = 0


def encode(text: str) -> list[int]:
    """Token ids of a text; the names of special tokens are single tokens."""
    return [_IDS[piece] for piece in _PIECE.findall(text.encode())]


def decode(ids: Sequence[int], *, with_specials: bool = False) -> str:
    """Text of token ids, special tokens left out unless asked for. Raises IndexError for unknown ids."""
    kept = ids if with_specials else [i for i in ids if i < _FIRST_SPECIAL]
    return b"".join(_PIECES[i] for i in kept).decode("utf-8", "replace")


def render(
    messages: Sequence[dict[str, Any]],
    *,
    tools: Sequence[Any] = (),
    thinking: bool = True,
    generation_prompt: bool = True,
) -> str:
    """A conversation as Kimi's template writes it; earlier thinking isn't repeated."""
    turns = [_turn("system", "tool_declare", msgspec.json.encode(tools).decode())] if tools else []
    for message in messages:
        role = str(message.get("role"))
        text = _text(message.get("content"))
        if message.get("tool_calls"):
            calls = msgspec.json.encode(message["tool_calls"]).decode()
            text += f"<|tool_calls_section_begin|>{calls}<|tool_calls_section_end|>"
        turns.append(_turn(role if role in ("user", "assistant") else "system", role, text))
    if generation_prompt:
        turns.append(f"<|im_assistant|>assistant<|im_middle|><think>{'' if thinking else '</think>'}")
    return "".join(turns)


def _turn(marker: str, name: str, text: str) -> str:
    return f"<|im_{marker}|>{name}<|im_middle|>{text}<|im_end|>"


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return "" if content is None else str(content)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A reply before it is written as JSON, possibly with a fault in it."""

    prompt_ids: list[int]
    output_ids: list[int]
    thinking: bool
    """Whether the output starts inside the thinking."""
    finish: str
    completion_tokens: int
    """What `usage` claims."""
    has_ids: bool = True

    @property
    def reasoning_end(self) -> int:
        """How many of the output tokens come before `</think>`."""
        if not self.thinking:
            return 0
        return self.output_ids.index(THINK_END) if THINK_END in self.output_ids else len(self.output_ids)

    @property
    def reasoning(self) -> str | None:
        """Text of the thinking."""
        return decode(self.output_ids[: self.reasoning_end]) or None

    @property
    def content(self) -> str | None:
        """Text of the response; None when the reply never got there."""
        return decode(self.output_ids[self.reasoning_end :]) or None

    @property
    def usage(self) -> dict[str, int]:
        """Token counts, as claimed."""
        prompt = len(self.prompt_ids)
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + self.completion_tokens,
            "completion_tokens": self.completion_tokens,
        }


def compose(
    seed: int,
    body: dict[str, Any],
    prompt_ids: list[int],
    max_tokens: int,
    thinking_tokens: Distribution,
    response_tokens: Distribution,
) -> Reply:
    """The reply to a request: a function of `seed`, the request and the two lengths, and of nothing else."""
    question = {key: value for key, value in body.items() if key not in _NOT_THE_QUESTION}
    generator = random.Random(f"{seed}:{digest(question)}")
    thinking = _is_thinking(prompt_ids)
    ids: list[int] = []
    if thinking:
        ids = generator.choices(_WORD_IDS, k=round(thinking_tokens.draw(generator)))
        ids.append(THINK_END)
    ids += generator.choices(_WORD_IDS, k=max(1, round(response_tokens.draw(generator))))
    ids.append(END)
    finish = "stop" if len(ids) <= max_tokens else "length"
    ids = ids[:max_tokens]
    return Reply(
        prompt_ids=prompt_ids, output_ids=ids, thinking=thinking, finish=finish, completion_tokens=len(ids)
    )


def _is_thinking(prompt_ids: Sequence[int]) -> bool:
    for token in reversed(prompt_ids):
        if token in (THINK, THINK_END):
            return token == THINK
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How a reply is to be written."""

    request_id: str
    model: str
    chat: bool
    with_ids: bool
    with_usage: bool
    """Whether a stream ends with its usage."""


def whole(reply: Reply, form: Form) -> dict[str, Any]:
    """A reply in one piece: `chat.completion` or `text_completion`."""
    with_ids = form.with_ids and reply.has_ids
    choice: dict[str, Any] = {"index": 0}
    if form.chat:
        choice["message"] = {"role": "assistant", "content": reply.content, "reasoning": reply.reasoning}
    else:
        choice["text"] = decode(reply.output_ids)
        choice["prompt_token_ids"] = reply.prompt_ids if with_ids else None
    choice |= {"logprobs": None, "finish_reason": reply.finish, "stop_reason": None}
    choice["token_ids"] = reply.output_ids if with_ids else None
    body = _envelope(form, "chat.completion" if form.chat else "text_completion", [choice])
    body["usage"] = reply.usage
    if form.chat:
        body["prompt_token_ids"] = reply.prompt_ids if with_ids else None
    return body


def chunks(reply: Reply, form: Form, tokens_per_chunk: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """A reply as the events of a stream, each with the number of tokens that are decoded before it."""
    kind = "chat.completion.chunk" if form.chat else "text_completion"
    with_ids = form.with_ids and reply.has_ids
    border = reply.reasoning_end
    if form.chat:
        delta = {"role": "assistant", "content": ""}
        first = _envelope(form, kind, [{"index": 0, "delta": delta, "finish_reason": None}])
        yield 0, first | ({"prompt_token_ids": reply.prompt_ids} if with_ids else {})
    for start, end in _spans(reply, tokens_per_chunk):
        ids = reply.output_ids[start:end]
        text, is_last = decode(ids), end == len(reply.output_ids)
        choice: dict[str, Any] = {"index": 0, "finish_reason": reply.finish if is_last else None}
        if form.chat:
            field = "reasoning" if start < border else "content"
            choice["delta"] = {field: text} if text else {}
        else:
            choice["text"] = text
        if with_ids:
            choice["token_ids"] = ids
            if not form.chat and start == 0:
                choice["prompt_token_ids"] = reply.prompt_ids
        yield end - start, _envelope(form, kind, [choice])
    if form.with_usage:
        yield 0, _envelope(form, kind, []) | {"usage": reply.usage}


def _spans(reply: Reply, size: int) -> Iterator[tuple[int, int]]:
    """Cuts of the output that never mix thinking, `</think>` and response."""
    start, length, border = 0, len(reply.output_ids), reply.reasoning_end
    while start < length:
        end = min(start + size, length)
        if start < border:
            end = min(end, border)
        elif start == border and reply.thinking:
            end = start + 1
        yield start, end
        start = end


def _envelope(form: Form, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": form.request_id,
        "object": kind,
        "created": CREATED,
        "model": form.model,
        "choices": choices,
    }

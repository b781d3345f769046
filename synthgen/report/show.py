"""One reply for the eye: what was asked, thought and answered, and which ids are supervised."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from synthgen.corpus.config import RunConfig
from synthgen.corpus.console import printable
from synthgen.corpus.records import Message, ToolCall, Trace
from synthgen.corpus.samples import DatasetRow, Sample, SpanKind, sample_of
from synthgen.corpus.verdicts import Verdict
from synthgen.generate.transcript import PROMPT_STYLE, STYLES, print_part
from synthgen.report.lookup import find_replies, find_verdicts, first_replies

"""Widest output where no terminal says how wide it is."""
LETTERS = {SpanKind.THINKING: "t", SpanKind.RESPONSE: "r", SpanKind.TOOL: "c"}
UNSUPERVISED = "."


@dataclass(frozen=True, slots=True)
class Block:
    """Tokens [start, end) of a sample that are of one kind; None for those that are not supervised."""

    start: int
    end: int
    kind: SpanKind | None

    @property
    def label(self) -> str:
        """As it stands before its tokens: `thinking 12:345`."""
        name = self.kind or ("unsupervised" if self.start else "prompt")
        return f"{name} {self.start}:{self.end}"

    @property
    def style(self) -> str:
        """Its colour."""
        return PROMPT_STYLE if self.kind is None else STYLES[self.kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A reply with its sample, and the verdict on it where there is one."""

    reply: Trace | DatasetRow
    sample: Sample
    verdict: Verdict | None

    @property
    def seconds(self) -> float | None:
        """How long the reply took; a dataset doesn't know."""
        return self.reply.timing.seconds if isinstance(self.reply, Trace) else None

    @property
    def blocks(self) -> tuple[Block, ...]:
        """All tokens in order: what is supervised, and what lies between."""
        return tuple(_blocks(self.sample))

    @property
    def tokens(self) -> dict[str, int]:
        """Tokens of the prompt, which is all that isn't supervised, and of each kind."""
        counts = {"prompt": 0} | {kind.value: 0 for kind in SpanKind}
        for block in self.blocks:
            counts[block.kind or "prompt"] += block.end - block.start
        return counts


def find(config: RunConfig, asked: tuple[str, ...], count: int) -> list[Shown]:
    """The replies that are asked for, or the first `count` when none is. Raises as `find_replies`."""
    replies = find_replies(config, asked) if asked else first_replies(config, count)
    verdicts = find_verdicts(config, {reply.id for reply in replies})
    return [
        Shown(
            reply=reply,
            sample=sample_of(reply) if isinstance(reply, Trace) else reply,
            verdict=verdicts.get(reply.id),
        )
        for reply in replies
    ]


def as_figures(shown: Shown, *, ids: bool, mask: bool) -> dict[str, Any]:
    """A reply as plain values; `mask` has one of 0 and 1 for each of `ids`."""
    reply = shown.reply
    values: dict[str, Any] = {
        "id": reply.id,
        "domain": reply.domain,
        "source": reply.source,
        "finish": reply.finish,
        "truncated_in": reply.truncated_in,
        "tokens": shown.tokens,
        "sampling": reply.sampling,
        "seconds": shown.seconds,
        "verdict": shown.verdict,
        "messages": reply.messages,
        "thinking": reply.thinking,
        "response": reply.response,
        "tool_calls": reply.tool_calls,
        "spans": shown.sample.spans,
    }
    if ids or mask:
        values["token_ids"] = shown.sample.token_ids
    if mask:
        values["mask"] = [int(b.kind is not None) for b in shown.blocks for _ in range(b.start, b.end)]
    return msgspec.to_builtins(values)  # type: ignore[no-any-return]


def print_reply(out: Console, shown: Shown, *, ids: bool, mask: bool) -> None:
    """Print one reply with each part under its label; `ids` and `mask` show the tokens as well."""
    reply = shown.reply
    out.rule(Text(printable(reply.id), style="bold"), align="left")
    out.print(Text(printable(_header(shown))))
    for message in reply.messages:
        print_part(out, message.role, _said(message), PROMPT_STYLE)
    for kind, text in (
        (SpanKind.THINKING, reply.thinking),
        (SpanKind.RESPONSE, reply.response),
        (SpanKind.TOOL, _calls(reply.tool_calls)),
    ):
        places = ", ".join(f"{span.start}:{span.end}" for span in shown.sample.spans if span.kind is kind)
        if text or places:
            print_part(out, f"{kind} {places}".rstrip(), text or "", STYLES[kind])
    if reply.truncated_in is not None:
        out.print(Text(f"[cut in the {reply.truncated_in}: {_budget(reply)} ran out]", style="bold red"))
    if ids or mask:
        for block in shown.blocks:
            _print_ids(out, shown.sample, block, mask=mask)


def _header(shown: Shown) -> str:
    reply, tokens = shown.reply, shown.tokens
    parts = [reply.domain, reply.source, reply.finish.value]
    parts.append(", ".join(f"{count:,} {name}" for name, count in tokens.items() if count) + " tokens")
    if reply.sampling is not None:
        sampling = reply.sampling
        parts.append(
            f"temperature {sampling.temperature:g}, top_p {sampling.top_p:g}, at most "
            f"{sampling.max_tokens:,} tokens, thinking {'on' if sampling.thinking else 'off'}"
        )
    if shown.seconds is not None:
        parts.append(f"{shown.seconds:.1f} s")
    if isinstance(reply, DatasetRow):
        parts.append(f"dataset part {reply.part}, {reply.origin}")
    return " · ".join([*parts, *_judged(shown.verdict)])


def _judged(verdict: Verdict | None) -> Iterator[str]:
    if verdict is None:
        return
    noted = ", ".join(tag for tag in verdict.tags if tag != verdict.reason)
    judged = "kept" if verdict.reason is None else f"dropped: {verdict.reason}"
    yield f"{judged} (found: {noted})" if noted else judged


def _said(message: Message) -> str:
    return "\n".join(part for part in (message.content, _calls(message.tool_calls)) if part)


def _calls(calls: tuple[ToolCall, ...]) -> str:
    return "\n".join(f"{call.function.name}({call.function.arguments})" for call in calls)


def _budget(reply: Trace | DatasetRow) -> str:
    return "the budget" if reply.sampling is None else f"the budget of {reply.sampling.max_tokens:,} tokens"


def _blocks(sample: Sample) -> Iterator[Block]:
    end = 0
    for span in sample.spans:
        if end < span.start:
            yield Block(end, span.start, None)
        yield Block(span.start, span.end, span.kind)
        end = span.end
    if end < len(sample.token_ids):
        yield Block(end, len(sample.token_ids), None)


def _print_ids(out: Console, sample: Sample, block: Block, *, mask: bool) -> None:
    """The ids of a block. With `mask` each has 0 or 1 under it, or without colours its kind behind it."""
    out.print(Text(f"[ids {block.label}]", style=f"bold {block.style}"))
    ids = [str(token) for token in sample.token_ids[block.start : block.end]]
    under = mask and out.color_system is not None and not out.no_color
    if mask and not under:
        ids = [f"{token}:{LETTERS[block.kind] if block.kind else UNSUPERVISED}" for token in ids]
    width = max(len(token) for token in ids)
    in_line = max(1, (out.width + 1) // (width + 1))
    for start in range(0, len(ids), in_line):
        row = ids[start : start + in_line]
        out.print(Text(" ".join(f"{token:>{width}}" for token in row), style=block.style))
        if under:
            out.print(Text(" ".join(f"{int(block.kind is not None):>{width}}" for _ in row), style="bold"))

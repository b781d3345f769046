"""A look before a long run: a few prompts as the model sees them, and what it makes of them.

Nothing is written; the replies are for the eye.
"""

from __future__ import annotations

import asyncio

from rich.text import Text

from synthgen.client.api import client_for
from synthgen.client.bodies import chat_body
from synthgen.client.control import Control, api_key
from synthgen.client.launch import plain, serving_url
from synthgen.client.replies import ChatReply
from synthgen.corpus.config import RunConfig
from synthgen.corpus.console import console, printable
from synthgen.corpus.records import SeedPrompt
from synthgen.corpus.samples import SpanKind
from synthgen.errors import ServerMismatch
from synthgen.generate.traces import sampling_of
from synthgen.generate.transcript import PROMPT_STYLE, STYLES, print_part
from synthgen.seeds.selection import chosen


def preview(config: RunConfig, count: int) -> None:
    """Print `count` rendered prompts and their replies, thinking and response in different colours."""
    prompts = chosen(config).require_corpus(config.prompts).corpus[:count]
    with serving_url(config, plain(config)) as base_url:
        control = Control(base_url, api_key(config.server.api_key_env))
        control.require_model(config.verifier.served_name)
        for prompt, reply in zip(prompts, asyncio.run(_ask(config, base_url, prompts)), strict=True):
            _print(config, control, prompt, reply)


async def _ask(config: RunConfig, base_url: str, prompts: tuple[SeedPrompt, ...]) -> list[ChatReply]:
    most = config.generate.max_tokens
    async with client_for(
        config, base_url, concurrency=len(prompts), max_tokens=most, retried=False
    ) as client:
        name = config.verifier.served_name
        sent = [client.chat(chat_body(p, name, sampling_of(config, p))) for p in prompts]
        return [reply for reply, _ in await asyncio.gather(*sent)]


def _print(config: RunConfig, control: Control, prompt: SeedPrompt, reply: ChatReply) -> None:
    choice = reply.choices[0]
    if not reply.prompt_token_ids or not choice.token_ids:
        raise ServerMismatch("the server returns no token ids: it must know `return_token_ids`")
    name, message = config.verifier.served_name, choice.message
    console.rule(Text(printable(f"{prompt.domain} {prompt.id}"), style="bold"), align="left")
    print_part(console, "prompt", control.detokenize(name, list(reply.prompt_token_ids)), PROMPT_STYLE)
    thinking = message.reasoning or message.reasoning_content
    for kind, text in ((SpanKind.THINKING, thinking), (SpanKind.RESPONSE, message.content)):
        if text:
            print_part(console, kind, text, STYLES[kind])
    follow = f"; {len(prompt.turns)} more turns are not played here" if prompt.turns else ""
    console.print(f"{len(choice.token_ids)} tokens, {choice.finish_reason}{follow}", style="dim")

"""A scripted server that drafts: its replies come in verify steps, and its counters count them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from aiohttp import web

from tests.scripted_server import THINK_END, ScriptedServer, chat_reply, tokens_of

OUTPUT = [11, 12, THINK_END, 13, 14, 15, 16]
EVENTS = (1, 2, 1, 3)
"""The prompt's token, then steps that accept 1, 0 and 2 drafted tokens; `</think>` ends the first step."""


class DraftingServer:
    """Answers every prompt with OUTPUT. Without `events` it drafts nothing, and counts nothing of it."""

    def __init__(self, scripted: ScriptedServer, events: tuple[int, ...] = EVENTS) -> None:
        self.scripted = scripted
        self.events = events
        self.merged = False
        """Whether two steps come in one event."""
        self.output = OUTPUT
        self.started_at = 1000.0
        self.caching = False
        self.replies = 0
        self.foreign_tokens = 0
        self.drafts_counted = True
        self.before_reply: Callable[[], None] = lambda: None
        scripted.handler = self._answer
        self.count()

    def count(self) -> None:
        """Show in /metrics what was done so far."""
        accepted = [one - 1 for one in self.events[1:]]
        lines = [
            f"process_start_time_seconds {self.started_at}",
            f'vllm:cache_config_info{{block_size="16",enable_prefix_caching="{self.caching}"}} 1.0',
            f'vllm:generation_tokens_total{{engine="0"}} {self.replies * len(OUTPUT) + self.foreign_tokens}',
            f'vllm:time_to_first_token_seconds_count{{engine="0"}} {self.replies}',
            f'vllm:time_to_first_token_seconds_sum{{engine="0"}} {self.replies * 0.25}',
        ]
        if self.events:
            replies = self.replies if self.drafts_counted else 0
            spec = 'vllm:spec_decode_num_{}_total{{engine="0"}} {}'
            lines += [
                spec.format("drafts", replies * len(accepted)),
                spec.format("draft_tokens", replies * len(accepted) * 2),
                spec.format("accepted_tokens", replies * sum(accepted)),
            ]
            for position in (0, 1):
                count = replies * sum(one > position for one in accepted)
                label = f'engine="0",position="{position}"'
                lines.append(f"vllm:spec_decode_num_accepted_tokens_per_pos_total{{{label}}} {count}")
        self.scripted.counters = "\n".join(lines) + "\n"

    async def _answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        self.before_reply()
        prompt = [token for token, _ in tokens_of(self.scripted.template(body))]
        self.replies += 1
        self.count()
        if not body.get("stream"):
            return web.json_response(chat_reply(self.output, prompt_token_ids=prompt))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for chunk in self._chunks(prompt):
            await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    def _chunks(self, prompt: list[int]) -> list[dict[str, Any]]:
        events = (1, 3, 3) if self.merged else self.events or (1,) * len(OUTPUT)
        chunks: list[dict[str, Any]] = [{"choices": [{"delta": {}}], "prompt_token_ids": prompt}]
        at = 0
        for tokens in events:
            chunks.append({"choices": [{"delta": {}, "token_ids": self.output[at : at + tokens]}]})
            at += tokens
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(OUTPUT)}
        return [
            *chunks,
            {"choices": [{"delta": {}, "finish_reason": "stop"}]},
            {"choices": [], "usage": usage},
        ]

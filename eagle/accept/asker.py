"""Held-out prompts sent to a server greedily, one reply each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from synthgen.client.api import ApiClient, client_for
from synthgen.client.bodies import chat_body
from synthgen.corpus.config import RunConfig
from synthgen.corpus.console import Bar
from synthgen.corpus.records import Sampling, SeedPrompt
from synthgen.errors import ServerError


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A reply, and how long it took."""

    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    event_tokens: tuple[int, ...]
    """Tokens of each event when it was streamed."""
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """Sends prompts greedily and keeps the bar moving."""

    config: RunConfig
    progress: Bar

    def client(self, url: str, concurrency: int) -> ApiClient:
        """A session that sends nothing twice."""
        most = self.config.accept.max_tokens
        return client_for(self.config, url, concurrency=concurrency, max_tokens=most, retried=False)

    async def ask(
        self, client: ApiClient, prompt: SeedPrompt, *, stream: bool = False, counted: bool = True
    ) -> Answer:
        """The reply to a prompt. Raises ServerError when it has no token ids, and what the client raises."""
        sampling = Sampling(
            temperature=0.0,
            top_p=1.0,
            max_tokens=self.config.accept.max_tokens,
            thinking=self.config.generate.thinking,
        )
        body = chat_body(prompt, self.config.verifier.served_name, sampling, stream=stream)
        began = time.perf_counter()
        reply, _ = await client.chat(body)
        seconds = time.perf_counter() - began
        ids = reply.choices[0].token_ids if reply.choices else None
        if not ids or not reply.prompt_token_ids:
            raise ServerError(
                f"the server returned no token ids for held-out prompt {prompt.id}: it must be a vLLM that "
                f"knows return_token_ids"
            )
        if counted:
            self.progress.advance()
        return Answer(
            prompt_ids=reply.prompt_token_ids, ids=ids, event_tokens=reply.event_tokens, seconds=seconds
        )

    async def ask_all(
        self, url: str, prompts: Sequence[SeedPrompt], *, concurrency: int, stream: bool = False
    ) -> list[Answer]:
        """Replies in the order of the prompts, which are sent `concurrency` at a time."""
        gate = asyncio.Semaphore(concurrency)

        async def one(client: ApiClient, prompt: SeedPrompt) -> Answer:
            async with gate:
                return await self.ask(client, prompt, stream=stream)

        async with self.client(url, concurrency) as client, asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(client, prompt)) for prompt in prompts]
        return [task.result() for task in tasks]

    async def warm_up(self, url: str, prompt: SeedPrompt) -> Answer:
        """A reply that no figure has a part in."""
        async with self.client(url, 1) as client:
            return await self.ask(client, prompt, counted=False)

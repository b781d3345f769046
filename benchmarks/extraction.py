"""Hidden states of SmolLM2's replies on live vLLMs: captured with the replies, or by a second pass.

Two servers, one plain and one with the connector, and in each round, in turns:

    plain       the replies, from the plain server
    capture     the same requests to the other, which writes the states of each; the files are read
    bare        a prefill of the same tokens on the capturing server, whose states nobody asks for
    prefill     the same, with states, as `eagle extract` takes them

vLLM schedules ahead of itself by default, which costs more than it brings on two cores; the capturing server
doesn't. So the plain one doesn't either, unless told to (`--no-synchronous`).

    python -m benchmarks.extraction
"""

from __future__ import annotations

import asyncio
import dataclasses
import statistics
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from benchmarks.scratch import scratch
from eagle.prefill import Prefill, checked, take_states
from synthgen.client.api import ApiClient, client_for
from synthgen.client.bodies import chat_body
from synthgen.client.capture import states_file
from synthgen.client.launch import capturing, plain, started, uncached
from synthgen.corpus.config import RunConfig
from synthgen.corpus.records import Sampling, SeedPrompt
from synthgen.corpus.samples import Sample, Span, SpanKind
from synthgen.corpus.settings import load_config
from synthgen.corpus.verifier_config import read_shape
from synthgen.seeds.choose import split_prompts

ROOT = Path(__file__).parent.parent
MODEL = ROOT / ".cache/smollm2-135m"
STEPS = ("plain", "capture", "bare", "prefill")
SWAPPED = ("capture", "plain", "prefill", "bare")


class Clients:
    """The two servers' clients and what the steps share."""

    def __init__(self, config: RunConfig, urls: tuple[str, str], concurrency: int, tokens: int) -> None:
        self.config = config
        self.urls = urls
        self.shape = read_shape(MODEL)
        self.sampling = Sampling(temperature=0.7, top_p=1.0, max_tokens=tokens, thinking=False)
        self._concurrency = concurrency
        self._tokens = tokens

    def client(self, capture: bool) -> ApiClient:
        """A client of the plain server, or of the capturing one."""
        return client_for(
            self.config, self.urls[capture], concurrency=self._concurrency, max_tokens=self._tokens
        )

    async def in_turns(
        self, work: Callable[[Any], Awaitable[Any]], items: Iterable[Any], ahead: int = 1
    ) -> list[Any]:
        """`work` on every item, so many at a time; `ahead` times as many, where requests take turns below."""
        room = asyncio.Semaphore(self._concurrency * ahead)

        async def one(item: Any) -> Any:
            async with room:
                return await work(item)

        return await asyncio.gather(*(one(item) for item in items))

    async def generate(self, prompts: list[SeedPrompt], capture: bool) -> list[Sample]:
        """The replies, all of the same length; with `capture` their states are taken as well."""
        async with self.client(capture) as client:

            async def one(prompt: SeedPrompt) -> Sample:
                name = self.config.verifier.served_name
                body = chat_body(prompt, name, self.sampling, capture_tokens=4096 if capture else None)
                reply, _ = await client.chat(body | {"ignore_eos": True})
                output = reply.choices[0].token_ids or ()
                ids = (reply.prompt_token_ids or ()) + output
                spans = (Span(start=len(ids) - len(output), end=len(ids), kind=SpanKind.RESPONSE),)
                sample = Sample(id=prompt.id, domain="d", token_ids=ids, spans=spans)
                if capture:
                    path = states_file(reply.kv_transfer_params, self.config, self.urls[1])
                    checked(
                        sample, await take_states(path, client.is_healthy), self.shape, self.config.extract
                    )
                return sample

            return await self.in_turns(one, prompts)

    async def bare(self, samples: list[Sample]) -> None:
        """A prefill of the samples."""
        async with self.client(capture=True) as client:

            async def one(sample: Sample) -> None:
                body = {"model": self.config.verifier.served_name, "prompt": sample.token_ids}
                await client.complete(body | {"max_tokens": 1, "temperature": 0, "add_special_tokens": False})

            await self.in_turns(one, samples)

    async def prefill(self, samples: list[Sample]) -> None:
        """The same with states."""
        async with self.client(capture=True) as client:
            turns = asyncio.Semaphore(self._concurrency)
            source = Prefill(
                config=self.config, base_url=self.urls[1], client=client, shape=self.shape, turns=turns
            )
            await self.in_turns(source.states_of, samples, ahead=2)


def one_round(clients: Clients, prompts: list[SeedPrompt], number: int) -> dict[str, float]:
    """Seconds of each step; plain and capture, bare and prefill change places from round to round."""
    seconds = {}
    samples: list[Sample] = []
    for step in STEPS if number % 2 else SWAPPED:
        began = time.monotonic()
        match step:
            case "plain" | "capture":
                samples = asyncio.run(clients.generate(prompts, capture=step == "capture"))
            case "bare":
                asyncio.run(clients.bare(samples))
            case _:
                asyncio.run(clients.prefill(samples))
        seconds[step] = time.monotonic() - began
    tokens = sum(len(sample.token_ids) for sample in samples)
    output = sum(span.end - span.start for sample in samples for span in sample.spans)
    print(
        f"{len(samples)} replies: plain {output / seconds['plain']:.0f} tok/s, capture "
        f"{output / seconds['capture']:.0f} tok/s, prefill {tokens / seconds['prefill']:.0f} tok/s, "
        f"bare {tokens / seconds['bare']:.0f} tok/s"
    )
    return seconds


def main(
    prompts: Annotated[int, typer.Option(help="Replies in each round.")] = 128,
    tokens: Annotated[int, typer.Option(help="Tokens of each reply.")] = 128,
    concurrency: Annotated[int, typer.Option(help="Requests in flight.")] = 64,
    rounds: Annotated[int, typer.Option(help="The first one warms up and doesn't count.")] = 4,
    synchronous: Annotated[
        bool, typer.Option(help="Whether the plain server schedules as the other does, step by step.")
    ] = True,
) -> None:
    """Compare one pass with two; the last line is JSON."""
    with scratch() as place:
        overrides = (f"run_dir={place}", f"verifier.model={MODEL}", "server.port=8460")
        config = load_config(ROOT / "configs/smollm2-135m.yaml", overrides)
        chosen = list(split_prompts(config.prompts, config.seed).corpus[:prompts])
        began = time.monotonic()
        alone = uncached(plain(config))
        if synchronous:
            alone = dataclasses.replace(alone, arguments=(*alone.arguments, "--no-async-scheduling"))
        with started(config, alone, capturing(config, port_offset=1)) as servers:
            load_s = (time.monotonic() - began) / 2
            clients = Clients(config, (servers[0].base_url, servers[1].base_url), concurrency, tokens)
            measured = [one_round(clients, chosen, number) for number in range(rounds)][1:]
    ratios = {
        "capture_ratio": [one["plain"] / one["capture"] for one in measured],
        "one_pass_ratio": [(one["plain"] + one["prefill"]) / one["capture"] for one in measured],
        "prefill_ratio": [one["bare"] / one["prefill"] for one in measured],
        "one_pass_ratio_with_start": [
            (one["plain"] + load_s + one["prefill"]) / one["capture"] for one in measured
        ],
    }
    print({name: [round(value, 2) for value in values] for name, values in ratios.items()})
    result = {name: round(statistics.median(values), 3) for name, values in ratios.items()}
    print(msgspec.json.encode(result).decode())


if __name__ == "__main__":
    typer.run(main)

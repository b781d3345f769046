"""Hidden states of SmolLM2's replies on live vLLMs: captured with the replies, or by a second pass.

Two servers, one plain and one with the connector, and in each round, in turns:

    plain       the replies, from the plain server
    capture     the same requests to the other, which writes the states of each; the files are read
    bare        a prefill of the same tokens on the capturing server, whose states nobody asks for
    prefill     the same, with states, as `eagle extract` takes them

The last two several times in a round, each with the other beside it. What each step took of the processors is
printed too, by the client and by the servers, since elapsed time varies with the machine.

vLLM schedules ahead of itself by default, which costs more than it brings on two cores; the capturing server
doesn't. So the plain one doesn't either, unless told to (`--no-synchronous`).

    python -m benchmarks.extraction
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from benchmarks.scratch import scratch
from eagle.prefill import Prefill, checked, take_states, wanted_layers
from synthgen.client.api import ApiClient, client_for
from synthgen.client.bodies import chat_body
from synthgen.client.capture import states_file
from synthgen.client.launch import VllmProcess, capturing, plain, started, uncached
from synthgen.corpus.config import RunConfig
from synthgen.corpus.records import Sampling, SeedPrompt
from synthgen.corpus.samples import Sample, Span, SpanKind
from synthgen.corpus.settings import load_config
from synthgen.corpus.verifier_config import read_shape
from synthgen.seeds.choose import split_prompts

ROOT = Path(__file__).parent.parent
MODEL = ROOT / ".cache/smollm2-135m"
T = TypeVar("T")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Clients:
    """The two servers' clients and what the steps share."""

    def __init__(
        self, config: RunConfig, servers: Sequence[VllmProcess], concurrency: int, tokens: int
    ) -> None:
        self.config = config
        self.urls = [server.base_url for server in servers]
        self.groups = [server.group for server in servers]
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
                    layers, spool = wanted_layers(self.config.extract, self.shape), self.config.spool_path
                    path = states_file(reply.kv_transfer_params, layers, spool, self.urls[1])
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


@dataclasses.dataclass(frozen=True, slots=True)
class Cost:
    """What a step took: seconds, and seconds of a processor by the client and by both servers."""

    elapsed_s: float
    client_cpu_s: float
    servers_cpu_s: float


Costs = dict[str, list[Cost]]
"""By step, in the order in which they ran."""


def cpu_seconds(groups: Iterable[int]) -> float:
    """What the processes of these groups have used of the processors, all their threads together."""
    ticks = 0
    wanted = set(groups)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            continue
        if int(fields[2]) in wanted:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS_PER_S


def run_step(clients: Clients, work: Coroutine[Any, Any, T]) -> tuple[T, Cost]:
    """What `work` returns, and its cost."""
    began = time.monotonic(), time.process_time(), cpu_seconds(clients.groups)
    found = asyncio.run(work)
    ended = time.monotonic(), time.process_time(), cpu_seconds(clients.groups)
    return found, Cost(*(after - before for before, after in zip(began, ended, strict=True)))


def one_round(clients: Clients, prompts: list[SeedPrompt], number: int, pairs: int) -> Costs:
    """The cost of each step; plain and capture, bare and prefill change places from one time to the next."""
    costs: Costs = defaultdict(list)
    samples: list[Sample] = []
    for capture in (False, True) if number % 2 else (True, False):
        samples, cost = run_step(clients, clients.generate(prompts, capture))
        costs["capture" if capture else "plain"].append(cost)
    swapped = number % 2 == 0
    for step in itertools.islice(itertools.cycle(("bare", "prefill", "prefill", "bare")), 2 * pairs):
        with_states = (step == "prefill") != swapped
        _, cost = run_step(clients, clients.prefill(samples) if with_states else clients.bare(samples))
        costs["prefill" if with_states else "bare"].append(cost)
    prompt = sum(len(sample.token_ids) for sample in samples)
    output = sum(span.end - span.start for sample in samples for span in sample.spans)
    for step, found in costs.items():
        tokens = output if step in ("plain", "capture") else prompt
        for cost in found:
            print(
                f"{step:8} {tokens / cost.elapsed_s:6.0f} tok/s  {cost.elapsed_s:6.1f} s  "
                f"cpu: client {cost.client_cpu_s:5.2f} s, servers {cost.servers_cpu_s:6.1f} s",
                flush=True,
            )
    return costs


def main(
    prompts: Annotated[int, typer.Option(help="Replies in each round.")] = 128,
    tokens: Annotated[int, typer.Option(help="Tokens of each reply.")] = 128,
    concurrency: Annotated[int, typer.Option(help="Requests in flight.")] = 64,
    rounds: Annotated[int, typer.Option(help="The first one warms up and doesn't count.")] = 4,
    pairs: Annotated[int, typer.Option(help="Bare prefills, and prefills with states, in each round.")] = 2,
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
            clients = Clients(config, servers, concurrency, tokens)
            measured = [
                one_round(clients, chosen, number, pairs if number else 1) for number in range(rounds)
            ]
    ratios: dict[str, list[float]] = defaultdict(list)
    for costs in measured[1:]:
        seconds = {step: statistics.mean(cost.elapsed_s for cost in found) for step, found in costs.items()}
        two_passes = seconds["plain"] + seconds["prefill"]
        ratios["capture_ratio"].append(seconds["plain"] / seconds["capture"])
        ratios["one_pass_ratio"].append(two_passes / seconds["capture"])
        ratios["one_pass_ratio_with_start"].append((two_passes + load_s) / seconds["capture"])
        ratios["prefill_ratio"].append(seconds["bare"] / seconds["prefill"])
    print({name: [round(value, 2) for value in values] for name, values in ratios.items()})
    result = {name: round(statistics.median(values), 3) for name, values in ratios.items()}
    print(msgspec.json.encode(result).decode())


if __name__ == "__main__":
    typer.run(main)

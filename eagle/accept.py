"""The accept stage: what the draft is worth on a live server, by the server's own counters.

The verifier is served alone, with the draft, and (if wanted) with the same draft untrained. Held-out
prompts are answered greedily. The acceptance length comes from vLLM's spec_decode counters before
and after. One request at a time, the drafted server must give exactly the undrafted one's tokens,
and the time both take is the speed-up; servers take turns, so a slow spell of the machine falls on
all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field

from eagle.draft_check import check_draft
from synthgen.client.api import ApiClient, client_for
from synthgen.client.bodies import chat_body
from synthgen.client.control import Control, api_key
from synthgen.client.launch import Serving, drafting, plain, started, uncached
from synthgen.client.metrics import SpecCounters
from synthgen.corpus.config import RunConfig
from synthgen.corpus.console import Bar, bar, console
from synthgen.corpus.journal import read_journal
from synthgen.corpus.manifest import (
    Manifest,
    as_json,
    digest_of,
    manifest_of,
    read_manifest,
    require_fit,
    require_manifest,
    write_manifest,
)
from synthgen.corpus.records import Record, Sampling, SeedPrompt
from synthgen.corpus.verifier_files import shape_of
from synthgen.errors import ServerError, first_of

BASE, DRAFTED, UNTRAINED = "base", "drafted", "untrained"
UNTRAINED_FLAG = {"draft": "", "untrained": " --untrained"}
COUNTER_SETTLE_S = 0.5
"""The counters of a reply's last step may appear a moment after the reply."""


class AcceptanceReport(Record, frozen=True, kw_only=True):
    """What the draft is worth, counted live and greedily on held-out prompts."""

    acceptance_length: float
    """Mean tokens a verifier step yields, 1 without any acceptance."""
    rate_by_position: tuple[float, ...]
    """Part of the drafts accepted at each position."""
    length_by_domain: dict[str, float]
    acceptance_length_untrained: float | None
    prompts: int
    num_draft_tokens: int
    lossless: bool
    """Whether every greedy reply at concurrency 1 is the same, token for token, with the draft."""
    same_replies: int
    compared_replies: int
    tokens_per_s: float
    """Output tokens a second with the draft, one request at a time, median of the rounds."""
    tokens_per_s_undrafted: float
    speedup: float
    """Median over the rounds of the ratio within a round."""
    speedup_by_round: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One pass over the single prompts on one server: replies' ids, and seconds."""

    replies: tuple[tuple[int, ...], ...]
    seconds: float

    @property
    def tokens_per_s(self) -> float:
        """Output tokens a second."""
        return sum(map(len, self.replies)) / self.seconds


@dataclass(slots=True, kw_only=True)
class _Measured:
    """What was seen of each server, by its name."""

    rounds: dict[str, list[Round]] = field(default_factory=dict)
    counters: dict[str, dict[str, SpecCounters]] = field(default_factory=dict)
    prompts: int = 0


def accept(config: RunConfig) -> Manifest:
    """Measure the exported draft; return the manifest whose figures are the AcceptanceReport.

    Raises ArtifactError when the draft doesn't fit the verifier, before any server is started.
    """
    drafts = {"draft": config.export_path}
    if config.accept.untrained:
        drafts["untrained"] = config.untrained_path
    shape = shape_of(config.verifier)
    inputs = {}
    for name, path in drafts.items():
        inputs[name] = digest_of(require_manifest(path, f"eagle export CONFIG{UNTRAINED_FLAG[name]}"))
        check_draft(path, shape)
    settings = as_json({"accept": config.accept, "verifier": config.verifier})
    before = read_manifest(config.accept_path)
    if before is not None:
        require_fit(config.accept_path, before, settings=settings, inputs=inputs)
        console.print(f"accept: {config.accept_path} has the measurement of this draft")
        return before
    began = time.monotonic()
    report = _measure(config)
    manifest = manifest_of(
        "accept",
        settings=settings,
        inputs=inputs,
        figures=as_json(report),
        seconds=time.monotonic() - began,
    )
    write_manifest(config.accept_path, manifest)
    return manifest


def _measure(config: RunConfig) -> AcceptanceReport:
    heldout = list(read_journal(config.heldout_path, SeedPrompt))
    prompts, singles = heldout[: config.accept.prompts], heldout[: config.accept.single_prompts]
    servings = _servings(config)
    groups = [servings] if config.accept.servers_at_once else [{n: s} for n, s in servings.items()]
    measured = _Measured(prompts=len(prompts))
    drafts = len(servings) - 1
    total = 2 * len(singles) * config.accept.rounds + drafts * len(prompts)
    with contextlib.ExitStack() as stack:
        progress: Bar | None = None
        for group in groups:
            with started(config, *group.values()) as processes:
                urls = dict(zip(group, (p.base_url for p in processes), strict=True))
                progress = progress or stack.enter_context(bar("accept", total))
                _run(_visit(config, urls, prompts, singles, measured, progress))
    return report_of(config, measured)


def _run(visit: Coroutine[None, None, None]) -> None:
    """Run the requests; servers are started outside, where a Ctrl-C takes effect at once."""
    try:
        asyncio.run(visit)
    except BaseExceptionGroup as errors:
        raise first_of(errors) from errors


def _servings(config: RunConfig) -> dict[str, Serving]:
    servings = {
        BASE: plain(config, name=BASE),
        DRAFTED: drafting(config, config.export_path, port_offset=1, name=DRAFTED),
    }
    if config.accept.untrained:
        servings[UNTRAINED] = drafting(config, config.untrained_path, port_offset=2, name=UNTRAINED)
    return {name: uncached(serving) for name, serving in servings.items()}


async def _visit(
    config: RunConfig,
    urls: dict[str, str],
    prompts: list[SeedPrompt],
    singles: list[SeedPrompt],
    measured: _Measured,
    progress: Bar,
) -> None:
    asker = _Asker(config=config, progress=progress)
    for url in urls.values():
        await asker.ask_all(url, singles[:1], concurrency=1, warm_up=True)
    timed = {name: url for name, url in urls.items() if name != UNTRAINED}
    for _ in range(config.accept.rounds):
        for name, taken in (await asker.take_turns(timed, singles)).items():
            measured.rounds.setdefault(name, []).append(taken)
    for name, url in urls.items():
        if name != BASE:
            measured.counters[name] = await asker.count_by_domain(url, prompts)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asker:
    """Sends prompts greedily and keeps the bar moving."""

    config: RunConfig
    progress: Bar

    def _client(self, url: str, concurrency: int) -> ApiClient:
        most = self.config.accept.max_tokens
        return client_for(self.config, url, concurrency=concurrency, max_tokens=most, retried=False)

    async def _ask(self, client: ApiClient, prompt: SeedPrompt) -> tuple[int, ...]:
        sampling = Sampling(
            temperature=0.0,
            top_p=1.0,
            max_tokens=self.config.accept.max_tokens,
            thinking=self.config.generate.thinking,
        )
        reply, _ = await client.chat(chat_body(prompt, self.config.verifier.served_name, sampling))
        ids = reply.choices[0].token_ids
        if not ids:
            raise ServerError("the server returned no token ids for a held-out prompt")
        return ids

    async def ask_all(
        self, url: str, prompts: list[SeedPrompt], *, concurrency: int, warm_up: bool = False
    ) -> None:
        """Send prompts, `concurrency` at a time."""
        gate = asyncio.Semaphore(concurrency)

        async def one(client: ApiClient, prompt: SeedPrompt) -> None:
            async with gate:
                await self._ask(client, prompt)
            if not warm_up:
                self.progress.advance()

        async with self._client(url, concurrency) as client, asyncio.TaskGroup() as group:
            for prompt in prompts:
                group.create_task(one(client, prompt))

    async def take_turns(self, urls: dict[str, str], prompts: list[SeedPrompt]) -> dict[str, Round]:
        """Each prompt goes to every server in turn, one request at a time, first in changing order."""
        seconds = dict.fromkeys(urls, 0.0)
        replies: dict[str, list[tuple[int, ...]]] = {name: [] for name in urls}
        async with contextlib.AsyncExitStack() as stack:
            clients = {n: await stack.enter_async_context(self._client(url, 1)) for n, url in urls.items()}
            for number, prompt in enumerate(prompts):
                for name in list(clients)[:: 1 if number % 2 else -1]:
                    began = time.perf_counter()
                    replies[name].append(await self._ask(clients[name], prompt))
                    seconds[name] += time.perf_counter() - began
                    self.progress.advance()
        return {name: Round(replies=tuple(replies[name]), seconds=seconds[name]) for name in urls}

    async def count_by_domain(self, url: str, prompts: list[SeedPrompt]) -> dict[str, SpecCounters]:
        """What the server counted for each domain's prompts."""
        control = Control(url, api_key(self.config.server.api_key_env))
        counted = {}
        for domain, group in _by_domain(prompts):
            before = await asyncio.to_thread(control.spec_counters)
            await self.ask_all(url, group, concurrency=self.config.accept.concurrency)
            await asyncio.sleep(COUNTER_SETTLE_S)
            counted[domain] = (await asyncio.to_thread(control.spec_counters)).since(before)
        return counted


def _by_domain(prompts: list[SeedPrompt]) -> Iterator[tuple[str, list[SeedPrompt]]]:
    for domain in sorted({prompt.domain for prompt in prompts}):
        yield domain, [prompt for prompt in prompts if prompt.domain == domain]


def report_of(config: RunConfig, measured: _Measured) -> AcceptanceReport:
    """Put what was measured into a report."""
    base, drafted = measured.rounds[BASE], measured.rounds[DRAFTED]
    by_domain = measured.counters[DRAFTED]
    overall = SpecCounters.total(by_domain.values())
    untrained = measured.counters.get(UNTRAINED)
    pairs = [
        (left, right)
        for one, other in zip(base, drafted, strict=True)
        for left, right in zip(one.replies, other.replies, strict=True)
    ]
    same = sum(left == right for left, right in pairs)
    ratios = tuple(d.tokens_per_s / b.tokens_per_s for b, d in zip(base, drafted, strict=True))
    return AcceptanceReport(
        acceptance_length=overall.acceptance_length,
        rate_by_position=tuple(overall.rate_by_position),
        length_by_domain={domain: counters.acceptance_length for domain, counters in by_domain.items()},
        acceptance_length_untrained=SpecCounters.total(untrained.values()).acceptance_length
        if untrained
        else None,
        prompts=measured.prompts,
        num_draft_tokens=config.accept.num_draft_tokens,
        lossless=same == len(pairs),
        same_replies=same,
        compared_replies=len(pairs),
        tokens_per_s=statistics.median(r.tokens_per_s for r in drafted),
        tokens_per_s_undrafted=statistics.median(r.tokens_per_s for r in base),
        speedup=statistics.median(ratios),
        speedup_by_round=ratios,
    )

"""The load gate: whether a server that loads a draft proposes what the trainer's own draft does.

The verifier is served with the draft, and held-out prompts are answered greedily, one at a time; the server's
counters say what it accepted at each position. Then the same verifier is served with the capturing connector,
and its states along these very replies give what our draft proposes: see eagle/walk.py. Both ran in bfloat16,
so two tokens that are nearly as likely may change places: the tokens that a step yields may differ by
LENGTH_WITHIN, the share accepted at a position by RATE_WITHIN. What a server counts beyond a reply's end is
not seen, so the length is taken from the replies themselves: their tokens over the server's steps.

Axes: S draft positions, K draft vocabulary.
"""

from __future__ import annotations

import asyncio
import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

from eagle.draft import Draft, empty_draft
from eagle.draft_check import Mismatch
from eagle.draft_files import HEAD, DraftFiles, known_tokens, read_draft
from eagle.draft_fit import config_of
from eagle.prefill import Prefill
from eagle.states import SampleStates
from eagle.verifier import weights_of
from eagle.walk import Walk, hits, proposals, walk
from synthgen.client.api import client_for
from synthgen.client.bodies import chat_body
from synthgen.client.control import Control, api_key
from synthgen.client.launch import capturing, drafting, started, uncached
from synthgen.client.metrics import SpecCounters
from synthgen.corpus.config import RunConfig
from synthgen.corpus.console import bar
from synthgen.corpus.journal import read_journal
from synthgen.corpus.records import Record, Sampling, SeedPrompt
from synthgen.corpus.samples import Sample
from synthgen.corpus.verifier_files import shape_of
from synthgen.errors import ArtifactError, ServerError

LENGTH_WITHIN = 0.03
RATE_WITHIN = 0.05
COUNTER_SETTLE_S = 0.5
"""The counters of a reply's last step may appear a moment after the reply."""
TOO_FEW = 1.05
"""A draft of which less is accepted says nothing: loaded rightly or wrongly it looks the same."""


class LoadReport(Record, frozen=True, kw_only=True):
    """What is accepted along the same replies, and predicted; rates at least and at most, for their ends."""

    prompts: int
    reply_tokens: int
    drafts: int
    drafts_predicted: int
    length: float
    """Tokens that a step yields: those of the replies, each one's first aside, over the drafts."""
    length_predicted: float
    rates: tuple[float, ...]
    rates_least: tuple[float, ...]
    rates_most: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reply:
    prompt: tuple[int, ...]
    output: tuple[int, ...]

    def sample(self, number: int) -> Sample:
        """To be asked for its states: no slot reads those of the last token."""
        return Sample(id=f"gate-{number}", domain="", token_ids=(self.prompt + self.output)[:-1], spans=())


def load_gate(config: RunConfig, source: str) -> tuple[LoadReport, list[Mismatch]]:
    """Serve the run's verifier with a draft, then capturing; return what was counted, and what is wrong.

    The draft is a directory here. Raises ArtifactError without held-out prompts or when the draft can't be
    computed, ServerStartError with vLLM's own words when it can't load the draft.
    """
    files = read_draft(source)
    draft = _loaded(files)
    prompts = list(read_journal(config.heldout_path, SeedPrompt))[: config.accept.single_prompts]
    if not prompts:
        raise ArtifactError(
            f"{config.heldout_path} has no prompts to ask: run `synthgen generate CONFIG` with "
            f"prompts.heldout"
        )
    serving = uncached(drafting(config, Path(source), name="gate"))
    with started(config, serving) as (process,):
        replies, counted = asyncio.run(_answered(config, process.base_url, prompts))
    with started(config, capturing(config)) as (process,):
        states = asyncio.run(_captured(config, process.base_url, replies))
    predicted = _predicted(config, files, draft, replies, states)
    if not counted.drafts or not predicted.drafts:
        raise ServerError("nothing was drafted: the replies are too short, raise accept.max_tokens")
    report = _report(replies, counted, predicted)
    return report, wrong_in(report)


def wrong_in(report: LoadReport) -> list[Mismatch]:
    """A line for each figure in which the server is further from the trainer's draft than is allowed."""
    found = []
    if abs(report.length / report.length_predicted - 1) > LENGTH_WITHIN:
        found.append(
            Mismatch(
                what="served with vLLM: acceptance length",
                found=f"{report.length:.3f}",
                expected=f"{report.length_predicted:.3f}, within {LENGTH_WITHIN:.0%}",
                why="the server proposes other tokens than the trainer's draft on the verifier's states",
            )
        )
    bounds = zip(report.rates, report.rates_least, report.rates_most, strict=True)
    for position, (rate, least, most) in enumerate(bounds, 1):
        if not least - RATE_WITHIN <= rate <= most + RATE_WITHIN:
            found.append(
                Mismatch(
                    what=f"served with vLLM: accepted at position {position}",
                    found=f"{rate:.1%}",
                    expected=f"{least:.1%} to {most:.1%}, within {100 * RATE_WITHIN:.0f} points",
                )
            )
    return found


def gate_notes(report: LoadReport) -> list[str]:
    """What limits the finding."""
    if report.length_predicted >= TOO_FEW:
        return []
    return [
        f"the trainer's draft, too, has an acceptance length of only {report.length_predicted:.3f}: the gate "
        f"can't tell a draft that is loaded wrongly from one that knows nothing"
    ]


def _loaded(files: DraftFiles) -> Draft:
    """The trainer's draft with the weights of the files, in float32."""
    config = config_of(files.config)
    rows = files.places[HEAD].shape[0] if HEAD in files.places else 0
    draft = empty_draft(config, int(files.config["hidden_size"]), rows)
    with torch.no_grad():
        for name, weight in draft.named_parameters():
            if name not in files.places:
                raise ArtifactError(
                    f"{files.path}: tensor `{name}` is missing: see `eagle verify draft` alone"
                )
            weight.copy_(files.tensor(name))
    return draft


async def _answered(
    config: RunConfig, base_url: str, prompts: Sequence[SeedPrompt]
) -> tuple[list[_Reply], SpecCounters]:
    control = Control(base_url, api_key(config.server.api_key_env))
    sampling = Sampling(
        temperature=0.0, top_p=1.0, max_tokens=config.accept.max_tokens, thinking=config.generate.thinking
    )
    replies = []
    before = await asyncio.to_thread(control.spec_counters)
    client = client_for(config, base_url, concurrency=1, max_tokens=sampling.max_tokens, retried=False)
    async with client:
        with bar("gate: replies", len(prompts)) as progress:
            for prompt in prompts:
                reply, _ = await client.chat(chat_body(prompt, config.verifier.served_name, sampling))
                output = reply.choices[0].token_ids
                if not output or not reply.prompt_token_ids:
                    raise ServerError("the server returned no token ids for a held-out prompt")
                replies.append(_Reply(prompt=reply.prompt_token_ids, output=output))
                progress.advance()
    await asyncio.sleep(COUNTER_SETTLE_S)
    return replies, (await asyncio.to_thread(control.spec_counters)).since(before)


async def _captured(config: RunConfig, base_url: str, replies: Sequence[_Reply]) -> list[SampleStates]:
    """The verifier's states along each reply, as they are: whatever the run stores them in."""
    extract = msgspec.structs.replace(config.extract, states_dtype="bfloat16", final_states="all")
    client = client_for(config, base_url, concurrency=1, max_tokens=config.accept.max_tokens)
    async with client:
        prefill = Prefill(
            config=msgspec.structs.replace(config, extract=extract),
            base_url=base_url,
            client=client,
            shape=shape_of(config.verifier),
            turns=asyncio.Semaphore(1),
        )
        found = []
        with bar("gate: states", len(replies)) as progress:
            for number, reply in enumerate(replies):
                found.append(await prefill.states_of(reply.sample(number)))
                progress.advance()
        return found


def _predicted(
    config: RunConfig,
    files: DraftFiles,
    draft: Draft,
    replies: Sequence[_Reply],
    states: Sequence[SampleStates],
) -> Walk:
    shape, embedding_VH = shape_of(config.verifier), weights_of(config.verifier).embedding_VH
    target_ids_K = known_tokens(files, shape.vocab_size)
    walks = []
    for reply, of_reply in zip(replies, states, strict=True):
        ids_T = torch.tensor(reply.prompt + reply.output)
        aux_T3H = of_reply.aux.read().float()
        aux_T3H = torch.cat((aux_T3H, torch.zeros_like(aux_T3H[: len(ids_T) - len(aux_T3H)])))
        embeddings_TH = embedding_VH[ids_T].float()
        steps = config.accept.num_draft_tokens[0]
        proposals_SN = proposals(draft, aux_T3H, embeddings_TH, target_ids_K, steps)
        walks.append(walk(hits(proposals_SN, ids_T), len(reply.prompt)))
    return functools.reduce(operator.add, walks)


def _report(replies: Sequence[_Reply], counted: SpecCounters, predicted: Walk) -> LoadReport:
    drafts, tokens = max(predicted.drafts, 1), sum(len(reply.output) - 1 for reply in replies)
    return LoadReport(
        prompts=len(replies),
        reply_tokens=sum(len(reply.output) for reply in replies),
        drafts=int(counted.drafts),
        drafts_predicted=predicted.drafts,
        length=tokens / max(counted.drafts, 1),
        length_predicted=tokens / drafts,
        rates=tuple(counted.rate_by_position),
        rates_least=tuple(count / drafts for count in predicted.least_S),
        rates_most=tuple(count / drafts for count in predicted.most_S),
    )

"""The draft offline on the replies that were just counted: their states, from a capturing server.

The replies go back as token ids, so it is judged on the very tokens that the drafted server gave.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from eagle.accept.live import Counted
from eagle.accept.steps import reply_spans
from eagle.batches import Document, has_targets, join
from eagle.prefill import Prefill
from synthgen.client.api import client_for
from synthgen.client.control import Markers
from synthgen.corpus.config import RunConfig
from synthgen.corpus.console import Bar
from synthgen.corpus.samples import Sample, Span
from synthgen.corpus.verifier_files import shape_of


def samples_of(config: RunConfig, counted: Counted, markers: Markers) -> list[Sample]:
    """The replies as samples, cut as extraction cuts; those that are cut before their reply are left out."""
    samples = []
    for prompt, answer in counted.answers:
        offset = len(answer.prompt_ids)
        spans = reply_spans(answer.ids, markers, thinking=config.generate.thinking)
        sample = Sample(
            id=prompt.id,
            domain=prompt.domain,
            token_ids=answer.prompt_ids + answer.ids,
            spans=tuple(Span(start=s.start + offset, end=s.end + offset, kind=s.kind) for s in spans),
        )
        if offset < config.extract.max_seq_tokens - 1:
            samples.append(sample.cut(config.extract.max_seq_tokens))
    return samples


async def reply_documents(
    config: RunConfig, base_url: str, samples: Sequence[Sample], progress: Bar
) -> list[Document]:
    """The samples with their states, which a capturing server computes; all of them are in memory then.

    Raises what `Prefill.states_of` raises.
    """
    at_once, longest = config.accept.concurrency, config.extract.max_seq_tokens
    async with client_for(config, base_url, concurrency=at_once, max_tokens=longest) as client:
        prefill = Prefill(
            config=config,
            base_url=base_url,
            client=client,
            shape=shape_of(config.verifier),
            turns=asyncio.Semaphore(at_once),
        )

        async def one(sample: Sample) -> Document:
            document = join(await prefill.states_of(sample), sample, longest)
            progress.advance()
            return document

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(sample)) for sample in samples]
    return [document for task in tasks if has_targets(document := task.result())]

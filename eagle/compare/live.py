"""A draft on a live server: the held-out prompts once, greedily; no other server beside it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

from eagle.accept.asker import Asker
from eagle.accept.live import Counted, count
from eagle.accept.measure import while_alive
from eagle.accept.servers import DRAFTED, Server, require_drafting
from eagle.accept.steps import PromptSteps
from eagle.accept.traps import other_requests
from eagle.draft_files import read_draft
from synthgen.client.control import Control, Markers, api_key
from synthgen.client.launch import drafting, started, uncached
from synthgen.corpus.config import RunConfig
from synthgen.corpus.console import bar, console
from synthgen.corpus.journal import read_journal, write_journal
from synthgen.corpus.manifest import (
    Manifest,
    as_json,
    manifest_of,
    read_manifest,
    require_fit,
    write_manifest,
)
from synthgen.corpus.records import SeedPrompt
from synthgen.errors import ArtifactError

PROMPTS_NAME = "prompts.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a draft did for the held-out prompts."""

    manifest: Manifest
    steps: tuple[PromptSteps, ...]
    """Of each reply that shows its steps; none where the server's events are not the steps."""


def heldout_prompts(config: RunConfig) -> list[SeedPrompt]:
    """The prompts that all drafts get. Raises ArtifactError when there are none."""
    found = list(read_journal(config.heldout_path, SeedPrompt))[: config.accept.prompts]
    if not found:
        raise ArtifactError(
            f"{config.heldout_path} has no held-out prompts: run `synthgen generate CONFIG` first, with "
            f"prompts.heldout more than 0"
        )
    return found


def measured(config: RunConfig, name: str, draft: Path, directory: Path) -> Measured:
    """Measure a draft on a server of its own, unless `directory` has that already.

    Raises ArtifactError when what is there is of another draft, ServerError as `eagle accept` does.
    """
    accept = config.accept
    prompts = heldout_prompts(config)
    settings = as_json(
        {
            "num_draft_tokens": accept.num_draft_tokens[0],
            "max_tokens": accept.max_tokens,
            "concurrency": accept.concurrency,
            "prompts": [prompt.id for prompt in prompts],
            "verifier": config.verifier,
        }
    )
    inputs = {"draft": read_draft(str(draft)).sha256()}
    found = read_manifest(directory)
    if found is not None:
        remedy = f"set it back, or remove {directory} to measure anew"
        require_fit(directory, found, settings=settings, inputs=inputs, remedy=remedy)
        console.print(f"compare: {directory} has the measurement of {name}", soft_wrap=True)
    else:
        began = time.monotonic()
        counted, markers, warnings = _counted(config, name, draft, prompts)
        steps = counted.prompt_steps(name, markers, thinking=config.generate.thinking)
        write_journal(directory / PROMPTS_NAME, steps if counted.shows_steps else [])
        found = manifest_of(
            "accept",
            settings=settings,
            inputs=inputs,
            figures={
                "acceptance_length": counted.whole.acceptance_length,
                "rate_by_position": counted.whole.rate_by_position,
                "drafts": counted.whole.drafts,
                "steps_seen": counted.steps_seen,
                "warnings": warnings,
            },
            seconds=time.monotonic() - began,
        )
        write_manifest(directory, found)
    return Measured(manifest=found, steps=tuple(read_journal(directory / PROMPTS_NAME, PromptSteps)))


def _counted(
    config: RunConfig, name: str, draft: Path, prompts: list[SeedPrompt]
) -> tuple[Counted, Markers, list[str]]:
    """What the server counted, the tokens that bound spans, and what to mistrust."""
    serving = uncached(drafting(config, draft, name=f"compare-{name}"))
    with started(config, serving) as (process,), bar(f"accept {name}", len(prompts)) as progress:
        control = Control(process.base_url, api_key(config.server.api_key_env))
        server = Server(name=DRAFTED, control=control, require_alive=process.require_alive)
        asker = Asker(config=config, progress=progress)
        counted = while_alive(_visit(asker, server, prompts), [server])
        return counted, control.markers(config.verifier), other_requests(server, counted)


async def _visit(asker: Asker, server: Server, prompts: list[SeedPrompt]) -> Counted:
    require_drafting(server, await asyncio.to_thread(server.control.counts))
    await asker.warm_up(server.url, prompts[0])
    return await count(asker, server, prompts, asker.config.accept.concurrency)

"""A draft on a live server: the held-out prompts once, greedily; no other server beside it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle.accept.asker import Asker
from eagle.accept.live import Counted, count
from eagle.accept.measure import while_alive
from eagle.accept.servers import DRAFTED, Server, require_drafting
from eagle.accept.steps import PromptSteps
from eagle.accept.traps import other_requests
from eagle.draft_files import read_draft
from synthgen.client.control import Control, api_key
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
    settings, inputs = settings_of(config), {"draft": read_draft(str(draft)).sha256()}
    found = read_manifest(directory)
    if found is None:
        serving = uncached(drafting(config, draft, name=f"compare-{name}"))
        with started(config, serving) as (process,):
            control = Control(process.base_url, api_key(config.server.api_key_env))
            server = Server(name=DRAFTED, control=control, require_alive=process.require_alive)
            found = measure_on(config, name, server, inputs, directory)
    else:
        remedy = f"set it back, or remove {directory} to measure anew"
        require_fit(directory, found, settings=settings, inputs=inputs, remedy=remedy)
        console.print(f"compare: {directory} has the measurement of {name}", soft_wrap=True)
    return Measured(manifest=found, steps=tuple(read_journal(directory / PROMPTS_NAME, PromptSteps)))


def settings_of(config: RunConfig) -> dict[str, Any]:
    """What a measurement depends on beside the draft."""
    accept = config.accept
    settings: dict[str, Any] = as_json(
        {
            "num_draft_tokens": accept.num_draft_tokens[0],
            "max_tokens": accept.max_tokens,
            "concurrency": accept.concurrency,
            "prompts": [prompt.id for prompt in heldout_prompts(config)],
            "verifier": config.verifier,
        }
    )
    return settings


def measure_on(
    config: RunConfig, name: str, server: Server, inputs: dict[str, str], directory: Path
) -> Manifest:
    """Measure the draft of a server that is up; write the steps of its replies and return the manifest."""
    began, prompts = time.monotonic(), heldout_prompts(config)
    with bar(f"accept {name}", len(prompts)) as progress:
        counted = while_alive(_visit(Asker(config=config, progress=progress), server, prompts), [server])
    markers = server.control.markers(config.verifier)
    steps = counted.prompt_steps(name, markers, thinking=config.generate.thinking)
    write_journal(directory / PROMPTS_NAME, steps if counted.shows_steps else [])
    manifest = manifest_of(
        "accept",
        settings=settings_of(config),
        inputs=inputs,
        figures={
            "acceptance_length": counted.whole.acceptance_length,
            "rate_by_position": counted.whole.rate_by_position,
            "drafts": counted.whole.drafts,
            "steps_seen": counted.steps_seen,
            "warnings": other_requests(server, counted),
        },
        seconds=time.monotonic() - began,
    )
    write_manifest(directory, manifest)
    return manifest


async def _visit(asker: Asker, server: Server, prompts: list[SeedPrompt]) -> Counted:
    require_drafting(server, await server.counts())
    await asker.warm_up(server.url, prompts[0])
    return await count(asker, server, prompts, asker.config.accept.concurrency)

"""The accept stage: what the draft is worth on a live server, and on hidden states beside it.

The verifier is served alone, with the draft, and (if wanted) with the same draft untrained or with other
numbers of draft tokens. Held-out prompts are answered greedily. The acceptance length comes from vLLM's
spec_decode counters before and after; the replies' own steps tell it by span and by prompt. Without a batch
the drafted server must give exactly the undrafted one's tokens, and the time both take is the speed-up.

Servers that run already (`--url`) are measured as they are; nothing is started then.
"""

from __future__ import annotations

import time
from pathlib import Path

from eagle.accept.measure import Given, measure, measure_given
from eagle.accept.servers import UNTRAINED
from eagle.export import check_draft
from synthgen.corpus.config import RunConfig
from synthgen.corpus.console import console
from synthgen.corpus.journal import write_journal
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
from synthgen.corpus.verifier_files import shape_of

PROMPTS_NAME = "prompts.jsonl"
DRAFT = "draft"
UNTRAINED_FLAG = {DRAFT: "", UNTRAINED: " --untrained"}


def accept(config: RunConfig) -> Manifest:
    """Measure the exported draft; return the manifest whose figures are the AcceptanceReport.

    Raises ArtifactError when the draft doesn't fit the verifier, before any server is started.
    """
    shape, inputs = shape_of(config.verifier), {}
    drafts = {DRAFT: config.export_path}
    if config.accept.untrained:
        drafts[UNTRAINED] = config.untrained_path
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
    report, steps = measure(config)
    manifest = manifest_of(
        "accept",
        settings=settings,
        inputs=inputs,
        figures=as_json(report),
        seconds=time.monotonic() - began,
    )
    write_journal(config.accept_path / PROMPTS_NAME, steps)
    write_manifest(config.accept_path, manifest)
    return manifest


def given_path(config: RunConfig) -> Path:
    """Where a measurement of servers that run already is written."""
    return config.run_path / "accept-url"


def accept_given(config: RunConfig, given: Given) -> Manifest:
    """Measure servers that run already, anew each time; what is written is the run's `accept-url`."""
    began = time.monotonic()
    report, steps = measure_given(config, given)
    directory = given_path(config)
    manifest = manifest_of(
        "accept",
        settings=as_json({"accept": config.accept, "verifier": config.verifier, "url": given.url}),
        inputs={},
        figures=as_json(report),
        seconds=time.monotonic() - began,
    )
    write_journal(directory / PROMPTS_NAME, steps)
    write_manifest(directory, manifest)
    return manifest

"""A run directory around traces that are given: the dataset, the states of a live server, the vocabulary.

Traces are `traces.jsonl.gz` with rows `{id, source, split: train | heldout, prompt_token_ids, token_ids,
finish_reason, text}`, and `prompts_train.jsonl` and `prompts_heldout.jsonl` with `{id, source, prompt}`, as
the training of several tools was compared on.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eagle.extract import extract
from eagle.vocab import make_vocab
from synthgen.corpus.config import RunConfig
from synthgen.corpus.journal import write_journal
from synthgen.corpus.manifest import manifest_of, read_manifest, write_manifest
from synthgen.corpus.records import Finish, Message, Sampling, prompt_key
from synthgen.corpus.samples import DatasetRow, Origin, Span, SpanKind
from synthgen.corpus.settings import load_config

ROOT = Path(__file__).parent.parent
MODEL = ROOT / ".cache/smollm2-135m"
SAMPLING = Sampling(temperature=0.7, top_p=1.0, max_tokens=256, thinking=False)


def smollm2_config(run_dir: Path, *overrides: str) -> RunConfig:
    """The config of SmolLM2 for a run of these traces."""
    placed = (f"run_dir={run_dir}", f"verifier.model={MODEL}", "server.port=8470")
    return load_config(ROOT / "configs/smollm2-135m.yaml", (*placed, *overrides))


def prepare(config: RunConfig, traces: Path) -> None:
    """Make what is missing of dataset, states and vocabulary."""
    if read_manifest(config.dataset_path) is None:
        prompts = given_prompts(traces)
        config.dataset_path.mkdir(parents=True, exist_ok=True)
        for split, path in (("train", config.train_path), ("heldout", config.validation_path)):
            write_journal(path, [row_of(row, prompts[row["id"]]) for row in given_rows(traces, split)])
        manifest = manifest_of("mix", settings={}, inputs={}, figures={}, seconds=0.0)
        write_manifest(config.dataset_path, manifest)
    extract(config)
    make_vocab(config)


def row_of(row: dict[str, Any], prompt: str) -> DatasetRow:
    """A given trace as a row of a dataset; its source is its domain."""
    ids = (*row["prompt_token_ids"], *row["token_ids"])
    messages = (Message(role="user", content=prompt),)
    return DatasetRow(
        id=row["id"],
        domain=row["source"],
        token_ids=ids,
        spans=(Span(start=len(row["prompt_token_ids"]), end=len(ids), kind=SpanKind.RESPONSE),),
        part="native",
        source=row["source"],
        origin=Origin.NATIVE,
        prompt=prompt_key(messages),
        messages=messages,
        response=row["text"],
        finish=Finish(row["finish_reason"]),
        sampling=SAMPLING,
        server="given",
    )


def given_rows(traces: Path, split: str) -> Iterator[dict[str, Any]]:
    """The traces of `train` or `heldout`."""
    with gzip.open(traces / "traces.jsonl.gz", "rt") as lines:
        for line in lines:
            if (row := json.loads(line))["split"] == split:
                yield row


def given_prompts(traces: Path) -> dict[str, str]:
    """The text of every prompt, by id."""
    prompts = {}
    for name in ("prompts_train.jsonl", "prompts_heldout.jsonl"):
        rows = (json.loads(line) for line in (traces / name).read_text().splitlines())
        prompts.update({row["id"]: row["prompt"] for row in rows})
    return prompts

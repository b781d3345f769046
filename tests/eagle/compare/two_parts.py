"""A tiny run whose mix has two parts: traces, and as many replies of others with other prompts."""

from __future__ import annotations

from pathlib import Path

from eagle.vocab import make_vocab
from synthgen.corpus.config import RunConfig
from synthgen.corpus.journal import write_journal
from synthgen.corpus.manifest import manifest_of, write_manifest
from synthgen.corpus.records import Message, SeedPrompt
from tests.eagle.tiny import tiny_config, trace, write_states, write_verifier
from tests.rows import row_of

GENERIC = "{name: generic, share: 0.5, traces: null, replies: others.jsonl}"
NATIVE = "{name: native, share: 0.5, traces: [], replies: null}"


def two_parts(directory: Path, **settings: str) -> RunConfig:
    """The config of such a run."""
    return tiny_config(
        directory, **{"mix__parts": f"[{GENERIC}, {NATIVE}]", "train__epochs": "1", **settings}
    )


def write_two_parts(config: RunConfig, samples: int = 12) -> None:
    """All that `eagle compare` reads; `samples` of each part, those of the first with longer prompts."""
    write_verifier(Path(config.verifier.model))
    generic = [trace(number, prompt=9 + number % 4, output=6 + number % 5) for number in range(samples)]
    native = [trace(50 + number, prompt=3, output=8 + number % 12) for number in range(samples)]
    config.dataset_path.mkdir(parents=True)
    rows = [row_of(one, "generic") for one in generic] + [row_of(one, "native") for one in native]
    write_journal(config.train_path, rows)
    write_journal(config.validation_path, [])
    write_manifest(config.dataset_path, manifest_of("mix", settings={}, inputs={}, figures={}, seconds=1.0))
    write_states(config, generic + native)
    make_vocab(config)
    prompt = SeedPrompt(
        id="p", source="test", domain="count", messages=(Message(role="user", content="count on"),)
    )
    config.corpus_path.mkdir(parents=True)
    write_journal(config.heldout_path, [prompt])

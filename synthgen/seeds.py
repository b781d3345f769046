"""The prompts of a run, and their split between corpus and held-out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.markup import escape

from synthgen.corpus.console import console
from synthgen.corpus.records import SeedPrompt
from synthgen.corpus.sections import OnBadRow, PromptsConfig
from synthgen.errors import InputError
from synthgen.sources.prompt_file import PromptFile


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSplit:
    """Prompts of a run: those that become traces, and those that are kept for acceptance."""

    corpus: tuple[SeedPrompt, ...]
    heldout: tuple[SeedPrompt, ...]


def split_prompts(config: PromptsConfig, seed: int, heldout: tuple[SeedPrompt, ...] = ()) -> PromptSplit:
    """Read the files and split by hash, so that the order of files and lines doesn't matter.

    `heldout` is a set that was drawn before: it stays what it is, whatever was added to the files.
    Duplicates are dropped. Raises InputError when a file can't be read, a row is refused or too few prompts
    are left.
    """
    prompts: dict[str, SeedPrompt] = {}
    for name in config.sources:
        for prompt in read_prompts(Path(name), config.field, config.on_bad_row):
            prompts.setdefault(prompt.id, prompt)
    if len(prompts) <= config.heldout:
        raise InputError(
            f"{', '.join(config.sources)}: {len(prompts)} different prompts, but prompts.heldout alone asks "
            f"for {config.heldout}: add prompts or lower it"
        )

    def drawn(prompt: SeedPrompt) -> bytes:
        return hashlib.sha256(f"{seed}:{prompt.id}".encode()).digest()

    shuffled = sorted(prompts.values(), key=drawn)
    kept = heldout or tuple(shuffled[: config.heldout])
    kept_ids = {prompt.id for prompt in kept}
    corpus = [prompt for prompt in shuffled if prompt.id not in kept_ids]
    return PromptSplit(heldout=kept, corpus=tuple(corpus[: config.limit]))


def read_prompts(
    path: Path, field: str | None = None, on_bad_row: OnBadRow = "refuse"
) -> Iterator[SeedPrompt]:
    """Yield the prompts of a file; at its end, say how many rows were left out. Raises as PromptFile."""
    file = PromptFile(path, field, on_bad_row)
    yield from file
    if file.note:
        console.print(escape(file.note), soft_wrap=True)

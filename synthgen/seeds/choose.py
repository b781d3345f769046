"""The prompts of a run: read from its sources, chosen once for all, split between corpus and held-out.

What is chosen depends on the seed and the prompts, not on the order of sources and rows: prompts are looked
at in the order of a hash, which is that of the corpus too, so that an early stop is an even sample. Of equal
prompts the first one read is used, with its domain. While prompts are chosen they are on disk.
"""

from __future__ import annotations

import contextlib
import hashlib
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
from rich.markup import escape

from synthgen.corpus.console import bar, console, waiting
from synthgen.corpus.records import SeedPrompt
from synthgen.corpus.sections import PromptsConfig
from synthgen.errors import ConfigError
from synthgen.seeds.figures import (
    CORPUS,
    ENDS,
    HELDOUT,
    LEFT_OUT,
    NOT_DRAWN,
    OVER_CAP,
    DomainFigures,
    Figures,
    SourceFigures,
)
from synthgen.seeds.overlap import Overlap
from synthgen.seeds.strata import shares
from synthgen.sources.prompt_file import Format, PromptFile
from synthgen.sources.spool import Spool

SLOW_BYTES = 32 << 20
"""Sources of this size take seconds to read."""
SLOW_PROMPTS = 20_000
"""This many take seconds to choose from."""
PROMPTS_AT_ONCE = 1000
"""Between two looks at the bar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSplit:
    """Prompts of a run: those that become traces, and those that are kept for acceptance."""

    corpus: tuple[SeedPrompt, ...]
    heldout: tuple[SeedPrompt, ...]
    figures: Figures

    def require_corpus(self, config: PromptsConfig) -> PromptSplit:
        """The split itself. Raises InputError when nothing is left for the corpus."""
        self.figures.require_corpus(config)
        return self


class _Rows:
    """The prompts read: on disk, and of each in memory its place in the hash order, domain and source."""

    def __init__(self, spool: Spool, seed: int) -> None:
        self.prompts = spool
        self.domains = array("I")
        self.sources = array("I")
        self.names: list[str] = []
        """Of the domains."""
        self.files: list[SourceFigures] = []
        self._numbers: dict[str, int] = {}
        self._keys = array("Q")
        self._seed = seed

    def read(self, file: PromptFile) -> None:
        """Take all prompts of a source."""
        for prompt in file:
            self.prompts.append(prompt)
            self._keys.append(_hash(self._seed, prompt.id))
            self.domains.append(self._number(prompt.domain))
            self.sources.append(len(self.files))
        self.files.append(_figures_of(file))

    def _number(self, domain: str) -> int:
        if domain not in self._numbers:
            self._numbers[domain] = len(self.names)
            self.names.append(domain)
        return self._numbers[domain]

    def in_hash_order(self) -> list[int]:
        """The rows' indices; equal prompts in the order they were read."""
        return sorted(range(len(self._keys)), key=self._keys.__getitem__)

    def count(self, indices: list[int]) -> Counter[str]:
        """How many of these rows each domain has."""
        counts = Counter(self.domains[index] for index in indices)
        return Counter({self.names[number]: count for number, count in counts.items()})


def split_prompts(config: PromptsConfig, seed: int, heldout: tuple[SeedPrompt, ...] = ()) -> PromptSplit:
    """Read the sources, drop what mustn't be used, and split the rest.

    `heldout` is a set that was drawn before: it stays what it is, and nothing near it gets into the corpus.
    Raises InputError when a source can't be read, a row is refused or nothing is left for the corpus,
    ConfigError for a cap on a domain that isn't there.
    """
    split = select(config, seed, heldout).require_corpus(config)
    tell_left_out(split.figures)
    return split


def tell_left_out(figures: Figures) -> None:
    """Say of each source how many rows were left out, where some were."""
    for source in figures.sources:
        _tell(source.note)


def _tell(note: str) -> None:
    if note:
        console.print(escape(note), soft_wrap=True)


def select(config: PromptsConfig, seed: int, heldout: tuple[SeedPrompt, ...] = ()) -> PromptSplit:
    """As `split_prompts`, but the corpus may be empty, and rows that were left out are only counted."""
    with Spool() as spool:
        rows = _Rows(spool, seed)
        _read_all(config, rows)
        _require_domains(config, rows)
        ends: Counter[str] = Counter({LEFT_OUT: sum(file.left_out for file in rows.files)})
        again, usable = _usable(config, rows, heldout, ends)
        drawn = usable[: 0 if heldout else config.heldout]
        rest = usable[len(drawn) :]
        taken = _drawn(config, rows, rest)
        ends.update({NOT_DRAWN: len(rest) - len(taken), HELDOUT: len(again + drawn), CORPUS: len(taken)})
        corpus = tuple(spool[index] for index in taken)
        turns = Counter(1 + len(prompt.turns) for prompt in corpus)
        return PromptSplit(
            corpus=corpus,
            heldout=heldout or tuple(spool[index] for index in drawn),
            figures=_figures(rows, ends, again + drawn, taken, turns),
        )


def _read_all(config: PromptsConfig, rows: _Rows) -> None:
    files = [PromptFile(name, config.field, config.on_bad_row) for name in config.sources]
    with _waiting_if_slow(files):
        for file in files:
            rows.read(file)


def _waiting_if_slow(files: list[PromptFile]) -> contextlib.AbstractContextManager[None]:
    paths = [file.place for file in files if isinstance(file.place, Path)]
    size = sum(path.stat().st_size for path in paths if path.exists())
    slow = size > SLOW_BYTES or any(file.format is Format.HUB for file in files)
    return waiting("reading the prompts") if slow else contextlib.nullcontext()


def _require_domains(config: PromptsConfig, rows: _Rows) -> None:
    for domain in config.caps:
        if domain not in rows.names:
            raise ConfigError(
                f"prompts.caps.{domain}: no prompt is of that domain; there are "
                f"{', '.join(sorted(rows.names))}"
            )


def _usable(
    config: PromptsConfig, rows: _Rows, heldout: tuple[SeedPrompt, ...], ends: Counter[str]
) -> tuple[list[int], list[int]]:
    """The rows that are held out from before, and those that may be used; `ends` counts the others."""
    overlap = Overlap(config.near_duplicates, excluded_prompts(config))
    for prompt in heldout:
        overlap.remember(prompt)
    missing = {prompt.id for prompt in heldout}
    taken = Counter(prompt.domain for prompt in heldout)
    again, usable = [], []
    for index in _with_bar(rows.in_hash_order()):
        prompt = rows.prompts[index]
        domain = rows.names[rows.domains[index]]
        if prompt.id in missing:
            missing.discard(prompt.id)
            again.append(index)
        elif (reason := overlap.found(prompt)) is not None:
            ends[reason] += 1
        elif taken[domain] >= config.caps.get(domain, len(rows.prompts)):
            ends[OVER_CAP] += 1
        else:
            taken[domain] += 1
            usable.append(index)
    return again, usable


def excluded_prompts(config: PromptsConfig) -> Iterator[SeedPrompt]:
    """The prompts of `exclude`; of each source it is said how many rows were left out.

    Raises InputError as `split_prompts`.
    """
    for name in config.exclude:
        file = PromptFile(name, config.field, config.on_bad_row, field_must_be=False)
        yield from file
        _tell(file.note)


def _with_bar(indices: list[int]) -> Iterator[int]:
    if len(indices) < SLOW_PROMPTS:
        yield from indices
        return
    with bar("choosing prompts", len(indices)) as shown:
        for start in range(0, len(indices), PROMPTS_AT_ONCE):
            part = indices[start : start + PROMPTS_AT_ONCE]
            yield from part
            shown.advance(len(part))


def _drawn(config: PromptsConfig, rows: _Rows, indices: list[int]) -> list[int]:
    """The first of each domain, as many as its share of the limit."""
    left = shares(rows.count(indices), config.limit, config.strata)
    taken = []
    for index in indices:
        domain = rows.names[rows.domains[index]]
        if left[domain]:
            left[domain] -= 1
            taken.append(index)
    return taken


def _hash(seed: int, prompt_id: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}:{prompt_id}".encode()).digest()[:8], "big")


def _figures_of(file: PromptFile) -> SourceFigures:
    return SourceFigures(
        source=file.path,
        format=str(file.format),
        shape=None if file.shape is None else str(file.shape),
        rows=file.rows,
        left_out=file.left_out,
        note=file.note,
        revision=None if isinstance(file.place, Path) else file.place.revision,
    )


def _figures(
    rows: _Rows, ends: Counter[str], heldout: list[int], corpus: list[int], turns: Counter[int]
) -> Figures:
    by_source = Counter(rows.sources[index] for index in corpus)
    read, held, taken = (rows.count(part) for part in (list(range(len(rows.prompts))), heldout, corpus))
    return Figures(
        sources=tuple(
            msgspec.structs.replace(file, corpus=by_source[number]) for number, file in enumerate(rows.files)
        ),
        ends={str(end): ends[end] for end in ENDS},
        domains={
            name: DomainFigures(read=count, heldout=held[name], corpus=taken[name])
            for name, count in read.most_common()
        },
        turns=tuple(turns[1 + n] for n in range(max(turns, default=0))),
    )

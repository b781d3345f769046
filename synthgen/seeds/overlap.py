"""Prompts that are there already, in the same words or nearly so, and prompts that must not be used.

Nearness is the Jaccard index of two prompts' shingles: runs of three words or signs in a row, in their user
messages, case aside. MinHash estimates it from 128 permutations (standard error at most 0.045).
"""

from __future__ import annotations

import enum
import importlib
import itertools
import re
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

from synthgen.corpus.records import Message, SeedPrompt, prompt_key
from synthgen.errors import ConfigError

PERMUTATIONS = 128
SEED = 1
SHINGLE_WORDS = 3
MISSED = 0.1
"""Share of pairs right at the threshold that may not be found; of closer ones it is less."""
SHINGLES_AT_ONCE = 4096
"""Hashed together, 512 bytes each."""
UNSPACED = "\\u2e80-\\u9fff\\uac00-\\ud7af\\U00020000-\\U0003ffff"
"""Chinese, Japanese and Korean: each character is a word."""
WORD = re.compile(rf"[{UNSPACED}]|[^\W{UNSPACED}]+|[^\w\s]")


class PromptDrop(enum.StrEnum):
    """Why a prompt isn't used."""

    EXACT = "duplicate"
    NEAR = "near_duplicate"
    EXCLUDED = "excluded"
    """Its first user message has the words of one that is excluded."""
    NEAR_EXCLUDED = "near_excluded"


class Overlap:
    """What was taken so far, to ask of each prompt whether it may be taken too.

    Without a `threshold` only equal prompts are found. Of `excluded` prompts the first user message counts,
    whatever came with it. Raises ConfigError when datasketch is wanted and isn't installed.
    """

    def __init__(self, threshold: float | None, excluded: Iterable[SeedPrompt] = ()) -> None:
        self._taken: set[int] = set()
        self._excluded: set[str] = set()
        self._near = None if threshold is None else _Near(threshold)
        self._near_excluded = None if threshold is None else _Near(threshold)
        for prompt in excluded:
            self._exclude(prompt)

    def _exclude(self, prompt: SeedPrompt) -> None:
        key = prompt_key(prompt.messages)
        if key not in self._excluded and self._near_excluded is not None:
            self._near_excluded.add(self._near_excluded.signature(_first_text(prompt.messages)))
        self._excluded.add(key)

    def found(self, prompt: SeedPrompt) -> PromptDrop | None:
        """Why `prompt` must not be taken; None when it may, and then it counts as taken."""
        if int(prompt.id, 16) in self._taken:
            return PromptDrop.EXACT
        if prompt_key(prompt.messages) in self._excluded:
            return PromptDrop.EXCLUDED
        return self._take(prompt)

    def excludes(self, messages: tuple[Message, ...]) -> PromptDrop | None:
        """Whether the first user message is that of an excluded prompt, or near it; nothing is taken."""
        if prompt_key(messages) in self._excluded:
            return PromptDrop.EXCLUDED
        if self._near_excluded is None or not self._excluded:
            return None
        asked = self._near_excluded.signature(_first_text(messages))
        return PromptDrop.NEAR_EXCLUDED if self._near_excluded.has(asked) else None

    def remember(self, prompt: SeedPrompt) -> None:
        """Count `prompt` as taken, whatever is found of it."""
        self._taken.add(int(prompt.id, 16))
        if self._near is not None:
            self._near.add(self._near.signature(_text(prompt)))

    def _take(self, prompt: SeedPrompt) -> PromptDrop | None:
        if self._near is not None and self._near_excluded is not None:
            text, first = _text(prompt), _first_text(prompt.messages)
            signature = self._near.signature(text)
            asked = signature if text == first else self._near.signature(first)
            if self._near_excluded.has(asked):
                return PromptDrop.NEAR_EXCLUDED
            if self._near.has(signature):
                return PromptDrop.NEAR
            self._near.add(signature)
        self._taken.add(int(prompt.id, 16))
        return None


class _Near:
    """Signatures, found again by those that are as near as the threshold."""

    def __init__(self, threshold: float) -> None:
        sketch = _datasketch()
        self._threshold = threshold
        self._blank = sketch.MinHash(num_perm=PERMUTATIONS, seed=SEED, hashfunc=zlib.crc32)
        self._index = sketch.MinHashLSH(num_perm=PERMUTATIONS, params=bands_of(threshold))
        self._values: list[Any] = []

    def signature(self, text: str) -> Any:
        """The MinHash of a text's shingles."""
        signature = self._blank.copy()
        shingles = _shingles(text)
        while part := list(itertools.islice(shingles, SHINGLES_AT_ONCE)):
            signature.update_batch(part)
        return signature

    def add(self, signature: Any) -> None:
        self._index.insert(len(self._values), signature, check_duplication=False)
        self._values.append(signature.hashvalues)

    def has(self, signature: Any) -> bool:
        """Whether one that was added has the threshold's share of values in common."""
        if not self._values:
            return False
        least = self._threshold * PERMUTATIONS
        same = ((self._values[key] == signature.hashvalues).sum() for key in self._index.query(signature))
        return any(count >= least for count in same)


def bands_of(threshold: float) -> tuple[int, int]:
    """How many bands of how many values are compared: the fewest that find pairs at the threshold.

    Two sets of index s agree in all r values of a band with probability s**r, and in one of b bands with
    1 - (1 - s**r)**b.
    """
    for rows in range(PERMUTATIONS // 2, 1, -1):
        bands = PERMUTATIONS // rows
        if (1 - threshold**rows) ** bands <= MISSED:
            return bands, rows
    return PERMUTATIONS, 1


def _text(prompt: SeedPrompt) -> str:
    said = (message.content or "" for message in prompt.messages if message.role == "user")
    return "\n".join((*said, *prompt.turns))


def _first_text(messages: tuple[Message, ...]) -> str:
    return next((message.content or "" for message in messages if message.role == "user"), "")


def _shingles(text: str) -> Iterator[bytes]:
    """Each run of three words; the whole text when it has fewer."""
    words = WORD.findall(text.casefold())
    if len(words) < SHINGLE_WORDS:
        words = [" ".join(words), "", ""]
    runs = zip(words, words[1:], words[2:], strict=False)
    return (" ".join(run).encode("utf-8", "surrogatepass") for run in runs)


def _datasketch() -> Any:
    try:
        return importlib.import_module("datasketch")
    except ImportError as error:
        raise ConfigError(
            "prompts.near_duplicates needs datasketch, which isn't installed: pip install 'synthgen[train]', "
            "or set it to null"
        ) from error

"""Prompt files to seed prompts, and the split between corpus and held-out.

A line of a file is one JSON object: OpenAI `messages` (with `tools` if any), or a single text under
`prompt`, `question` or `instruction` (with `input`), or the first of `turns`. `domain` names the
kind of prompt; without it `category` is taken, else the file's name. `sampling` overrides the run's
temperature, top_p, max_tokens or thinking for this prompt.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from synthgen.corpus.records import Message, SamplingOverride, SeedPrompt, seed_id
from synthgen.corpus.sections import PromptsConfig
from synthgen.errors import InputError

TEXT_KEYS = ("prompt", "question", "instruction")


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSplit:
    """Prompts of a run: those that become traces, and those that are kept for acceptance."""

    corpus: tuple[SeedPrompt, ...]
    heldout: tuple[SeedPrompt, ...]


def split_prompts(config: PromptsConfig, seed: int, heldout: tuple[SeedPrompt, ...] = ()) -> PromptSplit:
    """Read the files and split by hash, so that the order of files and lines doesn't matter.

    `heldout` is a set that was drawn before: it stays what it is, whatever was added to the files.
    Duplicates are dropped. Raises InputError when a line is broken or too few prompts are left.
    """
    prompts: dict[str, SeedPrompt] = {}
    for name in config.files:
        for prompt in read_prompts(Path(name)):
            prompts.setdefault(prompt.id, prompt)
    if len(prompts) <= config.heldout:
        raise InputError(
            f"{', '.join(config.files)}: {len(prompts)} different prompts, but prompts.heldout alone asks "
            f"for {config.heldout}: add prompts or lower it"
        )

    def drawn(prompt: SeedPrompt) -> bytes:
        return hashlib.sha256(f"{seed}:{prompt.id}".encode()).digest()

    shuffled = sorted(prompts.values(), key=drawn)
    kept = heldout or tuple(shuffled[: config.heldout])
    kept_ids = {prompt.id for prompt in kept}
    corpus = [prompt for prompt in shuffled if prompt.id not in kept_ids]
    return PromptSplit(heldout=kept, corpus=tuple(corpus[: config.limit]))


def read_prompts(path: Path) -> Iterator[SeedPrompt]:
    """Yield the prompts of a JSONL file. Raises InputError naming file, line and column."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}: prompts.files must name JSONL files") from error
    empty = True
    for number, line in enumerate(lines, 1):
        if line.strip():
            empty = False
            yield _prompt(_decode(line, path, number), path, number)
    if empty:
        raise InputError(f"{path}: is empty")


def _decode(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        row = msgspec.json.decode(line)
    except msgspec.DecodeError as error:
        raise InputError(f"{path}:{number}:{_column(str(error), line)}: not JSON: {error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}:{number}:{error.start + 1}: not UTF-8: {error.reason}") from error
    if not isinstance(row, dict):
        raise InputError(f"{path}:{number}:1: a line is a JSON object, this is {type(row).__name__}")
    return row


def _column(message: str, line: bytes) -> int:
    """The 1-based column of a JSON error: msgspec names the byte, or the line ends too early."""
    _, found, byte = message.rpartition("(byte ")
    return int(byte.rstrip(")")) + 1 if found else len(line) + 1


def _prompt(row: dict[str, Any], path: Path, number: int) -> SeedPrompt:
    try:
        messages = msgspec.convert(_messages(row), tuple[Message, ...])
        tools = msgspec.convert(row.get("tools") or (), tuple[dict[str, Any], ...])
        sampling = msgspec.convert(row.get("sampling"), SamplingOverride | None)
        return SeedPrompt(
            id=seed_id(messages, tools, sampling),
            source=path.name,
            domain=str(row.get("domain") or row.get("category") or path.stem),
            messages=messages,
            tools=tools,
            sampling=sampling,
        )
    except (msgspec.ValidationError, ValueError) as error:
        raise InputError(f"{path}:{number}:1: {error}") from error


def _messages(row: dict[str, Any]) -> Any:
    if "messages" in row:
        return row["messages"]
    for key in TEXT_KEYS:
        if isinstance(row.get(key), str):
            return [{"role": "user", "content": _with_input(row[key], row)}]
    turns = row.get("turns")
    if isinstance(turns, list) and turns:
        return [{"role": "user", "content": turns[0]}]
    raise ValueError(
        f"no prompt: has none of messages, {', '.join(TEXT_KEYS)}, turns; keys: {', '.join(row)}"
    )


def _with_input(text: str, row: dict[str, Any]) -> str:
    """An instruction with the input it is about, which self-instruct keeps under `instances`."""
    instances = row.get("instances")
    first = instances[0] if isinstance(instances, list) and instances else row
    given = first.get("input") if isinstance(first, dict) else None
    return f"{text}\n\n{given}" if isinstance(given, str) and given.strip() else text

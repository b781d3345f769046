"""The classic traps: what makes an acceptance figure mean something else than it seems to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from eagle.accept.asker import Answer
from eagle.accept.live import Counted
from eagle.accept.servers import Server
from eagle.taps import default_aux
from synthgen.client.metrics import ServerCounts
from synthgen.corpus.config import RunConfig
from synthgen.corpus.manifest import read_manifest
from synthgen.corpus.records import SeedPrompt
from synthgen.errors import ArtifactError, ServerMismatch

AUX_KEY = "eagle_aux_hidden_state_layer_ids"
COUNT_TOLERANCE = 1.01
"""Output tokens by the counter over those in the replies; more, and others use the server."""


def default_layers(draft: Path, num_layers: int) -> list[str]:
    """A draft that names no aux layers, so that the server takes its default.

    Raises ArtifactError when it has no config.
    """
    try:
        content = msgspec.json.decode((draft / "config.json").read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError) as error:
        raise ArtifactError(f"{draft / 'config.json'}: can't be read: {error}: is it a draft?") from error
    if content.get(AUX_KEY) or (content.get("eagle_config") or {}).get(AUX_KEY):
        return []
    return [
        f"{draft}/config.json has no {AUX_KEY}: the server reads its default layers "
        f"{list(default_aux(num_layers))}; a draft that was trained on others loses acceptance silently"
    ]


def prefix_caching(server: Server, counts: ServerCounts) -> list[str]:
    """A server that caches prompts."""
    if not counts.prefix_caching:
        return []
    return [
        f"{server.name}: prefix caching is on: a repeated prompt costs less than the first time, so speed "
        f"and time to the first token are of a warm cache; --no-enable-prefix-caching turns it off"
    ]


def other_prefix(config: RunConfig, server: Server, prompt: SeedPrompt, answer: Answer) -> list[str]:
    """A prompt that reached the model as something else than what the chat template makes of it."""
    content: dict[str, Any] = {
        "messages": msgspec.to_builtins(prompt.messages),
        "add_generation_prompt": True,
        "chat_template_kwargs": {"thinking": config.generate.thinking},
    }
    if prompt.tools:
        content["tools"] = list(prompt.tools)
    try:
        wanted = server.control.tokenize(config.verifier.served_name, **content)
    except ServerMismatch as error:
        return [f"{server.name}: whether prompts pass the chat template can't be checked: {error}"]
    if tuple(wanted) == answer.prompt_ids:
        return []
    return [
        f"{server.name}: prompt {prompt.id} reached the model as {len(answer.prompt_ids)} tokens, the chat "
        f"template makes {len(wanted)} others of it ({_difference(answer.prompt_ids, wanted)}): the draft "
        f"was trained behind the template, a raw completion prompt is not what it knows"
    ]


def different_prompts(drafted: Answer, base: Answer) -> list[str]:
    """Two servers that read the same prompt as different tokens."""
    if drafted.prompt_ids == base.prompt_ids:
        return []
    return [
        f"the drafted server read a prompt as {len(drafted.prompt_ids)} tokens, the undrafted one as "
        f"{len(base.prompt_ids)} ({_difference(drafted.prompt_ids, base.prompt_ids)}): their templates, "
        f"tokenizers or revisions differ, so replies and speed can't be compared"
    ]


def another_corpus(config: RunConfig, server: Server) -> list[str]:
    """A server whose tokenizer or template isn't that of the corpus. Raises ServerMismatch when it doesn't
    serve the verifier."""
    found = server.control.fingerprint(config.verifier.served_name)
    made = read_manifest(config.corpus_path)
    known: dict[str, Any] = made.figures.get("server", {}) if made else {}
    return [
        f"{server.name}: its {name} ({ours}) isn't the one that the corpus was generated with ({theirs})"
        for name, ours in (("tokenizer", found.tokenizer), ("template", found.template))
        if (theirs := known.get(name)) not in (None, ours)
    ]


def other_requests(server: Server, counted: Counted) -> list[str]:
    """Requests of others, which are in the counters, too."""
    if counted.output_tokens <= COUNT_TOLERANCE * counted.reply_tokens:
        return []
    return [
        f"{server.name}: it counted {counted.output_tokens:,.0f} output tokens, the replies have "
        f"{counted.reply_tokens:,}: others use it, and their drafts are in the counters' figures"
    ]


def _difference(found: tuple[int, ...], wanted: tuple[int, ...] | list[int]) -> str:
    at = next((i for i, (a, b) in enumerate(zip(found, wanted, strict=False)) if a != b), None)
    if at is None:
        return f"the same up to token {min(len(found), len(wanted))}"
    return f"first difference at token {at}: {found[at]} and {wanted[at]}"

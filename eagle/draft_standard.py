"""What a draft must be: its tensors, its config and its layer ids.

A standard comes from a shipped manifest of published drafts, from another draft, from a run's config, or from
nothing but the draft's own config.json. Names are ours throughout (`midlayer.*`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch
import yaml

from eagle.draft import Draft
from eagle.draft_config import DEFAULT, Make, config_content
from eagle.draft_files import layer_ids_in
from eagle.draft_fit import COMPARED, config_of, same_scaling, scaling_in, stated_in
from eagle.draft_view import DraftView, Stored
from eagle.taps import Counting
from eagle.tensors import NAMES
from synthgen.corpus.draft_sections import DraftConfig
from synthgen.corpus.records import Record
from synthgen.errors import ArtifactError, ConfigError

PUBLISHED = Path(__file__).with_name("published")
KEYS = (
    "hidden_size",
    "vocab_size",
    "draft_vocab_size",
    "num_hidden_layers",
    "max_position_embeddings",
    "rope_scaling",
    *COMPARED,
)
"""What is compared of another draft's config."""
ALWAYS = ("rope_scaling",)
"""Of them, those whose absence means something."""
SCALING = ("factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "attention_factor")
"""What a yarn does, whichever way it is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standard:
    """What a draft is held against; what is None or empty isn't compared.

    may_differ: keys whose other values are worth a note only, and the tensors that follow them.
    """

    name: str
    tensors: dict[str, Stored]
    config: dict[str, Any]
    may_differ: dict[str, Any] = field(default_factory=dict)
    layer_ids: list[int] | None = None
    counting: Counting | None = None


class _Published(Record, frozen=True, kw_only=True):
    """A shipped manifest."""

    verifier: str
    num_layers: int
    aux_layers: tuple[int, int, int]
    config: dict[str, Any]
    may_differ: dict[str, Any]
    tensors: dict[str, Stored]


def published_names() -> list[str]:
    """The shipped manifests."""
    return sorted(path.stem for path in PUBLISHED.glob("*.yaml"))


def published(name: str) -> Standard:
    """A shipped manifest of published drafts. Raises ConfigError naming those there are."""
    if name not in published_names():
        raise ConfigError(f"no shipped manifest is called {name}: there are {', '.join(published_names())}")
    content = yaml.safe_load((PUBLISHED / f"{name}.yaml").read_text(encoding="utf-8"))
    found = msgspec.convert(content, _Published)
    return Standard(
        name=f"the published drafts of {found.verifier}",
        tensors=found.tensors,
        config=found.config,
        may_differ=found.may_differ,
        layer_ids=list(found.aux_layers),
        counting=Counting.VLLM,
    )


def standard_of(view: DraftView) -> Standard:
    """Another draft as the standard."""
    stated = comparable(view.config)
    return Standard(
        name=view.source,
        tensors=view.tensors,
        config={key: stated.get(key) for key in KEYS if key in ALWAYS or stated.get(key) is not None},
        layer_ids=layer_ids_in(view.config),
        counting=view.counting,
    )


def run_standard(make: Make, name: str) -> Standard:
    """What a run's draft has to be."""
    content = config_content(DEFAULT, make)
    return Standard(
        name=name,
        tensors=tensors_of(make.draft, make.shape.hidden_size, make.vocab_size, make.shape.vocab_size),
        config={key: value for key, value in comparable(content).items() if key in KEYS},
        layer_ids=list(make.taps.aux),
        counting=Counting.VLLM,
    )


def own_standard(view: DraftView) -> Standard:
    """What a draft's own config.json asks of its tensors. Raises ArtifactError when that can't be read."""
    stated = stated_in(view.config)
    try:
        hidden, vocab = int(stated["hidden_size"]), int(stated["vocab_size"])
        draft = config_of(view.config)
    except KeyError as error:
        raise ArtifactError(f"{view.source}: config.json has no {error}: is it a draft's?") from error
    except ArtifactError as error:
        raise ArtifactError(f"{view.source}: {error}") from error
    tensors = tensors_of(draft, hidden, int(stated.get("draft_vocab_size") or vocab), vocab)
    return Standard(name="its own config.json", tensors=tensors, config={"num_hidden_layers": 1})


def tensors_of(draft: DraftConfig, hidden_size: int, rows: int, vocab_size: int) -> dict[str, Stored]:
    """The tensors of an exported draft with `rows` of a verifier's `vocab_size` tokens."""
    with torch.device("meta"):
        parameters = dict(Draft(draft, hidden_size, rows).named_parameters())
    bf16, int64, boolean = (NAMES[dtype] for dtype in (torch.bfloat16, torch.int64, torch.bool))
    found = {name: Stored(shape=tuple(weight.shape), dtype=bf16) for name, weight in parameters.items()}
    if rows < vocab_size:  # vLLM has no place for the map when there is nothing to map
        found["d2t"] = Stored(shape=(rows,), dtype=int64)
        found["t2d"] = Stored(shape=(vocab_size,), dtype=boolean)
    return found


def comparable(content: dict[str, Any]) -> dict[str, Any]:
    """A flat config with what it leaves out, and how positions are scaled in one way of writing."""
    if not content:
        return {}
    stated = stated_in(content)
    try:
        scaling = scaling_in(content)
        stated["rope_scaling"] = (
            None if scaling is None else dict(zip(SCALING, same_scaling(scaling), strict=True))
        )
    except (KeyError, TypeError, ValueError):
        stated["rope_scaling"] = content.get("rope_scaling") or content.get("rope_parameters")
    return stated

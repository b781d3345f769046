"""One line for each thing in which a draft isn't what it should be: the tensor or the key, found, expected.

Axes: V the verifier's vocabulary, K the draft's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch

from eagle.draft_config import ARCHITECTURE
from eagle.draft_files import AXES, EMBEDDING, HEAD, LAYER_IDS, layer_ids_in
from eagle.draft_fit import FLOATS, VOCABULARY, WHY_UNKNOWN, stated_in
from eagle.draft_standard import Standard, comparable, own_standard
from eagle.draft_view import DraftView, Stored, local_view
from eagle.taps import Counting
from eagle.tensors import PIECE_BYTES
from synthgen.corpus.records import Record
from synthgen.corpus.verifier_config import VerifierShape
from synthgen.errors import ArtifactError

MISSING = "missing"
NORM = "norm.weight"
SHOWN = 3
"""Tokens of a map that a line shows."""
MAP_DTYPES = ("BOOL", "U8", "I8", "I16", "I32", "I64")
"""Those of which a map can be read, whichever it should be."""


class Mismatch(Record, frozen=True, kw_only=True):
    """One thing that is otherwise than it should be."""

    what: str
    found: str
    expected: str
    why: str = ""

    @property
    def line(self) -> str:
        """As people read it."""
        why = f": {self.why}" if self.why else ""
        return f"{self.what} is {self.found}; expected {self.expected}{why}"


def mismatches(view: DraftView, standard: Standard) -> list[Mismatch]:
    """Everything in which a draft isn't what the standard says; it may have an embedding or leave it out."""
    return [
        *_tensor_lines(view, _tensors_for(view, standard)),
        *_config_lines(comparable(view.config), _config_for(view, standard)),
        *_layer_lines(view, standard),
        *vocabulary_lines(view),
    ]


def notes(view: DraftView, standard: Standard) -> list[str]:
    """What may differ from the standard and does."""
    stated = stated_in(view.config)
    counted = (
        f"`{LAYER_IDS}` is {_json(layer_ids_in(view.config))}, in {standard.name} it is "
        f"{_json(standard.layer_ids)}: the same layers, if one of them counts as SGLang does"
    )
    first = [counted] if _counted_otherwise(view, standard) else []
    return first + [
        f"`{key}` is {_json(stated.get(key))}, {standard.name} have {_json(value)}"
        for key, value in standard.may_differ.items()
        if stated.get(key) not in (None, value)
    ]


def weight_lines(view: DraftView) -> Iterator[Mismatch]:
    """Weights that no draft has: NaN, infinity, a head of zeros. Reads every one, a piece at a time."""
    for name, stored in view.tensors.items():
        if stored.dtype not in FLOATS or 0 in stored.shape:
            continue
        pieces = torch.split(view.read(name).flatten(), PIECE_BYTES // 4)
        ends = torch.stack([end for piece in pieces for end in piece.aminmax()])
        why = "it was never loaded, or training went wrong"
        if not ends.isfinite().all():
            yield Mismatch(what=f"tensor `{name}`", found="NaN or infinity", expected="finite", why=why)
        elif name == HEAD and not ends.any():  # others may begin so
            yield Mismatch(what=f"tensor `{name}`", found="all zero", expected="weights", why=why)


def check_draft(directory: Path, shape: VerifierShape) -> None:
    """Raise ArtifactError unless the draft in `directory` fits a verifier of this shape and can be served.

    The message names each key or tensor, what was found and what is expected.
    """
    view = local_view(str(directory))
    wanted: dict[str, Any] = {"hidden_size": shape.hidden_size, "vocab_size": shape.vocab_size}
    if "speculators_model_type" not in view.config:
        wanted["architectures"] = [ARCHITECTURE]
    found = [*_config_lines(view.config, wanted), *_ids_lines(view, shape)]
    if not found:
        wrong = mismatches(view, own_standard(view))
        found = [one for one in wrong if one.found not in FLOATS]  # servers cast weights
    if found:
        lines = "\n".join(f"{directory}: {one.line}" for one in found)
        raise ArtifactError(f"{lines}\nexport the draft of this run for this verifier: `eagle export CONFIG`")


def _tensors_for(view: DraftView, standard: Standard) -> dict[str, Stored]:
    """The standard's tensors, with the norms that the draft may have and says it has, and its embedding."""
    wanted = dict(standard.tensors)
    if "fc_norm" in standard.may_differ and view.config.get("fc_norm"):
        norm = wanted[NORM]
        wanted |= {f"fc_norm.{at}.weight": norm for at in range(len(layer_ids_in(view.config) or (0, 1, 2)))}
    return _embedding_for(view, wanted) | wanted


def _embedding_for(view: DraftView, wanted: dict[str, Stored]) -> dict[str, Stored]:
    """An embedding of its own has a row for each of the verifier's tokens: as t2d has, or else the head."""
    have, tokens, norm = view.tensors.get(EMBEDDING), wanted.get("t2d", wanted.get(HEAD)), wanted.get(NORM)
    if have is None or tokens is None or norm is None:
        return {}
    dtype = have.dtype if have.dtype in FLOATS else norm.dtype
    return {EMBEDDING: Stored(shape=(*tokens.shape[:1], *norm.shape), dtype=dtype)}


def _config_for(view: DraftView, standard: Standard) -> dict[str, Any]:
    """The standard's keys, with the architecture that speculators' config states."""
    wanted = dict(standard.config)
    if "architectures" in wanted and "speculators_model_type" in view.config:
        del wanted["architectures"]
        wanted["speculators_model_type"] = "eagle3"
    return wanted


def _tensor_lines(view: DraftView, wanted: dict[str, Stored]) -> Iterator[Mismatch]:
    for name in sorted(wanted.keys() | view.tensors.keys()):
        have, want = view.tensors.get(name), wanted.get(name)
        if name == EMBEDDING and (have is None or want is None):
            continue  # shared with the verifier, or trained
        if have is None or want is None:
            yield _there_or_not(name, have, want)
            continue
        if have.shape != want.shape:
            yield Mismatch(what=f"tensor `{name}`", found=_json(have.shape), expected=_json(want.shape))
        if have.dtype != want.dtype:
            yield Mismatch(what=f"tensor `{name}`", found=have.dtype, expected=want.dtype)


def _there_or_not(name: str, have: Stored | None, want: Stored | None) -> Mismatch:
    what = f"tensor `{name}`"
    if want is not None:
        return Mismatch(what=what, found=MISSING, expected=f"{want.dtype} {_json(want.shape)}")
    assert have is not None
    meanings = (meaning for part, meaning in WHY_UNKNOWN.items() if part in name)
    why = next((meaning for meaning in meanings if "set " not in meaning), "")
    return Mismatch(what=what, found=f"{have.dtype} {_json(have.shape)}", expected="no such tensor", why=why)


def _config_lines(content: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[Mismatch]:
    if wanted and not content:
        yield Mismatch(what="config.json", found=MISSING, expected="the draft's")
        return
    for key, value in wanted.items():
        if content.get(key) != value:
            yield Mismatch(what=f"config.json: `{key}`", found=_json(content.get(key)), expected=_json(value))


def _ids_lines(view: DraftView, shape: VerifierShape) -> Iterator[Mismatch]:
    ids = layer_ids_in(view.config) or []
    least = 0 if view.counting is Counting.SGLANG else 1
    inside = len(ids) == 3 and least <= ids[0] < ids[1] < ids[2] < shape.num_layers - 1 + least
    if not inside:
        expected = f"three rising ids below the verifier's {shape.num_layers} layers, as vLLM counts them"
        yield Mismatch(what=f"config.json: `{LAYER_IDS}`", found=_json(ids), expected=expected)
    yield from _two_places(view.config)


def _layer_lines(view: DraftView, standard: Standard) -> Iterator[Mismatch]:
    """Ids that are none, contradict one another, are one too low or too high, or can't be three layers'."""
    yield from _two_places(view.config)
    ids, wanted = layer_ids_in(view.config) or [], standard.layer_ids
    if wanted and view.counting is not None and standard.counting not in (None, view.counting):
        wanted = [one + (1 if standard.counting is Counting.SGLANG else -1) for one in wanted]
    what, found = f"config.json: `{LAYER_IDS}`", _json(ids) if ids else MISSING
    as_wanted = wanted in (None, ids) or _counted_otherwise(view, standard)
    if view.config and not as_wanted:
        yield Mismatch(what=what, found=found, expected=_json(wanted), why=_shifted(ids, wanted or []))
    elif ids and not _are_layers(ids, view.counting):
        yield Mismatch(what=what, found=found, expected="three rising ids above 0, as vLLM counts them")


def _are_layers(ids: list[int], counting: Counting | None) -> bool:
    """Whether there may be three layers of these ids; SGLang's begin with 0."""
    least = 1 if counting is Counting.VLLM else 0
    return len(ids) == 3 and least <= ids[0] < ids[1] < ids[2]


def _counted_otherwise(view: DraftView, standard: Standard) -> bool:
    """Whether ids that are one off may be the same layers: it isn't sure whose count the standard's are."""
    ids, theirs = layer_ids_in(view.config), standard.layer_ids
    if not ids or theirs is None or standard.counting is not None:
        return False
    lower, higher = [one + 1 for one in ids] == theirs, [one - 1 for one in ids] == theirs
    return (lower and view.counting is not Counting.VLLM) or (higher and view.counting is not Counting.SGLANG)


def _shifted(found: list[int], wanted: list[int]) -> str:
    if found == [one - 1 for one in wanted]:
        return "each is one lower, as SGLang counts: vLLM would read the states of one layer before"
    if found == [one + 1 for one in wanted]:
        return "each is one higher: the states of one layer later would be read"
    return ""


def _two_places(content: dict[str, Any]) -> Iterator[Mismatch]:
    """vLLM takes the states at the ids at the top, and their number from `eagle_config`: they must agree."""
    top, eagle = content.get(LAYER_IDS), content.get("eagle_config")
    inner = (eagle or {}).get(LAYER_IDS) or []
    if top and eagle is not None and inner != top:
        yield Mismatch(
            what=f"config.json: in `eagle_config` `{LAYER_IDS}`",
            found=_json(inner),
            expected=_json(top),
            why="as at the top",
        )


def vocabulary_lines(view: DraftView) -> Iterator[Mismatch]:
    """Whether t2d and d2t say the same, and as offsets; their shapes and dtypes are the tensors' lines."""
    found = {name: view.tensors[name] for name in AXES if name in view.tensors}
    if len(found) < len(AXES) or any(len(one.shape) != AXES[name] for name, one in found.items()):
        return
    if any(found[name].dtype not in MAP_DTYPES for name in VOCABULARY):
        return
    d2t_K, t2d_V = (view.read(name) for name in VOCABULARY)
    marked_K = t2d_V.nonzero().flatten()
    rows = found[HEAD].shape[0]
    if len(marked_K) != rows:
        yield Mismatch(
            what="tensor `t2d`",
            found=f"true at {len(marked_K)} tokens",
            expected=f"true at {rows}, the rows of `{HEAD}`",
        )
    elif len(d2t_K) == rows:
        yield from _offset_lines(d2t_K.long(), marked_K)


def _offset_lines(d2t_K: torch.Tensor, marked_K: torch.Tensor) -> Iterator[Mismatch]:
    wanted_K = marked_K - torch.arange(len(marked_K))
    wrong = (d2t_K != wanted_K).nonzero().flatten()
    if not len(wrong):
        return
    at = int(wrong[0])
    if torch.equal(d2t_K.sort().values, marked_K):
        why = f"these are the verifier's ids; write it anew with d2t - torch.arange({len(d2t_K)})"
    elif torch.equal((d2t_K + torch.arange(len(d2t_K))).sort().values, marked_K):
        why = "the tokens that t2d marks, in another order than its"
    else:
        why = f"{len(wrong)} rows stand for other tokens than t2d marks: the maps of two drafts"
    shown = slice(at, at + SHOWN)
    yield Mismatch(
        what=f"tensor `d2t` from row {at} on",
        found=f"{_json(d2t_K[shown].tolist())}…",
        expected=f"offsets, id - row: {_json(wanted_K[shown].tolist())}…",
        why=why,
    )


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode().replace(",", ", ")

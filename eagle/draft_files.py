"""A draft that someone trained: its tensors under our names, its vocabulary and its config.

Safetensors only, in one file or sharded by an index, as these leave them:

    our exports, AQ-MedAI, SpecForge   midlayer.*, fc, norm, lm_head, d2t, t2d; a flat Llama config.json
    speculators                        layers.0.* for midlayer.*; the layer's config is nested
    our checkpoints, step-XXXXXXXX     weights.safetensors; config and vocabulary from the run it is in

Nothing is loaded until it is asked for: names, shapes and types come from the files' headers.

Axes: V the verifier's vocabulary, K the draft's.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError, safe_open

from eagle.draft_keys import require_readable
from eagle.taps import Counting
from eagle.verifier_tensors import read_index
from synthgen.corpus.files import sha256_of
from synthgen.corpus.manifest import Manifest, read_manifest
from synthgen.errors import ArtifactError

INDEX = "model.safetensors.index.json"
WEIGHTS = ("model.safetensors", "weights.safetensors")
PICKLES = (".bin", ".pt", ".pth", ".ckpt")
HEAD = "lm_head.weight"
EMBEDDING = "embed_tokens.weight"
AXES = {HEAD: 2, "d2t": 1, "t2d": 1}
"""How many the head and its map have."""
PREFIXES = ("module.", "draft_model.", "model.")
FIRST_LAYER, OUR_LAYER = "layers.0.", "midlayer."
NOT_THE_DRAFTS = ("verifier_lm_head.weight", "verifier_norm.weight", "rotary_emb.inv_freq")
"""What trainers keep beside a draft: the verifier's own, and what follows from the config."""
OF_THE_LAYER = "transformer_layer_config"
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a tensor is, and what its file's header says of it."""

    file: Path
    name: str
    shape: list[int]
    dtype: str
    """As safetensors writes it: F32, BF16, I64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftFiles:
    """A draft on disk. `places` has our names; `config` is flat, empty when there is none."""

    path: Path
    files: tuple[Path, ...]
    places: dict[str, Place]
    config: dict[str, Any]
    counting: Counting | None
    """Whose count its layer ids surely are; None for a flat config, which may have either's."""

    def tensor(self, name: str) -> torch.Tensor:
        """One tensor by our name. Raises ArtifactError when it can't be read."""
        place = self.places[name]
        try:
            with safe_open(place.file, framework="pt") as tensors:
                tensor: torch.Tensor = tensors.get_tensor(place.name)
                return tensor
        except (OSError, SafetensorError) as error:
            raise ArtifactError(f"{place.file}: `{place.name}` can't be read: {error}") from error

    def sha256(self) -> str:
        """The sha256 of its file; of several, that of their names and sums in order."""
        if len(self.files) == 1:
            return sha256_of(self.files[0])
        lines = "".join(f"{file.name} {sha256_of(file)}\n" for file in self.files)
        return hashlib.sha256(lines.encode()).hexdigest()


def read_draft(source: str) -> DraftFiles:
    """The draft in a local directory or .safetensors file.

    Raises ArtifactError when nothing is there, when it is a pickle, or when a file is damaged.
    """
    path = Path(source)
    files = _weight_files(path)
    places: dict[str, Place] = {}
    for file in files:
        for name, place in _places(file):
            if name in places:
                raise ArtifactError(
                    f"{path}: `{places[name].name}` and `{place.name}` are the same tensor twice"
                )
            places[name] = place
    config, counting = _config(path if path.is_dir() else path.parent)
    return DraftFiles(path=path, files=files, places=places, config=config, counting=counting)


def our_name(stored: str) -> str:
    """A parameter's name in our checkpoints: `model.layers.0.mlp.up_proj.weight` is `midlayer.mlp.…`."""
    name = stored
    while prefix := next((p for p in PREFIXES if name.startswith(p)), None):
        name = name.removeprefix(prefix)
    return OUR_LAYER + name.removeprefix(FIRST_LAYER) if name.startswith(FIRST_LAYER) else name


def known_tokens(draft: DraftFiles, vocab_size: int) -> torch.Tensor:
    """`[K]` int64: the verifier's id of each row of the draft's head.

    Raises ArtifactError unless d2t, t2d and the head say the same of a verifier with `vocab_size` tokens.
    """
    if HEAD not in draft.places:
        raise ArtifactError(f"{draft.path}: has no tensor `{HEAD}`: is it a draft?")
    for name, axes in AXES.items():
        if name in draft.places and len(shape := draft.places[name].shape) != axes:
            raise ArtifactError(f"{draft.path}: tensor `{name}` is {shape}, expected one with {axes} axes")
    rows = draft.places[HEAD].shape[0]
    d2t_K = draft.tensor("d2t").long() if "d2t" in draft.places else None
    t2d_V = draft.tensor("t2d").bool() if "t2d" in draft.places else None
    if t2d_V is not None and len(t2d_V) != vocab_size:
        raise ArtifactError(
            f"{draft.path}: t2d is of a vocabulary of {len(t2d_V)}, this verifier's has {vocab_size}: it is "
            f"another verifier's draft"
        )
    if d2t_K is None and t2d_V is None:
        return _all_tokens(draft, rows, vocab_size)
    marked_K = None if t2d_V is None else t2d_V.nonzero().flatten()
    ids_K = marked_K if d2t_K is None else _by_offsets(draft, d2t_K, marked_K, vocab_size)
    assert ids_K is not None
    if len(ids_K) != rows:
        raise ArtifactError(f"{draft.path}: the head has {rows} rows, its vocabulary {len(ids_K)} tokens")
    return ids_K


def _all_tokens(draft: DraftFiles, rows: int, vocab_size: int) -> torch.Tensor:
    if rows != vocab_size:
        raise ArtifactError(
            f"{draft.path}: its head has {rows} rows for the verifier's {vocab_size} tokens, and neither d2t "
            f"nor t2d says for which. They stand beside the weights, or in `vocab` of the run of a checkpoint"
        )
    return torch.arange(vocab_size)


def _by_offsets(
    draft: DraftFiles, d2t_K: torch.Tensor, marked_K: torch.Tensor | None, vocab_size: int
) -> torch.Tensor:
    """d2t's tokens; it holds offsets, so one that holds the ids themselves is told apart and refused."""
    ids_K = d2t_K + torch.arange(len(d2t_K))
    if marked_K is None:
        fits = _lists_tokens(ids_K, vocab_size)
        absolute = not fits and _lists_tokens(d2t_K, vocab_size)
    else:
        fits = torch.equal(ids_K.sort().values, marked_K)
        absolute = not fits and torch.equal(d2t_K.sort().values, marked_K)
    if absolute:
        raise ArtifactError(
            f"{draft.path}: d2t holds the verifier's ids ({d2t_K[:3].tolist()}…); vLLM, SGLang and this "
            f"trainer read offsets, id - row, so this draft proposes other tokens than it was trained on: "
            f"write it anew with d2t - torch.arange({len(d2t_K)})"
        )
    if not fits and marked_K is not None:
        wrong = int((~torch.isin(ids_K, marked_K)).sum())
        raise ArtifactError(
            f"{draft.path}: d2t and t2d contradict each other: d2t lists {len(ids_K)} tokens, t2d marks "
            f"{len(marked_K)}, and {wrong} of d2t's are not marked: the maps of two drafts were mixed up"
        )
    if not fits:
        raise ArtifactError(
            f"{draft.path}: d2t lists tokens from {int(ids_K.min())} to {int(ids_K.max())}, some twice or "
            f"outside this verifier's vocabulary of {vocab_size}: it is another verifier's draft"
        )
    return ids_K


def _lists_tokens(ids_K: torch.Tensor, vocab_size: int) -> bool:
    """Whether all are ids of the verifier, each once."""
    inside = bool(((ids_K >= 0) & (ids_K < vocab_size)).all())
    return inside and bool((ids_K.sort().values.diff() > 0).all())


def _weight_files(path: Path) -> tuple[Path, ...]:
    if path.is_file():
        _require_safetensors(path, path)
        return (path,)
    if not path.is_dir():
        raise ArtifactError(
            f"{path}: no such directory or file. A draft is a local directory or .safetensors file: one of "
            f"the hub has to be downloaded first"
        )
    if (path / INDEX).exists():
        return tuple(path / name for name in sorted(set(read_index(path / INDEX).values())))
    weights = [path / name for name in WEIGHTS if (path / name).exists()]
    if not weights:
        for file in sorted(path.iterdir()):
            _require_safetensors(path, file, among_others=True)
        raise ArtifactError(
            f"{path}: has none of {', '.join((*WEIGHTS, INDEX))}; of a run, name `draft/export` or one of "
            f"`draft/checkpoints/step-…`"
        )
    vocab = path.parent.parent.parent / "vocab" / "vocab.safetensors"
    ours = weights[0].name == WEIGHTS[1]
    return (weights[0], vocab) if ours and vocab.exists() else (weights[0],)


def _require_safetensors(path: Path, file: Path, *, among_others: bool = False) -> None:
    if file.suffix in PICKLES:
        raise ArtifactError(
            f"{path}: {file.name} is a pickle, which can run code when it is read: write its tensors with "
            f"safetensors.torch.save_file, where you trust it"
        )
    if file.suffix != ".safetensors" and not among_others:
        raise ArtifactError(f"{file}: is no .safetensors file")


def _places(file: Path) -> list[tuple[str, Place]]:
    """Our name of each tensor in a file, and its place."""
    places: list[tuple[str, Place]] = []
    try:
        with safe_open(file, framework="pt") as tensors:
            for stored in tensors.keys():  # noqa: SIM118 -- safe_open is no mapping
                name, header = our_name(stored), tensors.get_slice(stored)
                if not name.endswith(NOT_THE_DRAFTS):
                    shape, dtype = list(header.get_shape()), header.get_dtype()
                    places.append((name, Place(file=file, name=stored, shape=shape, dtype=dtype)))
    except (OSError, SafetensorError) as error:
        raise ArtifactError(f"{file}: can't be read: {error}") from error
    return places


def _config(directory: Path) -> tuple[dict[str, Any], Counting | None]:
    """What is known of the draft's make, flat, and whose count its layer ids surely are."""
    trained = _made(directory.parent, "train")
    if trained is not None:
        return trained.settings["draft"] | {LAYER_IDS: trained.settings["aux_layers"]}, Counting.VLLM
    path = directory / "config.json"
    if not path.exists():
        return {}, None
    config, counting = flattened(_json(path), str(path))
    return config, exported_counting(directory) or counting


def exported_counting(directory: Path) -> Counting | None:
    """Whose count an export of ours has, by its manifest; None where the directory is none."""
    exported = _made(directory, "export")
    if exported is None:
        return None
    return Counting.SGLANG if exported.settings.get("target") == Counting.SGLANG else Counting.VLLM


def flattened(outer: dict[str, Any], place: str) -> tuple[dict[str, Any], Counting | None]:
    """A draft's config.json with the layer's keys beside the others, and whose count its layer ids surely
    are: speculators' are vLLM's. Raises ArtifactError naming `place` and a key that can't be read."""
    require_readable(outer, place)
    if not outer.get(OF_THE_LAYER):
        return outer, None
    flat = outer[OF_THE_LAYER] | outer
    require_readable(flat, place)
    return flat, Counting.VLLM


def layer_ids_in(config: dict[str, Any]) -> list[int] | None:
    """The ids of the aux layers, wherever a flat config has them; None when it has none."""
    ids: list[int] | None = config.get(LAYER_IDS) or (config.get("eagle_config") or {}).get(LAYER_IDS)
    return ids


def _made(directory: Path, stage: str) -> Manifest | None:
    """The manifest of one of our stages; None when there is none, or it is of somebody else's making."""
    try:
        found = read_manifest(directory)
    except ArtifactError:
        return None
    return found if found is not None and found.stage == stage else None


def _json(path: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError) as error:
        raise ArtifactError(f"{path}: can't be read as JSON: {error}") from error

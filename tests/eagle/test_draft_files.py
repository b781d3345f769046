"""Drafts of others: names, vocabularies, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from eagle.draft_files import known_tokens, our_name, read_draft
from eagle.taps import Counting
from synthgen.errors import ArtifactError
from tests.eagle.drafts import (
    AQ_MEDAI_CONFIG,
    KNOWN,
    MIDLAYER,
    SPECFORGE,
    SPECULATORS,
    SPECULATORS_CONFIG,
    weights,
    write_draft,
    write_sharded,
)


@pytest.mark.parametrize(
    ("stored", "ours"),
    [
        ("midlayer.mlp.up_proj.weight", "midlayer.mlp.up_proj.weight"),
        ("layers.0.mlp.up_proj.weight", "midlayer.mlp.up_proj.weight"),
        ("model.layers.0.hidden_norm.weight", "midlayer.hidden_norm.weight"),
        ("module.draft_model.fc.weight", "fc.weight"),
        ("layers.1.mlp.up_proj.weight", "layers.1.mlp.up_proj.weight"),
    ],
)
def test_names_of_others_become_ours(stored: str, ours: str) -> None:
    """Prefixes of wrappers fall away, the only layer is `midlayer`; a second layer isn't taken for it."""
    assert our_name(stored) == ours


@pytest.mark.parametrize(
    "shapes", [MIDLAYER, SPECFORGE, SPECULATORS], ids=["midlayer", "specforge", "speculators"]
)
def test_every_tensor_is_found_under_our_name(tmp_path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """The thirteen of an EAGLE-3 draft, with the values that were written, and the map."""
    tensors = weights(shapes)
    draft = read_draft(str(write_draft(tmp_path / "d", tensors, AQ_MEDAI_CONFIG)))
    assert set(MIDLAYER) | {"d2t", "t2d"} <= set(draft.places)
    for name, place in draft.places.items():
        assert torch.equal(draft.tensor(name), tensors[place.name])
    assert known_tokens(draft, 24).tolist() == KNOWN


def test_a_speculators_config_is_flattened_and_its_layer_ids_are_vllms(tmp_path: Path) -> None:
    """Sizes come from the nested config; what both have is the outer one's."""
    draft = read_draft(str(write_draft(tmp_path / "d", weights(SPECULATORS), SPECULATORS_CONFIG)))
    assert draft.counting is Counting.VLLM
    assert draft.config["intermediate_size"] == 48
    assert draft.config["rope_parameters"] == {"rope_theta": 10000.0, "rope_type": "default"}
    assert draft.config["norm_output"] is True


def test_the_verifiers_own_tensors_are_left_out(tmp_path: Path) -> None:
    """Checkpoints that a trainer of speculators or SpecForge keeps for itself hold more than the draft."""
    extra = {
        "verifier_lm_head.weight": torch.zeros(20, 32),
        "verifier_norm.weight": torch.zeros(32),
        "midlayer.self_attn.rotary_emb.inv_freq": torch.zeros(4),
    }
    draft = read_draft(str(write_draft(tmp_path / "d", weights(MIDLAYER) | extra, None)))
    assert set(draft.places) == {*MIDLAYER, "d2t", "t2d"}
    assert draft.config == {}


def test_a_sharded_draft_is_one_draft(tmp_path: Path) -> None:
    """Both files' tensors, and a sha256 that changes with either."""
    tensors = weights(MIDLAYER)
    path = write_sharded(tmp_path / "d", tensors, AQ_MEDAI_CONFIG)
    draft = read_draft(str(path))
    assert all(torch.equal(draft.tensor(name), tensor) for name, tensor in tensors.items())
    before = draft.sha256()
    save_file({"t2d": tensors["t2d"]}, path / "model-00002-of-00002.safetensors")
    assert read_draft(str(path)).sha256() != before


def test_a_file_is_a_draft_with_the_config_beside_it(tmp_path: Path) -> None:
    """Naming model.safetensors is naming its directory."""
    path = write_draft(tmp_path / "d", weights(MIDLAYER), AQ_MEDAI_CONFIG)
    assert read_draft(str(path / "model.safetensors")).config == read_draft(str(path)).config


def test_what_is_no_draft_is_refused(tmp_path: Path) -> None:
    """Nothing there, a hub id, pickles, a torn file, a run directory: each with what to do."""
    with pytest.raises(ArtifactError, match=r"AQ-MedAI/x: no such directory or file.* downloaded first"):
        read_draft("AQ-MedAI/x")
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    for path in (tmp_path, tmp_path / "pytorch_model.bin"):
        with pytest.raises(ArtifactError, match=r"pytorch_model\.bin is a pickle, which can run code"):
            read_draft(str(path))
    (tmp_path / "run").mkdir()
    with pytest.raises(ArtifactError, match=r"has none of model\.safetensors, .*`draft/checkpoints/step-…`"):
        read_draft(str(tmp_path / "run"))
    (tmp_path / "torn.safetensors").write_bytes(b"torn")
    with pytest.raises(ArtifactError, match=r"torn\.safetensors: can't be read"):
        read_draft(str(tmp_path / "torn.safetensors"))


def test_one_tensor_under_two_names_is_refused(tmp_path: Path) -> None:
    """Which of them would be taken is nobody's guess."""
    tensors = weights(MIDLAYER) | {"layers.0.hidden_norm.weight": torch.ones(32)}
    with pytest.raises(ArtifactError, match="are the same tensor twice"):
        read_draft(str(write_draft(tmp_path / "d", tensors, None)))


def known(path: Path, tensors: dict[str, torch.Tensor]) -> list[int]:
    found: list[int] = known_tokens(read_draft(str(write_draft(path, tensors, None))), 24).tolist()
    return found


def test_either_map_is_enough_and_a_full_head_needs_none(tmp_path: Path) -> None:
    """d2t alone, t2d alone, and 24 rows for 24 tokens."""
    tensors = weights(MIDLAYER)
    assert known(tmp_path / "a", {k: v for k, v in tensors.items() if k != "t2d"}) == KNOWN
    assert known(tmp_path / "b", {k: v for k, v in tensors.items() if k != "d2t"}) == KNOWN
    full = weights(MIDLAYER | {"lm_head.weight": (24, 32)})
    del full["d2t"], full["t2d"]
    assert known(tmp_path / "c", full) == list(range(24))


def test_absolute_ids_in_d2t_are_refused(tmp_path: Path) -> None:
    """With and without t2d: a server would add the row to them."""
    tensors = weights(MIDLAYER) | {"d2t": torch.tensor(KNOWN)}
    message = r"d2t holds the verifier's ids \(\[0, 2, 3\]…\).*d2t - torch\.arange\(20\)"
    with pytest.raises(ArtifactError, match=message):
        known(tmp_path / "a", tensors)
    del tensors["t2d"]
    with pytest.raises(ArtifactError, match=message):
        known(tmp_path / "b", tensors)


def test_maps_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    """The message counts what doesn't fit; so does a map of another vocabulary, or none at all."""
    tensors = weights(MIDLAYER)
    other = torch.zeros(24, dtype=torch.bool)
    other[4:] = True
    with pytest.raises(
        ArtifactError, match=r"contradict each other: .* 20 tokens, t2d marks 20, and 3 of d2t's"
    ):
        known(tmp_path / "a", tensors | {"t2d": other})
    with pytest.raises(ArtifactError, match="t2d is of a vocabulary of 30, this verifier's has 24"):
        known(tmp_path / "b", tensors | {"t2d": torch.ones(30, dtype=torch.bool)})
    with pytest.raises(ArtifactError, match="its head has 20 rows for the verifier's 24 tokens"):
        known(tmp_path / "c", {k: v for k, v in tensors.items() if k not in ("d2t", "t2d")})
    with pytest.raises(ArtifactError, match="lists tokens from 9 to 28, some twice or outside"):
        known(
            tmp_path / "d", {k: v for k, v in tensors.items() if k != "t2d"} | {"d2t": torch.full((20,), 9)}
        )
    short = {k: v for k, v in tensors.items() if k != "d2t"} | {"t2d": torch.arange(24) < 2}
    with pytest.raises(ArtifactError, match="the head has 20 rows, its vocabulary 2 tokens"):
        known(tmp_path / "e", short)


@pytest.mark.parametrize("name", ["lm_head.weight", "d2t", "t2d"])
def test_a_vocabulary_without_axes_is_refused(tmp_path: Path, name: str) -> None:
    """By the tensor and its shape."""
    tensors = weights(MIDLAYER) | {name: torch.tensor(1)}
    draft = read_draft(str(write_draft(tmp_path / "d", tensors, AQ_MEDAI_CONFIG)))
    with pytest.raises(ArtifactError, match=rf"tensor `{name}` is \[\], expected one with [12] axes"):
        known_tokens(draft, 24)

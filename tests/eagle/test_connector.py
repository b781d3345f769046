"""The connector's parts: states out of the cache, files whole, names confined."""

from __future__ import annotations

import resource
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from eagle.prefill import read_states
from synthgen.errors import DiskError

connector = pytest.importorskip("eagle.connector", reason="needs vLLM")
LAYERS = [2, 4, 5, 8]


def test_states_are_gathered_in_token_order_over_scattered_blocks() -> None:
    """Blocks 3, 0, 2 of two slots each, five tokens: rows in the order of the tokens."""
    num_blocks, taps, block_size, hidden = 4, 4, 2, 3
    cache = torch.zeros(num_blocks, taps, block_size, hidden)
    for token, (block, slot) in enumerate([(3, 0), (3, 1), (0, 0), (0, 1), (2, 0)]):
        cache[block, :, slot] = token * 10 + torch.arange(taps)[:, None].float()
    states = connector.gather_states(cache, [3, 0, 2, 1], 5)
    assert tuple(states.shape) == (5, 4, 3)
    assert states[:, :, 0].tolist() == [[t * 10 + k for k in range(4)] for t in range(5)]
    assert states.is_contiguous()


def test_a_file_appears_whole(tmp_path: Path) -> None:
    """Written aside and renamed, in a directory that may be gone; it says of which layers its states are."""
    path = tmp_path / "spool" / "a.safetensors"
    connector.write_states(path, [4, 5], torch.ones(2, 4, 3), LAYERS, None)
    found = read_states(path)
    assert found.token_ids_T.tolist() == [4, 5]
    assert tuple(found.states_T4H.shape) == (2, 4, 3)
    assert (found.layer_ids, found.dtype) == ((2, 4, 5, 8), "float32")
    assert [p.name for p in path.parent.iterdir()] == ["a.safetensors"]


@pytest.mark.parametrize("request_id", ["cmpl-1", "../../etc/passwd", "a/b", "\0"])
def test_a_request_id_cannot_lead_out_of_the_spool(request_id: str) -> None:
    """A client may choose its id; the file's name is a digest of it."""
    name = connector.file_name(request_id)
    assert Path(name).name == name
    assert name.removesuffix(".safetensors").isalnum()


def test_a_prefix_marks_whose_a_file_is_and_leads_nowhere_else() -> None:
    """A short plain name stands before the digest; anything else is passed over."""
    plain = connector.file_name("cmpl-1")
    assert connector.file_name("cmpl-1", "stream-0") == f"stream-0-{plain}"
    for prefix in ("../up", "a/b", "", "x" * 41, None, 3, ["a"]):
        assert connector.file_name("cmpl-1", prefix) == plain


def test_the_group_of_the_states_is_found_or_refused() -> None:
    """Their own group, or the only one; several without a mark can't be told apart."""
    marked = connector.HiddenStateCacheSpec(block_size=2, num_kv_heads=4, head_size=8, dtype=torch.bfloat16)
    groups = [SimpleNamespace(kv_cache_spec=object()), SimpleNamespace(kv_cache_spec=marked)]
    assert connector.states_group(SimpleNamespace(kv_cache_groups=groups)) == 1
    assert connector.states_group(SimpleNamespace(kv_cache_groups=groups[:1])) == 0
    with pytest.raises(ValueError, match="can't tell which of 2"):
        connector.states_group(SimpleNamespace(kv_cache_groups=groups[:1] * 2))


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """Neither a rename that fails nor a disk without room; the error is passed on."""
    (tmp_path / "a.safetensors").mkdir()
    with pytest.raises(IsADirectoryError):
        connector.write_states(tmp_path / "a.safetensors", [4, 5], torch.ones(2, 4, 3), LAYERS, None)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        with pytest.raises(DiskError, match="File too large"):
            connector.write_states(
                tmp_path / "b.safetensors", [4, 5], torch.ones(2, 4, 1 << 16), LAYERS, None
            )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [p.name for p in tmp_path.iterdir()] == ["a.safetensors"]

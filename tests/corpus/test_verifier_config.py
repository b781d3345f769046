"""The sizes of a verifier, read from config.json alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from synthgen.corpus.verifier_config import read_shape, state_bytes_per_token
from synthgen.errors import ArtifactError

KIMI = {"hidden_size": 7168, "vocab_size": 163840, "num_hidden_layers": 61, "rms_norm_eps": 1e-5,
        "bos_token_id": 163584, "eos_token_id": [163586]}  # fmt: skip


@pytest.mark.parametrize(
    "values", [KIMI, {"model_type": "kimi_k25", "text_config": KIMI}], ids=["flat", "nested"]
)
def test_flat_and_nested_configs_read_alike(tmp_path: Path, values: dict[str, Any]) -> None:
    """Kimi-K2.5 nests its language model's config; a token's four states are 57,344 bytes."""
    (tmp_path / "config.json").write_text(json.dumps(values))
    shape = read_shape(tmp_path)
    assert (shape.hidden_size, shape.vocab_size, shape.num_layers, shape.eos_token_id) == (
        7168,
        163840,
        61,
        163586,
    )
    assert state_bytes_per_token(shape.hidden_size, "bfloat16") == 57_344
    assert 512 * state_bytes_per_token(shape.hidden_size, "bfloat16") == 29_360_128
    assert state_bytes_per_token(shape.hidden_size, "float8_e4m3fn") == 28_688


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no such file"),
        ("{", "not JSON"),
        ('{"hidden_size": 1}', "has no vocab_size, num_hidden_layers"),
    ],
)
def test_what_is_no_model_config_is_named(tmp_path: Path, text: str | None, message: str) -> None:
    """The file and what it lacks stand in the error."""
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ArtifactError, match=message):
        read_shape(tmp_path)

"""A draft that says nothing of its layers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eagle.accept.traps import default_layers
from synthgen.errors import ArtifactError

IDS = {"eagle_aux_hidden_state_layer_ids": [2, 4, 5]}


@pytest.mark.parametrize(("content", "warned"), [({}, 1), (IDS, 0), ({"eagle_config": IDS}, 0)])
def test_default_layers_are_warned_of(tmp_path: Path, content: dict[str, object], warned: int) -> None:
    """vLLM's for 8 layers are 2, 4 and 5; a draft that names them, in either place, is left alone."""
    (tmp_path / "config.json").write_text(json.dumps(content))
    found = default_layers(tmp_path, num_layers=8)
    assert len(found) == warned
    assert all("reads its default layers [2, 4, 5]" in one for one in found)


def test_no_draft_there_is_an_error(tmp_path: Path) -> None:
    """Before any server is started."""
    with pytest.raises(ArtifactError, match=r"config\.json: can't be read.*is it a draft"):
        default_layers(tmp_path, num_layers=8)

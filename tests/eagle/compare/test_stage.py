"""`eagle compare` refuses what can't be compared before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from eagle.__main__ import app
from eagle.compare.stage import given_drafts
from synthgen.corpus.settings import save_config
from synthgen.errors import ArtifactError, ConfigError
from tests.eagle.compare.two_parts import two_parts, write_two_parts
from tests.eagle.tiny import tiny_config, write_run


def test_a_mix_of_one_part_is_refused(tmp_path: Path) -> None:
    """With what to do, code 2, and nothing written."""
    config = tiny_config(tmp_path)
    write_run(config)
    path = tmp_path / "run.yaml"
    save_config(config, path)
    done = CliRunner().invoke(app, ["compare", str(path)])
    assert done.exit_code == 2
    assert "mix.parts has one part only, 'native'" in done.stderr
    assert not (config.run_path / "compare").exists()


def test_a_draft_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """Before an arm is written, let alone trained."""
    config = two_parts(tmp_path)
    write_two_parts(config)
    path = tmp_path / "run.yaml"
    save_config(config, path)
    done = CliRunner().invoke(app, ["compare", str(path), "--draft", f"old={tmp_path / 'nowhere'}"])
    assert done.exit_code == 2
    assert "nowhere has no config.json: name a draft as vLLM loads it" in done.stderr
    assert not (config.run_path / "compare").exists()


def test_names_of_drafts_are_checked(tmp_path: Path) -> None:
    """NAME=PATH, no arm's name, none twice, and nothing that leads out of the directory."""
    config = two_parts(tmp_path)
    draft = tmp_path / "draft"
    draft.mkdir()
    (draft / "config.json").write_text("{}")
    for asked in (["draft"], ["x="], ["../x=draft"], [f"a b={draft}"]):
        with pytest.raises(ConfigError, match="write it as NAME=PATH"):
            given_drafts(config, asked)
    for asked in ([f"native={draft}"], [f"mix={draft}"], [f"x={draft}", f"x={draft}"]):
        with pytest.raises(ConfigError, match="there is an arm or a draft"):
            given_drafts(config, asked)


def test_a_draft_of_another_verifier_is_refused(tmp_path: Path) -> None:
    """Its config says so."""
    config = two_parts(tmp_path)
    write_two_parts(config)
    draft = tmp_path / "draft"
    draft.mkdir()
    (draft / "config.json").write_text('{"architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 64}')
    with pytest.raises(ArtifactError, match="`hidden_size` is 64; expected 32 for this verifier"):
        given_drafts(config, [f"other={draft}"])


def test_a_run_without_heldout_prompts_is_refused(tmp_path: Path) -> None:
    """Nothing could be measured after hours of training."""
    config = two_parts(tmp_path)
    write_two_parts(config)
    config.heldout_path.write_bytes(b"")
    path = tmp_path / "run.yaml"
    save_config(config, path)
    done = CliRunner().invoke(app, ["compare", str(path)])
    assert done.exit_code == 2
    assert "has no held-out prompts" in done.stderr
    assert not (config.run_path / "compare").exists()

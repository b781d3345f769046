"""The plan that a run keeps from before its first stage."""

from __future__ import annotations

from typing import Any

import pytest

from synthgen.corpus.manifest import manifest_of, write_manifest
from synthgen.corpus.settings import load_config
from synthgen.errors import ArtifactError
from synthgen.plan.kept import PlannedStage, first_plan, held_bytes, keep_first
from synthgen.plan.stages import plan


def test_the_first_plan_stays(demo_values: dict[str, Any], write_config: Any) -> None:
    """Two prompts more change what is planned, not what was kept."""
    config = load_config(write_config(demo_values))
    assert first_plan(config) == {}
    made = plan(config)
    keep_first(config, made)
    stage = made.stage("generate")
    assert first_plan(config)["generate"] == PlannedStage(
        tokens=stage.tokens, disk_bytes=stage.disk_bytes, load_s=stage.load_s, work_s=round(stage.work_s, 1)
    )
    demo_values["generate"]["max_tokens"] += 1
    later = plan(load_config(write_config(demo_values)))
    keep_first(config, later)
    assert first_plan(config)["generate"].tokens == stage.tokens < later.stage("generate").tokens


def test_what_is_no_plan_is_named(demo_values: dict[str, Any], write_config: Any) -> None:
    """With the file, and what to do."""
    config = load_config(write_config(demo_values))
    config.run_path.mkdir()
    config.plan_path.write_text('{"stages": 3}')
    with pytest.raises(ArtifactError, match=r"plan\.json: not a plan as .* remove it"):
        first_plan(config)


def test_captured_states_count_for_the_stage_that_generates(
    demo_values: dict[str, Any], write_config: Any
) -> None:
    """Five bytes of traces and three in the spool; nothing else is there."""
    config = load_config(write_config(demo_values))
    for path, content in ((config.traces_path, b"12345"), (config.spool_path / "a" / "b", b"123")):
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
    assert held_bytes(config) == {"generate": 8, "extract": 0, "train": 0, "accept": 0}


def test_a_plan_that_knows_what_was_measured_is_not_kept(
    demo_values: dict[str, Any], write_config: Any
) -> None:
    """Beside a finished corpus it isn't what was thought before the first stage."""
    config = load_config(write_config(demo_values))
    made = plan(config)
    config.corpus_path.mkdir(parents=True)
    write_manifest(
        config.corpus_path, manifest_of("generate", settings={}, inputs={}, figures={}, seconds=1.0)
    )
    keep_first(config, made)
    assert not config.plan_path.exists()

"""The model card of an export."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest
import yaml

from eagle.card import refresh_cards
from eagle.draft_config import Form, Target
from eagle.export import export
from eagle.train import train
from synthgen.corpus.config import RunConfig
from synthgen.corpus.manifest import (
    digest_of,
    manifest_of,
    require_manifest,
    write_manifest,
)
from synthgen.errors import ArtifactError
from tests.eagle.tiny import tiny_config, write_run

MIXED = {
    "rows": 12,
    "tokens": 168,
    "parts": {
        "native": {
            "asked": 1.0,
            "got": 1.0,
            "train": {"rows": 12, "tokens": 168, "thinking_tokens": 48, "response_tokens": 120},
            "heldout": {"rows": 2, "tokens": 24, "thinking_tokens": 8, "response_tokens": 16},
        }
    },
    "sources": {"/home/me/count|ing.jsonl": {"rows": 14, "tokens": 192}},
}
ACCEPTED = {
    "acceptance_length": 2.76,
    "rate_by_position": [0.757, 0.577, 0.429],
    "length_by_domain": {"count": 2.83},
    "prompts": 64,
    "num_draft_tokens": 3,
    "same_replies": 24,
    "compared_replies": 24,
    "tokens_per_s": 73.5,
    "tokens_per_s_undrafted": 48.25,
    "speedup": 1.51,
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    """A run that is trained, with what a mix says of its dataset."""
    config = tiny_config(tmp_path_factory.mktemp("run"), train__epochs="1")
    write_run(config, heldout=2)
    train(config)
    made = require_manifest(config.dataset_path, "synthgen mix CONFIG")
    write_manifest(config.dataset_path, msgspec.structs.replace(made, figures=MIXED))
    return config


@pytest.fixture
def run(trained: RunConfig, tmp_path: Path) -> RunConfig:
    """A copy of it, to be changed."""
    path = shutil.copytree(trained.run_path, tmp_path / "run")
    return msgspec.structs.replace(trained, run_dir=str(path))


def text_of(config: RunConfig, form: Form) -> str:
    return (form.place(config.export_path) / "README.md").read_text(encoding="utf-8")


def test_a_card_tells_of_corpus_and_training(run: RunConfig) -> None:
    """The hub reads its front; nobody's paths are in it; nothing is said of an acceptance yet."""
    made = require_manifest(run.dataset_path, "synthgen mix CONFIG")
    assert made.figures == MIXED
    export(run)
    text = text_of(run, Form())
    front = yaml.safe_load(text.split("---\n")[1])
    assert front == {
        "library_name": "vllm",
        "pipeline_tag": "text-generation",
        "tags": ["eagle3", "speculative-decoding"],
    }
    assert "# EAGLE-3 draft of verifier\n" in text
    assert "before layers 2, 4 and 5 of **verifier** (8 layers), that proposes 20 of its 24 tokens" in text
    assert "| native | train | 12 | 168 | 48 | 120 | 0 |" in text
    assert "| native | held out | 2 | 24 | 8 | 16 | 0 |" in text
    assert "| count\\|ing.jsonl | 14 | 192 | 0 | 0 | 0 |" in text
    assert "| optimizer, learning rate | muon, 0.01 |" in text
    assert "| test-time steps, decay | 3, 1 |" in text
    assert "Held out, best of " in text
    assert "Not measured on a server yet: `eagle accept` does it." in text
    assert str(run.run_path) not in text
    assert "/home/me" not in text


def test_acceptance_is_told_of_the_draft_that_was_measured(run: RunConfig) -> None:
    """When its manifest is there the cards are written anew, of every form of the same weights; of another
    draft's acceptance nothing is told."""
    speculators = Form.of(Target.SPECULATORS, None)
    export(run)
    export(run, form=speculators)
    before = (run.export_path / "model.safetensors").stat().st_mtime_ns
    made = require_manifest(run.export_path, "eagle export CONFIG")
    measured = manifest_of(
        "accept", settings={}, inputs={"draft": digest_of(made)}, figures=ACCEPTED, seconds=1.0
    )
    write_manifest(run.accept_path, measured)
    refresh_cards(run)
    for form in (Form(), speculators):
        text = text_of(run, form)
        assert "| acceptance length | 2.76 tokens a verifier step |" in text
        assert "| accepted at each position | 75.7%, 57.7%, 42.9% |" in text
        assert "| output tokens/s, one request at a time | 1.51 times as many |" in text
        assert "| greedy replies the same | 24 of 24 |" in text
        assert "| count | 2.83 |" in text
    assert (run.export_path / "model.safetensors").stat().st_mtime_ns == before
    write_manifest(run.accept_path, msgspec.structs.replace(measured, inputs={"draft": "another"}))
    export(run)
    assert "Not measured on a server yet" in text_of(run, Form())


def test_a_card_of_another_training_stays(run: RunConfig) -> None:
    """Here the seed was changed since: the export isn't of that config, so nothing of it is told there."""
    export(run)
    before = text_of(run, Form())
    refresh_cards(msgspec.structs.replace(run, seed=99))
    assert text_of(run, Form()) == before


def test_an_untrained_export_says_so(run: RunConfig) -> None:
    """It is there to compare with."""
    export(run, untrained=True)
    text = (run.untrained_path / "README.md").read_text(encoding="utf-8")
    assert "It is untrained: what training begins with." in text
    assert "Not at all." in text


def test_each_target_is_told_how_it_is_served(run: RunConfig) -> None:
    """vLLM's JSON, or nothing but the draft where that names its verifier."""
    export(run)
    said = '{"method": "eagle3", "model": "PATH_OR_REPOSITORY", "num_speculative_tokens": 3}'
    assert f"vllm serve verifier \\\n    --speculative-config '{said}'" in text_of(run, Form())
    speculators = Form.of(Target.SPECULATORS, None)
    export(run, form=speculators)
    assert "```bash\nvllm serve PATH_OR_REPOSITORY\n```" in text_of(run, speculators)
    assert "library_name: speculators\n" in text_of(run, speculators)


def test_a_verifier_that_is_named_by_a_path_is_told(
    run: RunConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    """speculators' config names it: on another machine that leads nowhere. No other target's does."""
    speculators = Form.of(Target.SPECULATORS, None)
    export(run, form=speculators)
    said = "set `speculators_config.verifier.name_or_path` to the hub id."
    assert said in text_of(run, speculators)
    told = f"config.json names the verifier by its path, {run.verifier.model}: to serve the draft elsewhere"
    assert told in capsys.readouterr().err
    export(run)
    assert said not in text_of(run, Form())
    assert "by its path" not in capsys.readouterr().err


def test_figures_that_are_damaged_are_named(run: RunConfig) -> None:
    """The file, and what is wrong in it."""
    export(run)
    made = require_manifest(run.dataset_path, "synthgen mix CONFIG")
    write_manifest(run.dataset_path, msgspec.structs.replace(made, figures={"parts": 3}))
    with pytest.raises(ArtifactError, match=r"dataset/manifest\.json: its figures are not as this release"):
        refresh_cards(run)

"""Settings: what is wrong in a YAML is named with its path before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from synthgen.corpus.settings import load_config, save_config
from synthgen.errors import ConfigError

ROOT = Path(__file__).parent.parent.parent
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: str(path.stem))
def test_the_configs_that_come_along_are_complete(path: Path, tmp_path: Path) -> None:
    """Each parses strictly, and what is saved loads back as the same run."""
    config = load_config(path)
    save_config(config, tmp_path / "run.yaml")
    assert load_config(tmp_path / "run.yaml") == config


def test_the_kimi_config_is_the_seeds_production_run() -> None:
    """Aux layers 2/30/58, a draft vocabulary of 32,000, ten epochs, 2,048 tokens, eight GPUs."""
    config = load_config(ROOT / "configs/kimi-k2.5.yaml")
    assert config.extract.aux_layers == (2, 30, 58)
    assert config.vocab.size == 32000
    assert config.train.epochs == 10
    assert config.extract.max_seq_tokens == 2048
    assert config.server.tensor_parallel_size == 8
    assert (config.prompts.limit or 0) * config.generate.samples_per_prompt == 1000


def test_an_unknown_key_is_named_with_its_path_and_the_nearest_known_one(
    demo_values: dict[str, Any], write_config: Any
) -> None:
    """`--batch-size`-like slips are refused."""
    demo_values["server"]["max_num_seq"] = 8
    with pytest.raises(
        ConfigError, match=r"unknown key `server\.max_num_seq`; did you mean `max_num_seqs`\?"
    ):
        load_config(write_config(demo_values))


def test_a_missing_key_is_named_with_its_path(demo_values: dict[str, Any], write_config: Any) -> None:
    """A config shows the whole run."""
    del demo_values["train"]["epochs"]
    with pytest.raises(ConfigError, match=r"`train\.epochs` is missing"):
        load_config(write_config(demo_values))


def test_a_value_of_the_wrong_type_is_named_with_its_path(
    demo_values: dict[str, Any], write_config: Any
) -> None:
    """Type errors say what was expected and found."""
    demo_values["generate"]["max_tokens"] = "many"
    with pytest.raises(ConfigError, match=r"`generate\.max_tokens`: Expected `int`, got `str`"):
        load_config(write_config(demo_values))


YARN = {
    "rope_type": "yarn",
    "factor": 2.0,
    "original_max_position_embeddings": 1024,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "attention_factor": None,
}


@pytest.mark.parametrize(
    ("section", "key", "value", "message"),
    [
        ("prompts", "on_bad_row", "warn", r"`prompts\.on_bad_row`: Invalid enum value 'warn'"),
        ("generate", "concurrency", 0, r"`generate`: concurrency 0 must be more than 0"),
        ("generate", "top_p", 1.5, r"`generate`: temperature 0\.7 or top_p 1\.5 is out of range"),
        (
            "generate",
            "max_tokens",
            4096,
            r"generate\.max_tokens 4096 leaves no room in server\.max_model_len_tokens",
        ),
        (
            "extract",
            "aux_layers",
            [4, 2, 5],
            r"`extract`: aux_layers \[4, 2, 5\] must be positive and rising",
        ),
        ("draft", "num_key_value_heads", 3, r"num_attention_heads 4 is no multiple of num_key_value_heads 3"),
        ("train", "processes", 2, r"batches_per_step 1 is no multiple of processes 2"),
        (
            "draft",
            "rope_scaling",
            YARN | {"factor": 1.5},
            r"max_position_embeddings 2048 is more than rope_scaling's factor 1\.5 x original_max\S+ 1024",
        ),
        (
            "draft",
            "rope_scaling",
            YARN | {"factor": 0.5},
            r"`draft\.rope_scaling`: factor 0\.5 is less than 1",
        ),
        (
            "draft",
            "rope_scaling",
            YARN | {"beta_fast": 1.0},
            r"beta_fast 1\.0 must be more than beta_slow 1\.0",
        ),
        ("draft", "rope_scaling", YARN | {"rope_type": "ntk"}, r"`draft\.rope_scaling\.rope_type`: Invalid"),
        ("train", "batch_tokens", 100, r"max_seq_tokens 512 is more than batch_tokens 100"),
        (
            "verifier",
            "think_end",
            None,
            r"generate\.thinking is true, but verifier\.think_end names no token",
        ),
        ("accept", "prompts", 65, r"accept\.prompts 65 .* can't be more than prompts\.heldout 64"),
    ],
)
def test_values_that_cannot_go_together_are_refused(
    demo_values: dict[str, Any], write_config: Any, section: str, key: str, value: Any, message: str
) -> None:
    """Contradictions are found before anything is loaded."""
    demo_values[section][key] = value
    with pytest.raises(ConfigError, match=message):
        load_config(write_config(demo_values))


def test_overrides_are_laid_over_the_file(demo_values: dict[str, Any], write_config: Any) -> None:
    """`--set a.b=c` takes YAML values."""
    path = write_config(demo_values)
    config = load_config(
        path, ("generate.temperature=1", "prompts.limit=null", "prompts.sources=[a.jsonl,b.jsonl]")
    )
    assert config.generate.temperature == 1.0
    assert config.prompts.limit is None
    assert config.prompts.sources == ("a.jsonl", "b.jsonl")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("generate.temprature=1", r"there is no key `generate\.temprature`; did you mean `temperature`\?"),
        ("generat.temperature=1", r"there is no section `generat`; did you mean `generate`\?"),
        ("generate.temperature", r"write it as section\.key=value"),
        ("seed=[", r"the value can't be read as YAML"),
    ],
)
def test_a_wrong_override_is_refused(
    demo_values: dict[str, Any], write_config: Any, override: str, message: str
) -> None:
    """A slip in --set never passes silently."""
    with pytest.raises(ConfigError, match=message):
        load_config(write_config(demo_values), (override,))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "can't be read as YAML"),
        ("- 1", "is a mapping of sections, this is list"),
        (None, "no such file"),
    ],
)
def test_a_file_that_is_no_config_is_refused(tmp_path: Path, text: str | None, message: str) -> None:
    """Broken YAML, a list, no file."""
    path = tmp_path / "c.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_config(path)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "must be there and have names"),
        ([("a", 0.5, [], None), ("a", 0.5, ["x"], None)], "names of their own"),
        ([("a", 0.5, [], None), ("b", 0.4, ["x"], None)], r"shares of parts make 0\.9, not 1"),
        ([("a", 0.5, [], None), ("b", 0.5, [], None)], "only one part can have traces"),
        ([("a", 0.5, ["x"], None), ("b", 0.5, ["x"], None)], "traces of 'x' are named by two parts"),
        ([("a", 1.0, None, None)], "either traces or replies"),
        ([("a", 1.0, [], "b.jsonl")], "either traces or replies"),
        ([("a", 0.0, [], None)], "share 0.0 must be more than 0"),
    ],
)
def test_parts_of_a_mix_that_cannot_be_are_refused(
    demo_values: dict[str, Any], write_config: Any, parts: list[tuple[Any, ...]], message: str
) -> None:
    """Each with what is wrong, and where."""
    names = ("name", "share", "traces", "replies")
    demo_values["mix"]["parts"] = [dict(zip(names, part, strict=True)) for part in parts]
    with pytest.raises(ConfigError, match=message):
        load_config(write_config(demo_values))

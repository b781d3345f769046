"""Exports as others load them: by `datasets`, by our own reader, with a card that the hub can read."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet
import pytest
import yaml
from typer.testing import CliRunner

from synthgen.__main__ import app
from synthgen.corpus.config import RunConfig
from synthgen.corpus.manifest import manifest_of, read_manifest, write_manifest
from synthgen.corpus.settings import load_config
from synthgen.errors import ArtifactError
from synthgen.export import parquet
from synthgen.export.formats import Format
from synthgen.export.stage import export
from synthgen.sources.prompt_file import PromptFile
from tests.export.dataset import HELDOUT, TRAIN, R, row, spans, write_dataset

datasets: Any = importlib.import_module("datasets")  # has no types
ROOT = Path(__file__).parents[2]
TEXT = [Format.SPECFORGE, Format.TORCHSPEC, Format.SHAREGPT, Format.OPENAI]
IDS = [one.id for one in TRAIN]
UNCUT = [one.id for one in TRAIN if one.truncated_in is None]


@pytest.fixture
def config(demo_values: dict[str, Any], write_config: Any) -> RunConfig:
    """A run with the small dataset."""
    demo_values["export"] = {"title": "Small: a test", "license": None}
    loaded = load_config(write_config(demo_values))
    write_dataset(loaded)
    return loaded


def loaded(directory: Path, cache: Path) -> Any:
    """An export as `datasets` reads it, by its card."""
    return datasets.load_dataset(str(directory), cache_dir=str(cache))


@pytest.mark.parametrize("kind", list(Format))
def test_datasets_loads_each_format_by_its_card(config: RunConfig, tmp_path: Path, kind: Format) -> None:
    """Exact formats have every row, text formats all but the one that was cut."""
    (done,) = export(config, (kind,))
    found = loaded(done.path, tmp_path / "cache")
    assert found["train"]["id"] == (UNCUT if kind in TEXT else IDS)
    assert found["validation"]["id"] == ["0000000000000007-0"]


def test_parquet_holds_all_of_a_row(config: RunConfig, tmp_path: Path) -> None:
    """With a fixed schema, in which what isn't there is null."""
    (done,) = export(config, (Format.PARQUET,))
    call = {
        "id": "functions.weather:0",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city": "Ulm"}'},
    }
    nothing = {"reasoning_content": None, "name": None, "tool_calls": None, "tool_call_id": None}
    assert loaded(done.path, tmp_path / "cache")["train"][3] == {
        "id": "0000000000000004-0",
        "part": "native",
        "source": "seeds.jsonl",
        "domain": "math",
        "origin": "native",
        "prompt_key": "0000000000000004",
        "messages": [
            {"role": "user", "content": "Weather in Ulm?"} | nothing,
            {"role": "assistant", "content": None}
            | nothing
            | {"reasoning_content": "One more.", "tool_calls": [call]},
        ],
        "thinking": "One more.",
        "response": None,
        "tool_calls": [call],
        "tools": '[{"type":"function","function":{"name":"weather",'
        '"parameters":{"type":"object","properties":{"city":{"type":"string"}}}}}]',
        "token_ids": [1, 2, 3, 44, 5, 90, 7, 8],
        "loss_mask": [0, 0, 0, 1, 1, 1, 1, 1],
        "spans": [{"start": 3, "end": 6, "kind": "thinking"}, {"start": 6, "end": 8, "kind": "tool"}],
        "finish": "tool_calls",
        "truncated_in": None,
        "sampling": {"temperature": 1.0, "top_p": 0.95, "max_tokens": 64, "thinking": True},
        "server": "f00d",
    }


def test_parquet_tells_a_verbatim_row_and_a_cut_one(config: RunConfig, tmp_path: Path) -> None:
    """One has no sampling, the other says where its budget ran out."""
    (done,) = export(config, (Format.PARQUET,))
    train = loaded(done.path, tmp_path / "cache")["train"]
    assert (train[5]["origin"], train[5]["sampling"], train[5]["thinking"]) == ("verbatim", None, None)
    assert (train[2]["finish"], train[2]["truncated_in"], train[2]["response"]) == (
        "length",
        "thinking",
        None,
    )


def test_parquet_goes_on_in_new_files_and_groups(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file ends after a group that filled it; all files are the split."""
    monkeypatch.setattr(parquet, "GROUP_ROWS", 2)
    monkeypatch.setattr(parquet, "FILE_BYTES", 1)
    (done,) = export(config, (Format.PARQUET,))
    names = sorted(file.name for file in (done.path / "data").iterdir())
    assert names == [
        "train-00000.parquet",
        "train-00001.parquet",
        "train-00002.parquet",
        "validation-00000.parquet",
    ]
    assert pyarrow.parquet.ParquetFile(done.path / "data" / names[0]).metadata.num_rows == 2
    assert loaded(done.path, tmp_path / "cache")["train"]["id"] == IDS


def test_a_row_group_ends_by_tokens_too(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight tokens a row: the second row fills a group of 16."""
    monkeypatch.setattr(parquet, "GROUP_TOKENS", 16)
    (done,) = export(config, (Format.PARQUET,))
    file = pyarrow.parquet.ParquetFile(done.path / "data/train-00000.parquet")
    assert [file.metadata.row_group(n).num_rows for n in range(file.metadata.num_row_groups)] == [2, 2, 2]


@pytest.mark.parametrize("kind", [Format.SPECULATORS, Format.SPECFORGE])
def test_a_loader_without_the_card_reads_rows_that_differ_late(
    config: RunConfig, tmp_path: Path, kind: Format
) -> None:
    """It guesses the types by the first 10 MB, where no row has thinking, a call or a tool."""
    long = row(1, thinking=None, response="x" * 400_000, spans=spans((3, 8, R)))
    late = TRAIN[3]
    write_dataset(config, (*(msgspec.structs.replace(long, id=f"{n:016x}-0") for n in range(40)), late), ())
    (done,) = export(config, (kind,))
    file = str(done.path / "data/train.jsonl")
    found = datasets.load_dataset("json", data_files=file, cache_dir=str(tmp_path / "cache"), split="train")
    assert found[40]["id"] == late.id
    if kind is Format.SPECFORGE:
        assert found[40]["conversations"][1]["reasoning_content"] == "One more."


def test_openai_rows_come_back_as_the_prompts_that_were_sent(config: RunConfig) -> None:
    """Our own reader takes replies off, those of earlier turns too, and finds the rest unchanged."""
    (done,) = export(config, (Format.OPENAI,))
    prompts = list(PromptFile(done.path / "data/train.jsonl"))
    sent = [one for one in TRAIN if one.truncated_in is None]
    asked = [(prompt.messages, prompt.turns) for prompt in prompts]
    assert asked[3] == (sent[3].messages[:2], ("What is 5 + 1?",))
    del asked[3]
    assert asked == [(one.messages, ()) for number, one in enumerate(sent) if number != 3]
    assert [prompt.tools for prompt in prompts] == [one.tools for one in sent]
    (heldout,) = PromptFile(done.path / "data/validation.jsonl")
    assert (heldout.messages, heldout.tools) == (HELDOUT[0].messages, HELDOUT[0].tools)


def front_of(card: str) -> dict[str, Any]:
    """The YAML of a card."""
    start, front, _ = card.split("---\n", 2)
    assert not start
    values: dict[str, Any] = yaml.safe_load(front)
    return values


def test_the_card_says_what_the_hub_asks_for(config: RunConfig) -> None:
    """Licence, title, task, size and the files of each split."""
    (done,) = export(config, (Format.PARQUET,))
    assert front_of((done.path / "README.md").read_text()) == {
        "license": "unknown",
        "pretty_name": "Small: a test",
        "task_categories": ["text-generation"],
        "tags": ["synthetic", "reasoning", "speculative-decoding", "eagle-3", "parquet"],
        "size_categories": ["n<1K"],
        "configs": [
            {
                "config_name": "default",
                "data_files": [
                    {"split": "train", "path": "data/train-*.parquet"},
                    {"split": "validation", "path": "data/validation-*.parquet"},
                ],
            }
        ],
    }


def test_the_card_counts_what_is_written(config: RunConfig) -> None:
    """Seven rows of eight tokens, five of each supervised."""
    (done,) = export(config, (Format.PARQUET,))
    card = (done.path / "README.md").read_text()
    assert "# Small: a test\n" in card
    assert (
        "6 train and 1 validation rows with 56 tokens, 35 of them supervised: replies 6 by **tiny-kimi** "
        "(native) and 1 by others (verbatim), to train a draft" in card
    )
    assert "| native | train | 5 | 40 | 14 | 9 | 2 | 71.4% |" in card
    assert "| blend | train | 1 | 8 | 0 | 5 | 0 | 14.3% |" in card
    assert "| seeds.jsonl | native | 6 | 48 | 17 | 11 | 2 | 85.7% |" in card
    assert "| blend.parquet | verbatim | 1 | 8 | 0 | 5 | 0 | 14.3% |" in card
    assert "71.4% of the rows have thinking; 48.6% of the supervised tokens are thinking." in card
    assert "14.3% of the rows were cut by their budget: 1 in the thinking, 0 in the response." in card
    assert "      256  ████████████████████████████████████████ 7" in card
    assert "| 1 | 0.95 | 64 | on | 5 |" in card
    assert "| 1 | 0.95 | 64 | off | 1 |" in card
    assert "No licence was set" in card


def test_the_card_credits_each_with_what_they_wrote(config: RunConfig) -> None:
    """Of replies by others the verifier wrote none, and their ids are made from text."""
    sampled, given = "never re-tokenized text", "are those that the server gives a text"
    (done,) = export(config, (Format.SPECULATORS,))
    card = (done.path / "README.md").read_text()
    assert f"Token ids of native rows are those that the server sampled, {sampled}" in card
    assert f"Token ids of verbatim rows {given}." in card
    write_dataset(config, (TRAIN[5],), ())
    (done,) = export(config, (Format.SPECULATORS,))
    card = (done.path / "README.md").read_text()
    assert "replies 1 by others (verbatim), to" in card
    assert sampled not in card
    write_dataset(config, TRAIN[:1], ())
    (done,) = export(config, (Format.SPECULATORS,))
    card = (done.path / "README.md").read_text()
    assert "replies 1 by **tiny-kimi** (native), to" in card
    assert given not in card


def test_no_name_of_a_source_breaks_the_cards_tables(config: RunConfig) -> None:
    """A row of a table is one line, and a bar in it no column."""
    write_dataset(config, (row(1, source="a|b\r\nc\u2028d\x1b[2J"),), ())
    (done,) = export(config, (Format.PARQUET,))
    card = (done.path / "README.md").read_text()
    assert "\n| a\\|b c d␛[2J | native | 1 | 8 | 3 | 2 | 0 | 100.0% |\n" in card


def test_a_dataset_whose_thinking_was_not_split_says_so(config: RunConfig) -> None:
    """As text its answers would have thinking in them."""
    write_dataset(config, (TRAIN[1], row(8, thinking=None, response="Hm.</think>9.")), ())
    (done,) = export(config, (Format.OPENAI,))
    card = (done.path / "README.md").read_text()
    assert "1 whose thinking the server left in the response, having no reasoning parser." in card
    assert done.manifest.figures["left_out"] == {"unsplit": 1}


def test_the_card_of_a_text_format_says_what_was_left_out(config: RunConfig) -> None:
    """So that nobody takes it for the whole dataset."""
    (done,) = export(config, (Format.SHAREGPT,))
    card = (done.path / "README.md").read_text()
    assert "Left out, because text can't represent them: 1 cut by their budget." in card
    assert done.manifest.figures["left_out"] == {"truncated": 1}
    assert done.manifest.figures["rows"] == {"train": 5, "validation": 1}


def test_the_card_tells_the_server_of_the_corpus(
    config: RunConfig, demo_values: dict[str, Any], write_config: Any
) -> None:
    """Model, engine and the digests of tokenizer and template, and a licence that was set."""
    fingerprint = {
        "model": "tiny-kimi",
        "max_model_len": 512,
        "engine": "vllm 0.32.0",
        "tokenizer": "aaaa",
        "template": "bbbb",
    }
    config.corpus_path.mkdir(parents=True)
    write_manifest(
        config.corpus_path,
        manifest_of("generate", settings={}, inputs={}, figures={"server": fingerprint}, seconds=0.0),
    )
    demo_values["export"]["license"] = "apache-2.0"
    (done,) = export(load_config(write_config(demo_values)), (Format.PARQUET,))
    card = (done.path / "README.md").read_text()
    for line in ("engine | vllm 0.32.0", "digest of a probe's ids | aaaa", "digest of a probe's ids | bbbb"):
        assert line in card
    assert "| server fingerprints | `f00d` (7 rows) |" in card
    assert front_of(card)["license"] == "apache-2.0"
    assert "The dataset is under `apache-2.0`." in card


@pytest.mark.parametrize("kind", list(Format))
def test_no_card_has_a_path_of_this_machine(config: RunConfig, tmp_path: Path, kind: Format) -> None:
    """Neither of the run nor of the model, which is a directory here."""
    (done,) = export(config, (kind,))
    card = (done.path / "README.md").read_text()
    assert str(tmp_path) not in card
    assert str(ROOT) not in card
    assert "**tiny-kimi**" in card


def test_a_split_without_rows_has_neither_file_nor_entry(config: RunConfig, tmp_path: Path) -> None:
    """As with mix.heldout_fraction 0."""
    write_dataset(config, TRAIN, ())
    for kind in (Format.PARQUET, Format.OPENAI):
        (done,) = export(config, (kind,))
        assert list(loaded(done.path, tmp_path / kind)) == ["train"]


def test_an_export_that_fits_is_left_alone_and_one_of_an_older_dataset_made_anew(config: RunConfig) -> None:
    """What it was made of is in its manifest."""
    assert [one.made for one in export(config, (Format.OPENAI,))] == [True]
    assert [one.made for one in export(config, (Format.OPENAI,))] == [False]
    write_dataset(config, TRAIN[:2], HELDOUT)
    (done,) = export(config, (Format.OPENAI, Format.OPENAI))
    assert done.made
    assert done.manifest.figures["rows"] == {"train": 2, "validation": 1}


@pytest.mark.parametrize("lost", ["train-00000.parquet", "validation-00000.parquet"])
def test_an_export_without_its_data_is_made_anew(config: RunConfig, lost: str) -> None:
    """Its manifest alone says nothing of what is there."""
    (done,) = export(config, (Format.PARQUET,))
    (done.path / "data" / lost).unlink()
    assert [one.made for one in export(config, (Format.PARQUET,))] == [True]
    assert (done.path / "data" / lost).exists()
    shutil.rmtree(done.path / "data")
    assert [one.made for one in export(config, (Format.PARQUET,))] == [True]


def test_another_verifier_or_server_makes_the_card_anew(
    config: RunConfig, demo_values: dict[str, Any], write_config: Any
) -> None:
    """It names both; a corpus that was removed since takes nothing from it."""
    export(config, (Format.OPENAI,))
    figures = {"server": {"engine": "vllm 1"}}
    manifest = manifest_of("generate", settings={}, inputs={}, figures=figures, seconds=0)
    config.corpus_path.mkdir(parents=True)
    write_manifest(config.corpus_path, manifest)
    assert [one.made for one in export(config, (Format.OPENAI,))] == [True]
    shutil.rmtree(config.corpus_path)
    (kept,) = export(config, (Format.OPENAI,))
    assert not kept.made
    assert "vllm 1" in (kept.path / "README.md").read_text()
    demo_values["verifier"]["model"] = "someone/another"
    (done,) = export(load_config(write_config(demo_values)), (Format.OPENAI,))
    assert done.made
    assert "**someone/another**" in (done.path / "README.md").read_text()


@pytest.mark.parametrize(("name", "have", "says"), [("train", 5, 6), ("heldout", 0, 1)])
def test_rows_that_a_dataset_has_lost_are_told_and_nothing_is_written(
    config: RunConfig, name: str, have: int, says: int
) -> None:
    """A torn file reads as a shorter one."""
    path = config.dataset_path / f"{name}.jsonl"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(
        ArtifactError,
        match=rf"{name}\.jsonl has {have} rows, the dataset's manifest says {says}: remove .*dataset and run "
        "`synthgen mix CONFIG` again",
    ):
        export(config, (Format.OPENAI,))
    assert list(config.exports_path.iterdir()) == []


@pytest.mark.parametrize("name", ["train", "heldout"])
def test_a_dataset_without_one_of_its_files_is_refused(config: RunConfig, name: str) -> None:
    """Also by an export that was made of it while it was there."""
    export(config, (Format.OPENAI,))
    (config.dataset_path / f"{name}.jsonl").unlink()
    with pytest.raises(ArtifactError, match=rf"{name}\.jsonl is missing: remove .*dataset and run"):
        export(config, (Format.OPENAI,))


def test_a_dataset_that_gives_no_row_leaves_nothing_behind(config: RunConfig) -> None:
    """The error says what became of the rows, and which format would take them."""
    write_dataset(config, (TRAIN[2],), ())
    with pytest.raises(
        ArtifactError, match=r"no row that can be written as openai: 1 cut .* --format parquet"
    ):
        export(config, (Format.OPENAI,))
    assert list(config.exports_path.iterdir()) == []


def test_without_a_dataset_the_command_says_what_makes_one(
    demo_values: dict[str, Any], write_config: Any
) -> None:
    """And ends with 2."""
    result = CliRunner().invoke(app, ["export", str(write_config(demo_values))])
    assert result.exit_code == 2
    assert "dataset is missing: run `synthgen mix CONFIG` first" in result.stderr


def test_the_command_tells_what_it_wrote(
    config: RunConfig, demo_values: dict[str, Any], write_config: Any
) -> None:
    """One line a format, or one JSON object."""
    arguments = ["export", str(write_config(demo_values)), "--format", "parquet", "--format", "openai"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.stderr
    first, second = result.stdout.splitlines()
    assert first.startswith(f"{config.exports_path}/parquet: 6 train and 1 validation rows, ")
    assert second.endswith("; left out: 1 cut by their budget")
    told = msgspec.json.decode(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    made = read_manifest(config.exports_path / "openai")
    assert made is not None
    assert told["pushed_to"] is None
    assert told["exports"][1] == {
        "format": "openai",
        "path": str(config.exports_path / "openai"),
        "rows": {"train": 5, "validation": 1},
        "left_out": {"truncated": 1},
        "bytes": made.figures["bytes"],
        "made": False,
    }


PEAK = """
import re, sys
from pathlib import Path
from synthgen.corpus.settings import load_config
from synthgen.export.formats import Format
from synthgen.export.stage import export
export(load_config(Path(sys.argv[1])), (Format(sys.argv[2]),))
print(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""


@pytest.mark.parametrize("kind", [Format.PARQUET, Format.OPENAI])
def test_memory_stays_flat(
    config: RunConfig, demo_values: dict[str, Any], write_config: Any, kind: Format
) -> None:
    """20,000 rows of 500 tokens, 60 MB of JSON, take little more than 2,000."""
    long = row(1, token_ids=tuple(range(500)), response="word " * 200)
    peaks_mb = []
    for count in (2_000, 20_000):
        rows = tuple(msgspec.structs.replace(long, id=f"{number:016x}-0") for number in range(count))
        write_dataset(config, rows, ())
        command = [sys.executable, "-c", PEAK, str(write_config(demo_values)), kind]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
        peaks_mb.append(int(done.stdout) / 1000)
    assert peaks_mb[1] - peaks_mb[0] < 20, peaks_mb

"""The arithmetic before the run, against numbers that were seen on real hardware."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from synthgen.__main__ import app
from synthgen.corpus.config import RunConfig
from synthgen.corpus.manifest import Speed, manifest_of, write_manifest
from synthgen.corpus.settings import load_config
from synthgen.errors import ConfigError, DiskError
from synthgen.plan.costs import as_figures
from synthgen.plan.stages import plan
from synthgen.run import require_disk

KIMI = Path(__file__).parents[2] / "configs/kimi-k2.5.yaml"
GIB = 1 << 30


def kimi(tmp_path: Path, *overrides: str) -> RunConfig:
    """The production run on prompts of a single turn, none held out, with no earlier stage measured."""
    everything = "mix.heldout_fraction=0"
    return load_config(KIMI, (f"run_dir={tmp_path / 'run'}", single_turn(tmp_path), everything, *overrides))


def single_turn(tmp_path: Path) -> str:
    """What puts 600 prompts of one turn in place of the run's own: a thousand rows are a thousand samples."""
    path = tmp_path / "single.jsonl"
    path.write_text("".join(f'{{"prompt": "q{number}"}}\n' for number in range(600)))
    return f"prompts.sources=[{path}]"


def test_the_states_of_kimi_are_what_they_were(tmp_path: Path) -> None:
    """28 MiB for 512 tokens, 112 MiB for 2,048, 109.4 GiB for a thousand of those: 15 % of 736 free."""
    made = plan(kimi(tmp_path), free=736 * GIB)
    states = made.stage("extract")
    assert (states.rows, states.tokens) == (1000, 2_048_000)
    assert states.disk_bytes == 117_440_512_000
    assert states.disk_bytes // 1000 == 112 * 1024 * 1024
    assert states.disk_bytes // 4000 == 29_360_128 == 28 * 1024 * 1024
    assert f"{states.disk_bytes / made.free_bytes:.0%}" == "15%"
    assert "112.0 MiB for the longest sample" in states.formulas["disk"]


def test_the_times_of_kimi_are_what_they_were(tmp_path: Path) -> None:
    """Loading takes 22 minutes and outlasts the extraction; a million tokens 7.3; the training 27.7."""
    made = plan(kimi(tmp_path))
    extract, train = made.stage("extract"), made.stage("train")
    assert extract.load_s == 22 * 60 > extract.work_s
    assert round(extract.work_s / extract.tokens * 1_000_000 / 60, 1) == 7.3
    assert train.tokens == 10 * 2_048_000
    assert round(train.work_s / 60, 1) == 27.7
    assert made.load_s == 4 * 22 * 60  # generate, extract, and two servers for accept
    assert made.load_s > made.work_s
    assert made.rows_worth_the_load > extract.rows


def test_streamed_states_take_the_spools_room_and_are_made_each_epoch(tmp_path: Path) -> None:
    """16 GiB in place of 109, and ten times the prefills; training sees as many tokens as ever."""
    made = plan(kimi(tmp_path, "train.stream=true"))
    states = made.stage("extract")
    assert states.disk_bytes == 16 * GIB
    assert states.tokens == made.stage("train").tokens == 10 * 2_048_000
    assert states.formulas["disk"] == "train.stream_spool_mib 16,384"
    assert states.formulas["tokens"].endswith(
        "× train.epochs 10: with train.stream anew in each, while training"
    )
    assert states.starts == 1
    many = (
        "train.stream=true",
        "train.processes=8",
        "train.batches_per_step=8",
        "server.base_urls=[http://s/v1]",
    )
    assert plan(kimi(tmp_path, *many)).stage("extract").disk_bytes == 8 * 16 * GIB


def test_what_is_held_out_is_not_streamed_nor_validated(tmp_path: Path) -> None:
    """Of 1,000 samples 950 are asked for, no best checkpoint is kept beside the newest."""
    made = plan(kimi(tmp_path, "train.stream=true", "mix.heldout_fraction=0.05"))
    states, train = made.stage("extract"), made.stage("train")
    assert (states.rows, states.tokens) == (train.rows, train.tokens) == (950, 10 * 1_945_600)
    assert train.formulas["work"] == "(19,456,000 tokens) / 12,320 a second"
    assert train.disk_bytes == plan(kimi(tmp_path)).stage("train").disk_bytes


def test_samples_that_are_held_out_are_extracted_and_validated(tmp_path: Path) -> None:
    """Of 1,000 samples 50 aren't trained on; five validations of 102,400 tokens take a third of the time."""
    made = plan(kimi(tmp_path, "mix.heldout_fraction=0.05"))
    extract, train = made.stage("extract"), made.stage("train")
    assert (extract.rows, extract.tokens) == (1000, 2_048_000)
    assert (train.rows, train.tokens) == (950, 10 * 1_945_600)
    assert train.formulas["work"] == (
        "(19,456,000 tokens + a third of 5 validations × 102,400) / 12,320 a second"
    )
    assert train.work_s == pytest.approx((19_456_000 + 512_000 / 3) / 12_320)
    parameters = train.disk_bytes / 12
    assert plan(kimi(tmp_path)).stage("train").disk_bytes == parameters * 12 * 3 / 4  # no best one is kept


def test_a_dataset_that_is_there_says_what_is_held_out(tmp_path: Path) -> None:
    """90 rows and 10: all have states, 90 are trained on."""
    config = kimi(tmp_path)
    figures = {"rows": 90, "heldout_rows": 10}
    write_manifest(
        config.dataset_path, manifest_of("mix", settings={}, inputs={}, figures=figures, seconds=1)
    )
    made = plan(config)
    assert (made.stage("extract").rows, made.stage("train").rows) == (100, 90)
    assert made.stage("train").tokens == 10 * 90 * 2048


def test_each_figure_has_its_formula_and_json_has_the_figures(tmp_path: Path) -> None:
    """As a user sees them."""
    arguments = ["plan", str(KIMI), "--set", f"run_dir={tmp_path}", "--set", single_turn(tmp_path)]
    told = CliRunner().invoke(app, [*arguments, "--explain"])
    assert told.exit_code == 0
    assert "extract disk = 2,048,000 tokens × 4 states × hidden size 7,168 in bfloat16" in told.output
    assert "generate rows = 500 prompts × generate.samples_per_prompt 2" in told.output
    assert max(len(line) for line in told.output.splitlines() if "=" not in line) <= 100
    figures = msgspec.json.decode(CliRunner().invoke(app, [*arguments, "--json"]).output)
    assert figures["stages"]["extract"]["disk_bytes"] == 117_440_512_000
    assert figures["load_s"] == 5280


def test_a_conversation_costs_a_reply_a_turn(tmp_path: Path) -> None:
    """Prompts of one turn and of three, twice each: 8 replies, and 14 with those that later turns repeat."""
    (tmp_path / "p.jsonl").write_text(
        '{"turns": ["a"]}\n{"turns": ["b", "c", "d"]}\n{"turns": ["e", "f", "g"]}\n'
    )
    made = plan(
        kimi(
            tmp_path,
            f"prompts.sources=[{tmp_path / 'p.jsonl'}]",
            "prompts.heldout=1",
            "accept.prompts=1",
            "accept.single_prompts=1",
            "generate.max_tokens=100",
            "generate.samples_per_prompt=2",
            "extract.max_seq_tokens=50",
        )
    )
    generate, extract = made.stage("generate"), made.stage("extract")
    assert (generate.rows, generate.tokens, generate.disk_bytes) == (4, 800, 14 * 100 * 14)
    assert generate.formulas["tokens"] == "8 replies (one a turn of 4 rows) × generate.max_tokens 100"
    assert (
        generate.formulas["disk"] == "1,400 tokens (600 of them again, before later turns) × 14 bytes of JSON"
    )
    assert (extract.rows, extract.tokens, made.stage("train").rows) == (8, 400, 8)
    assert extract.formulas["tokens"].startswith("8 replies (one a turn of 4 rows) × ")


def test_what_was_measured_replaces_what_was_assumed(tmp_path: Path) -> None:
    """400 traces of 100 tokens at 500 a second: the other 600 are expected alike, and a start took 90 s."""
    config = kimi(tmp_path)
    figures = {"traces": 400, "thinking_tokens": 30_000, "response_tokens": 10_000}
    made_before = manifest_of(
        "generate",
        settings={},
        inputs={},
        figures=figures,
        seconds=1.0,
        complete=False,
        speed=Speed(tokens_per_s=500.0, load_s=90.0),
    )
    write_manifest(config.corpus_path, made_before)
    made = plan(config)
    generate = made.stage("generate")
    assert (generate.tokens, generate.work_s, generate.load_s) == (100_000, 200.0, 90.0)
    assert (generate.measured, made.stage("train").measured) == (True, False)
    assert "the mean of 400 traces" in generate.formulas["tokens"]


def test_a_server_that_runs_already_is_not_started(tmp_path: Path) -> None:
    """generate and extract use base_urls; accept starts its own."""
    made = plan(kimi(tmp_path, "server.base_urls=[http://127.0.0.1:1/v1]"))
    assert [made.stage(name).starts for name in ("generate", "extract", "accept")] == [0, 0, 2]


def test_a_verifier_of_unknown_size_is_refused(tmp_path: Path) -> None:
    """Neither a directory nor plan.hidden_size."""
    with pytest.raises(ConfigError, match=r"models/Kimi-K2\.5 is no directory here and plan\.hidden_size is"):
        plan(kimi(tmp_path, "plan.hidden_size=null"))


def complete(directory: Path) -> None:
    """A stage that is done."""
    directory.mkdir(parents=True, exist_ok=True)
    write_manifest(directory, manifest_of("s", settings={}, inputs={}, figures={"traces": 0}, seconds=1.0))


def test_a_run_without_its_disk_is_refused_until_its_stages_are_complete(tmp_path: Path) -> None:
    """A thousand times the samples fit on no disk here; what is there already needs none."""
    config = kimi(tmp_path, "extract.max_seq_tokens=32000", "generate.samples_per_prompt=1000")
    planned = plan(config)
    with pytest.raises(DiskError, match=r"the traces, the hidden states, the checkpoints need .* TiB"):
        require_disk(config, planned)
    complete(config.corpus_path)
    complete(config.checkpoints_path)
    with pytest.raises(DiskError, match=r"^the hidden states need .* TiB and a tenth to spare"):
        require_disk(config, planned)
    complete(config.states_path)
    require_disk(config, planned)


def test_what_is_on_disk_already_is_not_asked_for_again(tmp_path: Path) -> None:
    """A run that goes on needs what it lacks; captured states count, wherever they lie."""
    config = kimi(tmp_path, "generate.capture=true")
    planned = dataclasses.replace(plan(config), stages=(plan(config).stage("generate"),))
    config.spool_path.mkdir(parents=True)
    with (config.spool_path / "captured").open("wb") as file:
        file.truncate(planned.disk_bytes - 1000)
    require_disk(config, planned)
    (config.spool_path / "captured").unlink()
    with pytest.raises(DiskError, match="the traces need 109"):
        require_disk(config, planned)


def test_as_figures_adds_up(demo_values: dict[str, Any], write_config: Any) -> None:
    """The demo's total is the sum of its stages."""
    figures = as_figures(plan(load_config(write_config(demo_values))))
    assert figures["disk_bytes"] == sum(stage["disk_bytes"] for stage in figures["stages"].values())
    assert figures["stages"]["generate"]["rows"] == 400


def test_captured_states_need_no_second_pass(tmp_path: Path) -> None:
    """They are on disk once the replies are; only rows that others wrote are sent to a server."""
    plain, captured = plan(kimi(tmp_path)), plan(kimi(tmp_path, "generate.capture=true"))
    states_bytes = plain.stage("extract").disk_bytes
    assert captured.stage("generate").disk_bytes == plain.stage("generate").disk_bytes + states_bytes
    assert captured.stage("extract").disk_bytes == captured.stage("extract").starts == 0
    assert captured.load_s == plain.load_s - 22 * 60
    parts = (
        "mix.parts=[{name: a, share: 0.5, traces: [], replies: null}, "
        "{name: b, share: 0.5, traces: null, replies: b.jsonl}]"
    )
    mixed = plan(kimi(tmp_path, "generate.capture=true", parts)).stage("extract")
    assert (mixed.rows, mixed.starts, mixed.disk_bytes) == (2000, 1, states_bytes)

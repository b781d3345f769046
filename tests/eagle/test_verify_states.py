"""Verifying states: a sound set passes, and every way to be wrong is named."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from eagle.__main__ import app
from eagle.shards import read_all, read_index, write_shard
from eagle.states import Rows, SampleStates
from eagle.verifier import VerifierWeights, read_weights
from eagle.verify_states import Checks, as_likely, spread, verify_states
from synthgen.corpus.config import RunConfig
from synthgen.corpus.settings import save_config
from synthgen.errors import ArtifactError
from tests.eagle.tiny import tiny_config, trace, write_dataset, write_run

OFFLINE = Checks(samples=8, live=False, reference=False)


@pytest.fixture
def run(tmp_path: Path) -> RunConfig:
    """A small run with states; its replies are greedy."""
    config = tiny_config(tmp_path)
    write_run(config)
    return config


def rewritten(config: RunConfig, change: object) -> None:
    """Write all shards anew, each sample changed by `change`."""
    samples = [change(states) for states in read_all(config.states_path)]  # type: ignore[operator]
    for entry in read_index(config.states_path):
        (config.states_path / entry.file).unlink()
    (config.states_path / "index.jsonl").unlink()
    for states in samples:
        write_shard(config.states_path, [states])


def with_final(states: SampleStates, final_TH: torch.Tensor) -> SampleStates:
    """The same sample with other final states."""
    return SampleStates(
        sample_id=states.sample_id,
        token_ids_T=states.token_ids_T,
        aux=states.aux,
        final=Rows(final_TH),
        final_at_F=states.final_at_F,
    )


def test_a_sound_set_has_no_problems(run: RunConfig) -> None:
    """Twelve samples; the greedy replies of eight are what their final states predict."""
    report = verify_states(run, OFFLINE)
    assert report.problems == ()
    assert (report.shards, report.samples) == (12, 12)
    assert report.probe is not None
    assert (report.probe.against, report.probe.samples, report.probe.agreement) == ("greedy replies", 8, 1.0)


def test_samples_that_are_held_out_are_looked_at_too(tmp_path: Path) -> None:
    """All fifteen, also against their greedy replies; one whose states are gone is missed."""
    config = tiny_config(tmp_path)
    write_run(config, heldout=3)
    report = verify_states(config, Checks(samples=15, live=False, reference=False))
    assert (report.samples, report.problems) == (15, ())
    assert report.probe is not None
    assert (report.probe.samples, report.probe.agreement) == (15, 1.0)
    index = config.states_path / "index.jsonl"
    index.write_bytes(b"".join(index.read_bytes().splitlines(keepends=True)[:-1]))
    (problem,) = verify_states(config, OFFLINE).problems
    assert problem == "1 samples of the dataset have no states, the first is seed14-0"


def test_streamed_states_are_not_there_to_be_looked_at(tmp_path: Path) -> None:
    """A streamed run lacks nothing: the error says so."""
    config = tiny_config(tmp_path, train__stream="true")
    write_dataset(config, [trace(0)])
    with pytest.raises(ArtifactError, match=r"with train\.stream none are stored.* training doesn't need it"):
        verify_states(config, OFFLINE)


def test_what_is_looked_at_is_spread_over_the_whole_dataset() -> None:
    """Sixteen of 31 ids reach from the first to the last but one; no more than there are."""
    ids = [f"{number:02}" for number in range(31)]
    picked = sorted(map(int, spread(ids, 16)))
    assert picked == [0, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29]
    assert spread(ids[:2], 16) == {"00", "01"}
    assert spread([], 16) == spread(ids, 0) == set()


def test_a_sound_set_in_fp8_has_no_problems_either(tmp_path: Path) -> None:
    """The most likely token is still the one that was sampled; shifted ones are still caught."""
    config = tiny_config(tmp_path, extract__states_dtype="float8_e4m3fn")
    write_run(config)
    assert next(read_all(config.states_path)).final.scales is not None
    report = verify_states(config, OFFLINE)
    assert report.problems == ()
    assert report.probe is not None
    assert report.probe.agreement == 1.0
    rewritten(config, lambda states: with_final(states, states.final.read().roll(1, 0)))
    assert "expected 95.0%: they are shifted" in verify_states(config, OFFLINE).problems[0]


def test_a_token_one_step_of_bfloat16_below_the_best_is_as_likely() -> None:
    """Logits 24, 23.875 and 23.75 of one state: the last is two steps of an eighth away."""
    head_VH = torch.tensor([[24.0, 0.0], [23.875, 0.0], [23.75, 0.0], [-24.0, 0.0]]).bfloat16()
    weights = VerifierWeights(embedding_VH=head_VH, norm_H=torch.full((2,), 0.5**0.5), head_VH=head_VH)
    final_FH = torch.tensor([[3.0, 0.0]] * 4).bfloat16()
    found = as_likely(final_FH, torch.tensor([0, 1, 2, 3]), weights, 0.0)
    assert found.tolist() == [True, True, False, False]


def test_final_states_shifted_by_one_are_caught(run: RunConfig) -> None:
    """Every most likely token is that of the neighbour."""
    rewritten(run, lambda states: with_final(states, states.final.read().roll(1, 0)))
    report = verify_states(run, OFFLINE)
    assert report.probe is not None
    assert report.probe.agreement < 0.2
    assert "they are shifted, or of another layer" in report.problems[0]


def test_final_states_after_the_norm_are_caught(run: RunConfig) -> None:
    """The most likely tokens can't tell where the norm's weights are all one; the states' size does."""
    norm_H = read_weights(Path(run.verifier.model)).norm_H

    def normed(states: SampleStates) -> SampleStates:
        final_TH = states.final.read().float()
        normed_TH = torch.nn.functional.rms_norm(final_TH, final_TH.shape[-1:], norm_H, 1e-6)
        return with_final(states, normed_TH.bfloat16())

    rewritten(run, normed)
    assert verify_states(run, OFFLINE).problems == (
        "final states: are after the verifier's final norm; they must be taken before it",
    )


def test_damage_and_values_that_are_not_finite_are_named(run: RunConfig) -> None:
    """Shard and sample stand in the report, which goes on to the end."""
    first, second = (run.states_path / entry.file for entry in read_index(run.states_path)[:2])
    data = bytearray(first.read_bytes())
    data[-1] ^= 1
    first.write_bytes(data)
    shutil.rmtree(run.states_path / "spool", ignore_errors=True)
    problems = verify_states(run, OFFLINE).problems
    assert "states-00000.safetensors: sha256 is" in problems[0]
    assert "1 samples of the dataset have no states, the first is seed00-0" in problems
    assert second.exists()

    def with_nan(states: SampleStates) -> SampleStates:
        final_TH = states.final.read().clone()
        final_TH[0, 0] = torch.nan
        return with_final(states, final_TH)

    first.write_bytes(bytes(data[:-1]) + bytes([data[-1] ^ 1]))
    rewritten(run, with_nan)
    assert "sample seed00-0: has states that are not finite" in verify_states(run, OFFLINE).problems


def test_token_ids_shifted_by_one_are_caught(run: RunConfig) -> None:
    """States that were taken of other ids than the dataset's."""

    def shifted(states: SampleStates) -> SampleStates:
        return SampleStates(
            sample_id=states.sample_id,
            token_ids_T=states.token_ids_T.roll(1),
            aux=states.aux,
            final=states.final,
            final_at_F=states.final_at_F,
        )

    rewritten(run, shifted)
    problems = verify_states(run, OFFLINE).problems
    assert "sample seed00-0: its states are of other token ids than the dataset has" in problems


def test_the_command_prints_the_report_and_its_exit_code_is_the_verdict(
    run: RunConfig, tmp_path: Path
) -> None:
    """0 for a sound set, 1 with a line for each problem."""
    path = tmp_path / "c.yaml"
    save_config(run, path)
    told = CliRunner().invoke(app, ["verify", "states", str(path)])
    assert told.exit_code == 0, told.output
    assert "most likely next token: 100.00% of" in told.output
    shard = run.states_path / read_index(run.states_path)[0].file
    tensors = load_file(shard)
    save_file({**tensors, "aux": tensors["aux"] + 1}, shard)
    told = CliRunner().invoke(app, ["verify", "states", str(path)])
    assert told.exit_code == 1
    assert "wrong: " in told.output

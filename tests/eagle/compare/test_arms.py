"""The arms' directories, and their training, without a server."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from eagle.compare.arms import arms_of, fewest_tokens
from eagle.compare.trained import train_command
from eagle.feed import ShardFeed
from synthgen.corpus.manifest import read_manifest
from synthgen.corpus.samples import read_samples
from synthgen.errors import ArtifactError, ConfigError
from tests.eagle.compare.two_parts import two_parts, write_two_parts


def test_arms_are_equal_in_what_training_counts(tmp_path: Path) -> None:
    """Targets of all documents, and updates; the states are links, the vocabulary the run's."""
    config = two_parts(tmp_path)
    write_two_parts(config)
    arms = arms_of(config, None)
    assert [arm.name for arm in arms] == ["generic", "native", "mix"]
    targets = [sum(o.target_weights[0] for o in ShardFeed(arm.config).outlines) for arm in arms]
    assert targets == [93.0, 93.0, 93.0]  # what the 12 replies of 6 to 10 tokens have
    assert {arm.figures["supervised_tokens"] for arm in arms} == {93}
    assert len({arm.updates for arm in arms}) == 1
    assert arms[0].config.train.batch_tokens > arms[1].config.train.batch_tokens == 64
    for arm in arms:
        shards = list(arm.config.states_path.glob("states-*.safetensors"))
        assert shards
        assert all(shard.is_symlink() and shard.resolve().parent == config.states_path for shard in shards)
        assert (arm.config.vocab_path / "vocab.safetensors").read_bytes() == (
            config.vocab_path / "vocab.safetensors"
        ).read_bytes()
        assert read_samples(arm.config.validation_path, 64) == []


def test_other_tokens_than_before_are_refused(tmp_path: Path) -> None:
    """What is there stays."""
    config = two_parts(tmp_path)
    write_two_parts(config)
    arms = arms_of(config, 60)
    with pytest.raises(ArtifactError, match=r"made with settings.tokens = 60, this run has 61: set it back"):
        arms_of(config, 61)
    with pytest.raises(ConfigError, match=r"--tokens 94 is more than part 'generic' has supervised, 93"):
        arms_of(config, 94)
    found = read_manifest(arms[0].config.dataset_path)
    assert found is not None
    assert found.settings["tokens"] == 60


def test_samples_without_states_are_in_no_arm(tmp_path: Path) -> None:
    """Their tokens aren't counted either."""
    config = two_parts(tmp_path)
    write_two_parts(config)
    index = config.states_path / "index.jsonl"
    index.write_bytes(b"".join(index.read_bytes().splitlines(keepends=True)[1:]))  # seed00, of generic
    arms = arms_of(config, None)
    assert {arm.figures["supervised_tokens"] for arm in arms} == {87}
    assert "seed00-0" not in {sample.id for sample in read_samples(arms[0].config.train_path, 64)}


def test_the_shortest_batch_that_makes_few_enough_updates() -> None:
    """100 tokens in batches of 10 are 10 updates; 7 take batches of 15; four times as long is the most."""
    assert fewest_tokens(lambda tokens: -(-100 // tokens), 10, 10) == 10
    assert fewest_tokens(lambda tokens: -(-100 // tokens), 10, 7) == 15
    assert fewest_tokens(lambda tokens: -(-100 // tokens), 10, 1) == 40


def test_training_on_many_gpus_goes_through_torchrun() -> None:
    """As `synthgen run` starts it."""
    assert train_command(Path("run.yaml"), 1)[1:] == ["-m", "eagle", "train", "run.yaml"]
    many = train_command(Path("run.yaml"), 8)[1:]
    assert many[:5] == ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "8"]
    assert many[-4:] == ["-m", "eagle", "train", "run.yaml"]


def test_an_arm_reads_back_as_a_run_of_its_own(tmp_path: Path) -> None:
    """Its rows are samples with their part."""
    config = two_parts(tmp_path)
    write_two_parts(config)
    mixed = arms_of(config, 60)[2].config
    lines = mixed.train_path.read_bytes().splitlines()
    assert {msgspec.json.decode(line)["part"] for line in lines} == {"generic", "native"}
    assert len(ShardFeed(mixed).outlines) == len(lines)

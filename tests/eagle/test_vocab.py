"""The draft's vocabulary."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from eagle.vocab import (
    VocabMap,
    build_vocab,
    count_supervised,
    coverage,
    load_vocab,
    make_vocab,
    require_states,
    save_vocab,
)
from synthgen.corpus.files import sha256_of
from synthgen.corpus.samples import Sample, Span, SpanKind
from synthgen.errors import ArtifactError, ConfigError
from tests.eagle.tiny import tiny_config, write_run


def sample(token_ids: tuple[int, ...], *spans: tuple[int, int, SpanKind]) -> Sample:
    made = tuple(Span(start=start, end=end, kind=kind) for start, end, kind in spans)
    return Sample(id="s", domain="d", token_ids=token_ids, spans=made)


def test_counts_only_supervised_tokens_that_can_be_targets() -> None:
    """Prompt tokens don't count, nor do a document's first two, which no slot predicts."""
    samples = [
        sample((5, 5, 5, 1, 2, 1), (3, 5, SpanKind.THINKING), (5, 6, SpanKind.RESPONSE)),
        sample((4, 4, 4, 3), (0, 4, SpanKind.RESPONSE)),
    ]
    assert count_supervised(samples, 6).tolist() == [0, 2, 1, 1, 1, 0]


def test_token_beyond_the_verifier_names_the_sample() -> None:
    """A corpus of another model is refused with the id, the limit and what to do."""
    with pytest.raises(ArtifactError, match=r"sample s has token id 9, .* has 6: .* set verifier\.model"):
        count_supervised([sample((1, 9))], 6)


def test_most_frequent_first_then_lowest_id() -> None:
    """Counts 3 1 0 1 0 2 at size 4: tokens 0 and 5 by count, 1 and 3 by their id; offsets 0 0 1 2."""
    vocab = build_vocab(torch.tensor([3, 1, 0, 1, 0, 2]), 4)
    assert vocab.target_ids_K.tolist() == [0, 1, 3, 5]
    assert vocab.d2t_K.tolist() == [0, 0, 1, 2]
    assert vocab.t2d_V.tolist() == [True, True, False, True, False, True]


def test_unseen_tokens_fill_from_the_lowest_id() -> None:
    """With one token seen and three wanted, the lowest two of the others come along."""
    assert build_vocab(torch.tensor([0, 0, 0, 7]), 3).target_ids_K.tolist() == [0, 1, 3]


def test_coverage_is_the_share_of_supervised_tokens() -> None:
    """Six of seven supervised tokens are in the vocabulary; without any the share is 0."""
    counts_V = torch.tensor([3, 1, 0, 1, 0, 2])
    assert coverage(counts_V, build_vocab(counts_V, 3)) == pytest.approx(6 / 7)
    assert coverage(torch.zeros(6), build_vocab(counts_V, 3)) == 0.0


def test_size_beyond_the_verifier_is_refused() -> None:
    """The message has both sizes."""
    with pytest.raises(ConfigError, match=r"vocab\.size 7 is more than the verifier's vocabulary of 6"):
        build_vocab(torch.zeros(6), 7)


@pytest.mark.parametrize("offsets", [[0, 0, 0], [0, 0], [1, 0], [0, -1]])
def test_a_map_that_contradicts_itself_cannot_be_made(offsets: list[int]) -> None:
    """d2t must list exactly the tokens that t2d marks, in rising order."""
    t2d_V = torch.tensor([True, False, True, False])
    with pytest.raises(ArtifactError, match="doesn't list the 2 tokens"):
        VocabMap(t2d_V, torch.tensor(offsets))


def test_reads_back_what_was_written(tmp_path: Path) -> None:
    """Saved and loaded maps are equal; a missing or damaged file says what to do."""
    vocab = build_vocab(torch.tensor([3, 1, 0, 1, 0, 2]), 4)
    with pytest.raises(ArtifactError, match="run `eagle vocab CONFIG` first"):
        load_vocab(tmp_path)
    save_vocab(vocab, tmp_path)
    again = load_vocab(tmp_path)
    assert torch.equal(again.t2d_V, vocab.t2d_V)
    assert torch.equal(again.d2t_K, vocab.d2t_K)
    (tmp_path / "vocab.safetensors").write_bytes(b"torn")
    with pytest.raises(ArtifactError, match="damaged"):
        load_vocab(tmp_path)


def test_make_vocab_counts_the_corpus_and_is_left_alone_after(tmp_path: Path) -> None:
    """Replies of 8 and 9 tokens, four of each thinking, token 13 twice; a second call changes nothing."""
    config = tiny_config(tmp_path, vocab__size="3")
    write_run(config, samples=2)
    manifest = make_vocab(config)
    assert manifest.figures == {
        "size": 3,
        "coverage": pytest.approx(4 / 17),
        "sha256": sha256_of(config.vocab_path / "vocab.safetensors"),
        "supervised_tokens": 17,
        "thinking_tokens": 8,
        "response_tokens": 9,
        "tool_tokens": 0,
    }
    written = (config.vocab_path / "vocab.safetensors").stat().st_mtime_ns
    assert make_vocab(config) == manifest
    assert (config.vocab_path / "vocab.safetensors").stat().st_mtime_ns == written


def test_another_size_than_the_one_on_disk_is_refused(tmp_path: Path) -> None:
    """A vocabulary that was made with other settings isn't overwritten silently."""
    write_run(tiny_config(tmp_path), samples=2)
    with pytest.raises(ArtifactError, match=r"settings\.size = 20, this run has 4"):
        make_vocab(tiny_config(tmp_path, vocab__size="4"))


def test_states_of_other_layers_are_refused(tmp_path: Path) -> None:
    """Mixing up tap layers loses acceptance silently, so the manifest of the states must name the same."""
    write_run(tiny_config(tmp_path), samples=2)
    with pytest.raises(
        ArtifactError, match=r"settings\.taps\.ids = \[2, 4, 5, 8\], this run has \[1, 4, 5, 8\]"
    ):
        require_states(tiny_config(tmp_path, extract__aux_layers="[1, 4, 5]"))

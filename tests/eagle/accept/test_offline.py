"""The draft on hidden states, walked as serving walks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from eagle.accept.heldout import heldout_documents
from eagle.accept.offline import Judge, Judged, load_exported, offline_of
from eagle.batches import Document, Kind
from eagle.draft import unroll
from eagle.export import export
from eagle.feed import read_documents
from eagle.train import train
from synthgen.corpus.config import RunConfig
from synthgen.errors import ArtifactError
from tests.eagle.tiny import tiny_config, write_run

NONE, THINKING, RESPONSE = int(Kind.NONE), int(Kind.THINKING), int(Kind.RESPONSE)


def judged(runs: tuple[int, ...], kinds: tuple[int, ...]) -> Judged:
    """A document with these runs of its slots."""
    return Judged(sample_id="s", domain="d", runs=runs, kinds=kinds, hits=(0, 0, 0), slots=(1, 1, 1))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    """A draft that has half learned to count, exported, with five samples held out."""
    config = tiny_config(tmp_path_factory.mktemp("offline"), train__learning_rate="0.02")
    write_run(config, heldout=5)
    train(config)
    export(config)
    return config


def test_a_walk_goes_on_behind_what_each_step_gave() -> None:
    """Prompt of two, reply of eight at 2 to 9: token 2 comes with the prompt, the step for 3 is slot 1's.

    It accepts 2 and gives 3, 4, 5; slot 4's accepts nothing and gives 6; slot 5's would accept three of
    three, but the reply ends with its token 9.
    """
    kinds = (NONE, NONE, THINKING, THINKING, THINKING, RESPONSE, RESPONSE, RESPONSE, RESPONSE, RESPONSE)
    one = judged((9, 2, 9, 9, 0, 3, 9, 9, 9), kinds)
    assert list(one.walk(3)) == [(3, 2), (6, 0), (7, 2)]
    assert one.steps(3).accepted == (2, 0, 2)
    assert one.steps(3).steps_by_span == {"thinking": 1, "response": 2}
    assert list(one.walk(1)) == [(3, 1), (5, 1), (7, 1), (9, 0)]


def test_each_reply_of_a_sample_is_walked() -> None:
    """Two supervised stretches: neither walk reaches into what lies between."""
    one = judged(
        (3,) * 9, (NONE, NONE, RESPONSE, RESPONSE, NONE, NONE, RESPONSE, RESPONSE, RESPONSE, RESPONSE)
    )
    assert list(one.walk(3)) == [(3, 0), (7, 2)]


@given(st.lists(st.integers(0, 7), min_size=3, max_size=60), st.integers(1, 7))
def test_a_walk_gives_each_token_once(runs: list[int], tokens: int) -> None:
    """All of the reply but its first token, whatever the draft accepts."""
    one = judged(tuple(runs), (NONE, *[RESPONSE] * len(runs)))
    walked = list(one.walk(tokens))
    given = [at + more for at, accepted in walked for more in range(accepted + 1)]
    assert given == list(range(2, len(runs) + 1))
    assert all(0 <= accepted <= tokens for _, accepted in walked)


def from_definition(judge: Judge, document: Document, steps: int) -> list[int]:
    """How many of the first drafted tokens are the verifier's at each slot, drafted greedily one by one."""
    draft, verifier = judge.objective.draft, judge.objective.verifier
    tokens, kinds = document.token_ids_T, document.next_kind_T.tolist()
    runs = []
    for slot in range(len(tokens) - 1):
        own, run = tokens[: slot + 2].tolist(), 0
        aux_T3H = document.states.aux.read()[: slot + 1].float()
        for step in range(steps):
            padded = torch.cat((aux_T3H, aux_T3H.new_zeros(len(own) - slot - 1, 3, aux_T3H.shape[-1])))
            embedded = verifier.embedding_VH[torch.tensor(own)]
            out = unroll(
                draft, torch.float32, padded, embedded, torch.tensor([slot]), (0, len(own)), step + 1
            )
            own.append(int(verifier.target_ids_K[F.linear(out[step, 0], draft.lm_head.weight).argmax()]))
            target = slot + 1 + step
            if target >= len(tokens) or not kinds[target] or own[-1] != (int(tokens[target]) + 3) % 24:
                break
            run += 1
        runs.append(run)
    return [*runs, 0]


def test_runs_equal_the_definition(run: RunConfig) -> None:
    """Drafted slot by slot, each token fed to the next step as serving does; the states say what follows."""
    judge = Judge.of(run, run.export_path, 3)
    documents = read_documents(run, run.validation_path)
    found = [judge.judge(document, "d") for document in documents]
    with torch.no_grad():
        expected = [from_definition(judge, document, 3) for document in documents]
    assert [list(one.runs) for one in found] == expected
    assert 0 < sum(map(sum, expected)) < 3 * sum(map(len, expected))


def test_heldout_samples_are_judged_with_their_domains(run: RunConfig) -> None:
    """Five samples that count: by domain, by span, and with 1 to 5 draft tokens."""
    judge = Judge.of(run, run.export_path, 5)
    found = [judge.judge(document, domain) for document, domain in heldout_documents(run)]
    assert {one.domain for one in found} == {"count"}
    offline = offline_of(found, 3, seed=7)
    assert offline is not None
    assert offline.walked.prompts == 5
    assert set(offline.walked.by_span) == {"thinking", "response"}
    assert len(offline.by_draft_tokens) == 5
    lengths = [one.length for one in offline.by_draft_tokens]
    assert lengths == sorted(lengths)
    assert offline.by_draft_tokens[2] == offline.walked.whole


def test_a_run_without_heldout_samples_says_so(tmp_path: Path) -> None:
    """What to set, or to run first."""
    config = tiny_config(tmp_path)
    write_run(config)
    with pytest.raises(ArtifactError, match=r"has no samples: set mix\.heldout_fraction above 0"):
        heldout_documents(config)
    (config.states_path / "manifest.json").unlink()
    with pytest.raises(ArtifactError, match="run `eagle extract CONFIG` first"):
        heldout_documents(config)


def test_a_draft_of_another_shape_is_refused(run: RunConfig, tmp_path: Path) -> None:
    """One line for each difference, as for a draft to begin with."""
    other = tiny_config(tmp_path, draft__intermediate_size="64")
    write_run(other)
    with pytest.raises(ArtifactError, match=r"isn't the draft that this run describes:\n.*mlp"):
        load_exported(other, run.export_path)

"""Packing and alignment."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle.batches import (
    Batch,
    Document,
    blank_batch,
    find_targets,
    join,
    join_all,
    kind_weights,
    next_kinds,
    outline_of,
    pack,
    plan_epoch,
)
from eagle.states import SampleStates
from synthgen.corpus.draft_sections import SpanWeights
from synthgen.corpus.samples import Sample, Span, SpanKind
from synthgen.errors import ArtifactError


def sample(tokens: int, *spans: tuple[int, int, SpanKind], name: str = "s") -> Sample:
    made = tuple(Span(start=start, end=end, kind=kind) for start, end, kind in spans)
    return Sample(id=name, domain="d", token_ids=tuple(range(tokens)), spans=made)


def states(tokens: int, name: str = "s") -> SampleStates:
    values = torch.arange(tokens * 4.0).view(tokens, 4, 1)
    return SampleStates.captured(name, torch.arange(tokens), values)


def batch_of(*kinds: list[int], multiple: int = 1) -> Batch:
    documents = [
        Document(
            states=SampleStates.captured(str(n), torch.arange(len(kind)), torch.zeros(len(kind), 4, 1)),
            next_kind_T=torch.tensor(kind, dtype=torch.uint8),
        )
        for n, kind in enumerate(kinds)
    ]
    return pack(documents, multiple)


def test_kinds_are_those_of_the_next_token() -> None:
    """Prompt 0-1, thinking 2-3, response 4, tool 5: token 1 is followed by thinking, token 5 by nothing."""
    spans = (2, 4, SpanKind.THINKING), (4, 5, SpanKind.RESPONSE), (5, 6, SpanKind.TOOL)
    assert next_kinds(sample(6, *spans), 6).tolist() == [0, 1, 1, 2, 3, 0]


def test_states_may_stop_before_the_last_token() -> None:
    """Five states of six tokens: the last state's successor is known from the sample and still supervised."""
    document = join(states(5), sample(6, (4, 6, SpanKind.RESPONSE)), 64)
    assert document.next_kind_T.tolist() == [0, 0, 0, 2, 2]


def test_a_long_sample_is_cut() -> None:
    """Cut to three tokens, it keeps the kinds of the tokens after each of them."""
    document = join(states(6), sample(6, (3, 6, SpanKind.RESPONSE)), 3)
    assert (len(document.token_ids_T), document.next_kind_T.tolist()) == (3, [0, 0, 2])


def test_states_of_other_tokens_are_refused() -> None:
    """The error names the sample, the place and both ids."""
    other = Sample(id="s", domain="d", token_ids=(0, 1, 9, 3), spans=())
    with pytest.raises(ArtifactError, match=r"sample s: .* at token 2: \[2, 3\] in the states, \[9, 3\]"):
        join(states(4), other, 64)


def test_states_of_samples_that_are_gone_are_passed_over() -> None:
    """A dataset that was mixed anew may lack some; shards of another run altogether don't slip in."""
    here = {"s": sample(4, (2, 4, SpanKind.RESPONSE))}
    assert [document.sample_id for document in join_all([states(4), states(4, "x")], here, 64)] == ["s"]
    with pytest.raises(ArtifactError, match="none of the states is of a sample of this dataset"):
        join_all([states(4, "x")], here, 64)


def test_nothing_to_learn_is_refused() -> None:
    """Samples whose replies all lie beyond the cut leave nothing to train on."""
    with pytest.raises(ArtifactError, match=r"none of the 1 samples .* first 3: raise train\.max_seq_tokens"):
        join_all([states(6)], {"s": sample(6, (4, 6, SpanKind.RESPONSE))}, 3)


def test_alignment_is_servings() -> None:
    """A reply at tokens 3-5: step 0 predicts them from slots 1-3, the first from the token before the last
    prompt token; step s predicts the same from s slots further back."""
    targets = find_targets(batch_of([0, 0, 1, 1, 1, 0]), 3)
    assert targets.targets_P.tolist() == [2, 3, 4]
    assert targets.slots_N.tolist() == [0, 1, 2, 3]
    slots = [[targets.slots_N[r].item() for r in row] for row in targets.row_SP]
    assert slots == [[1, 2, 3], [0, 1, 2], [slots[2][0], 0, 1]]
    assert targets.valid_SP.tolist() == [[True, True, True], [True, True, True], [False, True, True]]


def test_no_slot_reaches_across_documents() -> None:
    """The second document's first token is no target, its second is one of step 0 only."""
    targets = find_targets(batch_of([0, 1, 0], [1, 1, 0]), 2)
    assert targets.targets_P.tolist() == [1, 4]
    assert targets.slots_N.tolist() == [0, 3]
    assert targets.valid_SP.tolist() == [[True, True], [False, False]]


kinds_lists = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=12), min_size=1, max_size=5)


@settings(deadline=None)
@given(kinds_lists, st.integers(1, 4), st.sampled_from([1, 8]))
def test_every_supervised_slot_once_and_within_its_document(
    kinds: list[list[int]], steps: int, multiple: int
) -> None:
    """At each step the valid slots are exactly those whose token t + 2 + s is supervised in t's document."""
    batch = batch_of(*kinds, multiple=multiple)
    targets = find_targets(batch, steps, multiple)
    assert targets.slots_N.tolist() == sorted(set(targets.slots_N.tolist()))
    for step in range(steps):
        valid_P = targets.valid_SP[step]
        found = targets.slots_N[targets.row_SP[step, valid_P]].tolist()
        expected = [
            start + t
            for kind, start in zip(kinds, batch.starts, strict=False)
            for t in range(len(kind))
            if t + 1 + step < len(kind) and kind[t + 1 + step]
        ]
        assert found == expected
        assert targets.targets_P[valid_P].tolist() == [t + 1 + step for t in expected]


@settings(deadline=None)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=30), st.integers(0, 5), st.integers(0, 3))
def test_every_document_is_in_one_batch_and_none_is_too_large(
    lengths: list[int], seed: int, epoch: int
) -> None:
    """A plan is a partition within the budget, and the same seed and epoch give the same plan."""
    plan = plan_epoch(lengths, 20, seed, epoch)
    assert sorted(itertools.chain.from_iterable(plan)) == list(range(len(lengths)))
    assert all(0 < sum(lengths[n] for n in batch) <= 20 for batch in plan)
    assert plan == plan_epoch(lengths, 20, seed, epoch)


def test_epochs_differ_in_order() -> None:
    """Each epoch has its own permutation."""
    assert plan_epoch([1] * 8, 8, 7, 0) != plan_epoch([1] * 8, 8, 7, 1)


def test_packing_keeps_tokens_states_and_starts() -> None:
    """Two documents end to end, without padding: what each row holds and where each begins."""
    documents = [
        join(states(n, str(n)), sample(n, (1, n, SpanKind.RESPONSE), name=str(n)), 64) for n in (2, 3)
    ]
    batch = pack(documents)
    assert batch.token_ids_T.tolist() == [0, 1, 0, 1, 2]
    assert batch.starts == (0, 2, 5)
    assert batch.aux_T3H[2].flatten().tolist() == [0.0, 1.0, 2.0]
    assert find_targets(batch, 1).targets_P.tolist() == [3]
    assert batch.final_PH.flatten().tolist() == [7.0]
    assert batch.next_kind_T.tolist() == [2, 0, 2, 2, 0]


def test_a_batch_is_filled_up_with_a_document_without_targets() -> None:
    """Five tokens up to eight: three that nothing is learned from."""
    batch = batch_of([0, 1, 1], [0, 1], multiple=4)
    assert batch.token_ids_T.tolist() == [0, 1, 2, 0, 1, 0, 0, 0]
    assert batch.next_kind_T.tolist() == [0, 1, 1, 0, 1, 0, 0, 0]
    assert batch.starts == (0, 3, 5, 8)
    assert batch.aux_T3H.shape == (8, 3, 1)


def test_slots_are_filled_up_with_the_first_that_are_none() -> None:
    """Slots 3 and 4 predict; 0 and 1 come to them, never the last token, and all there are when too few."""
    batch = batch_of([0, 0, 0, 0, 1, 1])
    assert find_targets(batch, 1).slots_N.tolist() == [3, 4]
    filled = find_targets(batch, 1, 4)
    assert filled.slots_N.tolist() == [0, 1, 3, 4]
    assert filled.row_SP.tolist() == [[2, 3]]
    assert find_targets(batch, 1, 32).slots_N.tolist() == [0, 1, 2, 3, 4]


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.integers(1, 4))
def test_an_outline_weighs_the_targets_that_a_batch_finds(kinds: list[int], steps: int) -> None:
    """Thinking 1, response 2, tool 4: the sums are those over the valid targets of each step."""
    weights = SpanWeights(thinking=1.0, response=2.0, tool=4.0)
    batch = batch_of(kinds)
    targets = find_targets(batch, steps)
    assert len(batch.final_PH) == len(targets.targets_P)
    weight_P = kind_weights(weights)[batch.next_kind_T[targets.targets_P].long()]
    outline = outline_of("s", batch.next_kind_T, weights, steps)
    assert outline.num_tokens == len(kinds)
    assert list(outline.target_weights) == (targets.valid_SP * weight_P).sum(1).tolist()


def test_a_blank_batch_has_targets_at_every_step() -> None:
    """Five tokens that weigh something: four of them targets, three of which have a slot three back."""
    found = find_targets(blank_batch(5, 8), 3)
    assert found.valid_SP.sum(1).tolist() == [4, 3, 2]

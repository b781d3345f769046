"""What a server accepts along a reply, step by step."""

from __future__ import annotations

from pathlib import Path

import torch
from hypothesis import given
from hypothesis import strategies as st

from eagle.draft import build_draft
from eagle.vocab import build_vocab
from eagle.walk import Walk, hits, proposals, walk
from tests.eagle.tiny import HIDDEN, VOCAB, counting_states, counting_weights, tiny_config


def marks(rows: list[str]) -> torch.Tensor:
    """`[S, N]` bool of rows in which x is a hit."""
    return torch.tensor([[mark == "x" for mark in row] for row in rows])


def test_a_reply_is_gone_along_as_a_server_does() -> None:
    """Two prompt tokens, so from slot 1 on: all three are right, then one of slot 5, then none of slot 7."""
    found = walk(marks(["xx...x..", "xx......", "xxx....."]), prompt_tokens=2)
    assert found == Walk(drafts=3, least_S=(2, 1, 1), most_S=(2, 1, 1))


def test_a_reply_of_one_token_has_no_draft() -> None:
    """Nothing comes after its first token, which the prompt gives."""
    assert walk(marks(["x", "."]), prompt_tokens=2) == Walk(drafts=0, least_S=(0, 0), most_S=(0, 0))


def test_the_end_of_a_reply_is_between_a_least_and_a_most() -> None:
    """All that is left is right: the server may have drafted on, or left the last token to the verifier."""
    found = walk(marks(["x", ".", "."]), prompt_tokens=1)
    assert found == Walk(drafts=1, least_S=(0, 0, 0), most_S=(1, 1, 1))
    found = walk(marks([".", ".", "."]), prompt_tokens=1)
    assert found == Walk(drafts=1, least_S=(0, 0, 0), most_S=(0, 0, 0))


def test_walks_add_up() -> None:
    """Of several replies."""
    one = Walk(drafts=2, least_S=(1, 0), most_S=(1, 1))
    assert one + one == Walk(drafts=4, least_S=(2, 0), most_S=(2, 2))


@given(st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=1, max_size=30), st.integers(1, 5))
def test_every_token_of_a_reply_is_accounted_for(slots: list[list[bool]], prompt: int) -> None:
    """Each step yields what it accepts at the least, and one more: together the reply less its first."""
    hits_SN = torch.tensor(slots).T
    for step in range(3):  # nothing is hit beyond the end
        hits_SN[step, max(len(slots) - step, 0) :] = False
    found = walk(hits_SN, prompt)
    assert found.drafts + sum(found.least_S) == max(len(slots) - prompt + 1, 0)
    assert all(least <= most for least, most in zip(found.least_S, found.most_S, strict=True))


def test_hits_are_of_the_token_that_a_slot_predicts() -> None:
    """Slot t's step s is for token t + 2 + s; beyond the end there is nothing to hit."""
    ids_T = torch.tensor([3, 6, 9, 12])
    assert hits(torch.tensor([[9, 0], [12, 99]]), ids_T).tolist() == [[True, False], [True, False]]
    assert hits(torch.tensor([[9, 12], [12, 12]]), ids_T).tolist() == [[True, True], [True, False]]


def test_proposals_are_the_verifiers_ids(tmp_path: Path) -> None:
    """A slot for each token that has two after it, and only tokens that the draft knows."""
    config = tiny_config(tmp_path).draft
    vocab = build_vocab(torch.arange(VOCAB), 20)
    draft = build_draft(config, counting_weights(), vocab, seed=1)
    ids = tuple(3 * at % VOCAB for at in range(9))
    aux_T3H = counting_states(ids)[:, :3]
    found = proposals(draft, aux_T3H, counting_weights().embedding_VH[list(ids)], vocab.target_ids_K, steps=2)
    assert found.shape == (2, 7)
    assert aux_T3H.shape == (9, 3, HIDDEN)
    assert set(found.flatten().tolist()) <= set(vocab.target_ids_K.tolist())

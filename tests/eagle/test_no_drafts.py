"""Decoding without drafts: nothing is proposed, and nothing is drawn for a rejection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from eagle.no_drafts import sampled_plainly, without_drafts


@dataclass
class Proposer:
    """As vLLM's: it caches, and refuses any number of drafts but its own."""

    num_speculative_tokens: int = 1
    cached: int = 0

    def propose(self, num_speculative_tokens: int, sampled_token_ids: torch.Tensor) -> torch.Tensor:
        """One draft a request: the token that was sampled."""
        assert num_speculative_tokens == self.num_speculative_tokens
        self.cached += 1
        return sampled_token_ids[:, :1]


def test_states_are_cached_and_nothing_is_proposed() -> None:
    """With 0 drafts `[batch, 0]` comes back, with 1 what the proposer gave."""
    proposer, propose = Proposer(), without_drafts(Proposer.propose)
    sampled = torch.tensor([[4], [5], [6]])
    assert propose(proposer, 0, sampled_token_ids=sampled).shape == (3, 0)
    assert propose(proposer, 1, sampled_token_ids=sampled).tolist() == [[4], [5], [6]]
    assert proposer.cached == 2


@dataclass
class Metadata:
    """What a step's drafts are."""

    num_draft_tokens: list[int]
    bonus_logits_indices: torch.Tensor


class Sampler:
    """A rejection sampler around a plain one that takes the likeliest token."""

    def sampler(self, logits: torch.Tensor, sampling_metadata: Any) -> list[int]:
        """The likeliest token of each row."""
        return list(logits.argmax(-1).tolist())

    def forward(self, metadata: Metadata, draft_probs: Any, logits: torch.Tensor, sampling: Any) -> str:
        """What a step with drafts goes through."""
        return "rejected"


def test_a_step_without_drafts_is_sampled_plainly_one_row_a_request() -> None:
    """The rows in the order of the requests; a step with any draft goes the usual way."""
    forward = sampled_plainly(Sampler.forward)
    logits = torch.eye(4)
    none = Metadata([0, 0, 0], torch.tensor([2, 0, 1]))
    some = Metadata([0, 1, 0], torch.tensor([0, 2, 3]))
    assert forward(Sampler(), none, None, logits, None) == [2, 0, 1]
    assert forward(Sampler(), some, None, logits, None) == "rejected"

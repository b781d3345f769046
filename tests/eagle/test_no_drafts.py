"""Decoding without drafts: nothing is proposed, and nothing is drawn for a rejection."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from eagle.no_drafts import sampled_plainly, skip_drafts, without_drafts
from synthgen.errors import ServerStartError


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


def test_the_installed_vllm_is_patched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own two functions take what was tested; a second call leaves them as the first did."""
    pytest.importorskip("vllm")
    proposer = importlib.import_module(
        "vllm.v1.spec_decode.extract_hidden_states"
    ).ExtractHiddenStatesProposer
    sampler = importlib.import_module("vllm.v1.sample.rejection_sampler").RejectionSampler
    before = proposer.propose, sampler.forward
    monkeypatch.setattr(proposer, "propose", proposer.propose)  # both are put back after the test
    monkeypatch.setattr(sampler, "forward", sampler.forward)
    skip_drafts(proposer, sampler)
    once = proposer.propose, sampler.forward
    assert once[0] is not before[0]
    assert once[1] is not before[1]
    skip_drafts(proposer, sampler)
    assert (proposer.propose, sampler.forward) == once


def test_a_vllm_with_other_functions_is_refused_before_anything_is_changed() -> None:
    """The function, both lists of parameters and the tested version stand in the error."""

    class Tested:
        """The tested proposer."""

        def propose(
            self,
            num_speculative_tokens: int,
            sampled_token_ids: Any,
            target_hidden_states: Any,
            common_attn_metadata: Any,
            slot_mappings: Any = None,
        ) -> None:
            """Does nothing."""

    propose = Tested.propose
    said = (
        r"test_no_drafts\.Sampler\.forward takes \(self, metadata, draft_probs, logits, sampling\), expected "
        r"\(self, metadata, draft_probs, logits, sampling_metadata\): .*\(0\.32\)"
    )
    with pytest.raises(ServerStartError, match=said):
        skip_drafts(Tested, Sampler)
    assert Tested.propose is propose
    with pytest.raises(ServerStartError, match=r"Proposer\.propose takes \(self, num_speculative_tokens, "):
        skip_drafts(Proposer, Sampler)

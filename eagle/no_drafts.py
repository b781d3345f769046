"""Capture without drafts: states are cached while plain decoding goes on.

vLLM's `extract_hidden_states` hands the sampled token back as a draft, which the verifier then checks: every
decode step runs twice the tokens, for nothing. vLLM can be told to schedule no draft at all
(`num_speculative_tokens_per_batch_size`), but in 0.32 its proposer refuses that, and its rejection sampler
draws random numbers for the whole vocabulary of each request before it finds that there is nothing to reject
(two fifths of a step on the CPU). Here the proposer caches the states and proposes nothing, and a step
without drafts is sampled as without speculation.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from synthgen.errors import ServerStartError

TESTED_VLLM = "0.32"
PROPOSE = (
    "self",
    "num_speculative_tokens",
    "sampled_token_ids",
    "target_hidden_states",
    "common_attn_metadata",
    "slot_mappings",
)
FORWARD = ("self", "metadata", "draft_probs", "logits", "sampling_metadata")
Propose = Callable[..., torch.Tensor]
Forward = Callable[..., Any]


def skip_drafts(proposer: Any, sampler: Any) -> None:
    """Put both functions below into vLLM's classes; a second call changes nothing.

    Raises ServerStartError, before anything is changed, when a function isn't the one that was tested.
    """
    if proposer.propose.__module__ == __name__:
        return
    _require(proposer.propose, PROPOSE)
    _require(sampler.forward, FORWARD)
    proposer.propose = without_drafts(proposer.propose)
    sampler.forward = sampled_plainly(sampler.forward)


def _require(function: Callable[..., Any], expected: tuple[str, ...]) -> None:
    found = tuple(inspect.signature(function).parameters)
    if found != expected:
        raise ServerStartError(
            f"{function.__module__}.{function.__qualname__} takes ({', '.join(found)}), expected "
            f"({', '.join(expected)}): this vLLM is not one the connector was tested with ({TESTED_VLLM}): "
            f"install a tested version"
        )


def without_drafts(propose: Propose) -> Propose:
    """A proposer's `propose` that also takes 0 draft tokens, and then returns `[batch, 0]`."""

    def proposes(self: Any, num_speculative_tokens: int, *args: Any, **kwargs: Any) -> torch.Tensor:
        drafts_B1 = propose(self, self.num_speculative_tokens, *args, **kwargs)
        return drafts_B1[:, :num_speculative_tokens]

    return proposes


def sampled_plainly(forward: Forward) -> Forward:
    """A rejection sampler's `forward` that gives a step without drafts to the plain sampler."""

    def forwards(
        self: Any, metadata: Any, draft_probs: Any, logits: torch.Tensor, sampling_metadata: Any
    ) -> Any:
        if any(metadata.num_draft_tokens):
            return forward(self, metadata, draft_probs, logits, sampling_metadata)
        logits_BV = logits[metadata.bonus_logits_indices]
        return self.sampler(logits=logits_BV, sampling_metadata=sampling_metadata)

    return forwards

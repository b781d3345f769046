"""Capture without drafts: vLLM's `extract_hidden_states` computes a dummy draft token in each decode step.

Its proposer hands the sampled token back as a draft, which the verifier then checks: every decode step runs
twice the tokens, for nothing. vLLM can be told to schedule no draft at all
(`num_speculative_tokens_per_batch_size`), but its proposer of 0.32 refuses that. The one here caches the
states all the same and proposes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Propose = Callable[..., torch.Tensor]


def without_drafts(propose: Propose) -> Propose:
    """A proposer's `propose` that also takes 0 draft tokens, and then returns `[batch, 0]`."""

    def proposes(self: Any, num_speculative_tokens: int, *args: Any, **kwargs: Any) -> torch.Tensor:
        drafts_B1 = propose(self, self.num_speculative_tokens, *args, **kwargs)
        return drafts_B1[:, :num_speculative_tokens]

    return proposes

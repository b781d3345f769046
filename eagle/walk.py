"""What a server would accept of a draft along a given reply, computed from the verifier's states.

Greedy and one request at a time: in each step the draft proposes some tokens after the last known one, and
the server keeps as many as the reply goes on with, and one of its own. A proposal counts only while all
before it were right, and then it was made from the reply's own tokens: so one unrolled pass over the whole
reply, as in training, holds every step that a server takes.

Axes: T tokens of prompt and reply, S steps (draft tokens), N slots, H hidden size, K draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from eagle.draft import Draft

LOGITS_AT_ONCE = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """What is accepted: `drafts` steps, and of them those whose token at each position is.

    In a reply's last step a server drafts beyond its end, or stops short of it: nobody sees what it counts
    there. So there is a least and a most, but only one number of steps.
    """

    drafts: int
    least_S: tuple[int, ...]
    most_S: tuple[int, ...]

    def __add__(self, other: Walk) -> Walk:
        return Walk(
            drafts=self.drafts + other.drafts,
            least_S=tuple(map(sum, zip(self.least_S, other.least_S, strict=True))),
            most_S=tuple(map(sum, zip(self.most_S, other.most_S, strict=True))),
        )


@torch.no_grad()
def proposals(
    draft: Draft, aux_T3H: torch.Tensor, embeddings_TH: torch.Tensor, target_ids_K: torch.Tensor, steps: int
) -> torch.Tensor:
    """`[S, N]`: the verifier's id that the slot of each of the first T - 2 tokens proposes at each step."""
    slots_N = torch.arange(max(len(aux_T3H) - 2, 0))
    outputs_SNH = draft(aux_T3H, embeddings_TH, slots_N, (0, len(aux_T3H)), steps)
    rows = max(1, LOGITS_AT_ONCE // len(target_ids_K))
    flat = outputs_SNH.flatten(0, 1)
    best = torch.cat([draft.lm_head(part).argmax(-1) for part in torch.split(flat, rows)])
    return target_ids_K[best].view(steps, -1)


def hits(proposals_SN: torch.Tensor, token_ids_T: torch.Tensor) -> torch.Tensor:
    """`[S, N]` bool: whether a slot's proposal is the token that comes; false beyond the end."""
    steps, slots = proposals_SN.shape
    hits_SN = torch.zeros(steps, slots, dtype=torch.bool)
    for step in range(steps):
        coming = token_ids_T[2 + step :]
        hits_SN[step, : len(coming)] = proposals_SN[step, : len(coming)] == coming
    return hits_SN


def verify_steps(runs: Sequence[int], start: int, end: int, most: int) -> Iterator[tuple[int, int]]:
    """The verify steps of a reply at tokens [start, end): the first token and the accepted ones of each.

    runs: of each token as a slot, how many of the first tokens that it drafts are right; `most` at most. A
    reply's first token comes with its prompt, which nothing was drafted for; its last step is cut where it
    ends.
    """
    at = start + 1
    while at < end:
        accepted = min(runs[at - 2], most, end - 1 - at) if at > 1 else 0
        yield at, accepted
        at += accepted + 1


def walk(hits_SN: torch.Tensor, prompt_tokens: int) -> Walk:
    """Go along a reply that begins after `prompt_tokens` tokens, as a server does."""
    steps, slots = hits_SN.shape
    runs = hits_SN.int().cumprod(0).sum(0).tolist()
    walked = [(runs[at - 2], taken) for at, taken in verify_steps(runs, prompt_tokens, slots + 2, steps)]
    return Walk(
        drafts=len(walked),
        least_S=tuple(sum(place < taken for _, taken in walked) for place in range(steps)),
        most_S=tuple(
            sum(place < (steps if run > taken else taken) for run, taken in walked) for place in range(steps)
        ),
    )

"""vLLM 0.32 on the CPU samples wrongly at temperature > 0 when a speculative method is on.

Its CPU stand-in for `expand_batch_to_tokens` drops the output, so logits are divided by
uninitialised memory (vllm-project/vllm#55005). Hidden-state capture counts as a speculative method:
a corpus sampled under it would be garbled without any error. Greedy decoding is right. The guard
tests the function on a tiny input, replaces it when it is wrong, and refuses when that doesn't help.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import torch

from synthgen.errors import ServerStartError

NAME = "expand_batch_to_tokens"
Expand = Callable[..., torch.Tensor]


def expand_batch_to_tokens(
    x: torch.Tensor,
    cu_num_tokens: torch.Tensor,
    num_tokens: int,
    replace_from: int = 0,
    replace_to: int = 0,
) -> torch.Tensor:
    """Repeat each request's value x `[B]` for each of its tokens: `[num_tokens]`."""
    counts_B = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1)).long()
    replaced_B = torch.where(x == replace_from, torch.full_like(x, replace_to), x)
    return torch.repeat_interleave(replaced_B, counts_B, output_size=num_tokens)


def is_right(expand: Expand) -> bool:
    """Whether `expand` repeats two temperatures for two and one tokens, and replaces a value."""
    counts = torch.tensor([2, 3], dtype=torch.int32)
    temperatures = expand(torch.tensor([0.5, 2.0]), counts, 3)
    replaced = expand(torch.tensor([7, 0], dtype=torch.int32), counts, 3, replace_from=0, replace_to=9)
    return temperatures.tolist() == [0.5, 0.5, 2.0] and replaced.tolist() == [7, 7, 9]


def mend(sampler: ModuleType) -> bool:
    """Put the right function into vLLM's sampler module if its own is wrong; return whether it was.

    Raises ServerStartError when the module has no such function or stays wrong.
    """
    if not hasattr(sampler, NAME):
        raise ServerStartError(
            f"{sampler.__name__} has no {NAME}: this vLLM is not one the connector was tested with (0.32), "
            f"and sampling under capture can't be trusted: install a tested version"
        )
    if is_right(getattr(sampler, NAME)):
        return False
    setattr(sampler, NAME, expand_batch_to_tokens)
    if not is_right(getattr(sampler, NAME)):
        raise ServerStartError(f"{sampler.__name__}.{NAME} is wrong and could not be replaced")
    return True

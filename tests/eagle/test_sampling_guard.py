"""The guard against vLLM's wrong sampling on the CPU."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from eagle.sampling_guard import expand_batch_to_tokens, is_right, mend
from synthgen.errors import ServerStartError


def wrong(
    x: torch.Tensor, cu: torch.Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> torch.Tensor:
    """What vLLM 0.32 does on the CPU: the output is never written."""
    return x.new_zeros(num_tokens)


def module(function: object) -> ModuleType:
    """A sampler module with this function."""
    made = ModuleType("sampler")
    made.expand_batch_to_tokens = function  # type: ignore[attr-defined]
    return made


def test_values_are_repeated_for_each_of_a_requests_tokens() -> None:
    """Counts 2, 0 and 3 of three requests; a value to be replaced is replaced."""
    cu = torch.tensor([2, 2, 5], dtype=torch.int32)
    assert expand_batch_to_tokens(torch.tensor([0.5, 9.0, 2.0]), cu, 5).tolist() == [0.5, 0.5, 2.0, 2.0, 2.0]
    assert expand_batch_to_tokens(torch.tensor([7, 8, 0]), cu, 5, 0, 4).tolist() == [7, 7, 4, 4, 4]


def test_a_wrong_function_is_replaced_and_a_right_one_left() -> None:
    """The self-test decides."""
    broken = module(wrong)
    assert mend(broken)
    assert is_right(broken.expand_batch_to_tokens)
    assert not mend(broken)


def test_a_sampler_without_the_function_is_refused() -> None:
    """An untested vLLM isn't trusted silently."""
    with pytest.raises(ServerStartError, match="is not one the connector was tested with"):
        mend(ModuleType("sampler"))

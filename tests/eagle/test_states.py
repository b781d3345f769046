"""States as stored: bfloat16 as it came, fp8 within its bounds, final ones only where they are wanted."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eagle.batches import join, pack
from eagle.precision import FP8, dequantize, quantize
from eagle.prefill import kept_finals
from eagle.states import SampleStates
from synthgen.corpus.samples import Sample, Span, SpanKind
from synthgen.errors import ArtifactError

SAMPLE = Sample(
    id="s",
    domain="d",
    token_ids=tuple(range(8)),
    spans=(
        Span(start=2, end=4, kind=SpanKind.THINKING),
        Span(start=4, end=5, kind=SpanKind.RESPONSE),
        Span(start=7, end=8, kind=SpanKind.RESPONSE),
    ),
)


def captured(states_T4H: torch.Tensor, **stored: str) -> SampleStates:
    """States of SAMPLE as a run with these settings stores them."""
    final = kept_finals(SAMPLE, stored.get("final_states", "all"))
    dtype = stored.get("states_dtype", "bfloat16")
    ids_T = torch.tensor(SAMPLE.token_ids)
    return SampleStates.captured("s", ids_T, states_T4H, states_dtype=dtype, final_at_F=final)


def test_fp8_values_are_written_out() -> None:
    """The largest becomes 448; 1/448 of it is a step near zero; zeros stay zeros."""
    values, scales = quantize(torch.tensor([[896.0, -448.0, 2.0, 0.0], [0.0, 0.0, 0.0, 0.0]]))
    assert values.dtype is FP8
    assert scales.tolist() == [2.0, 1.0]
    assert dequantize(values, scales).tolist() == [[896.0, -448.0, 2.0, 0.0], [0.0, 0.0, 0.0, 0.0]]


@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=64))
def test_fp8_is_off_by_a_sixteenth_or_half_the_smallest_step(row: list[float]) -> None:
    """Whatever the values; bfloat16 adds its own 1/256."""
    want = torch.tensor([row])
    values, scales = quantize(want)
    found = dequantize(values, scales).float()
    bound = want.abs() * (1 / 16 + 1 / 128) + scales[:, None] * 2**-10 + 1e-30
    assert bool(((found - want).abs() <= bound).all())


def test_bfloat16_is_stored_as_it_came_and_read_without_a_copy() -> None:
    """The aux states are a view of what was captured."""
    states_T4H = torch.randn(8, 4, 16).bfloat16()
    found = captured(states_T4H)
    assert found.aux.read().data_ptr() == states_T4H.data_ptr()
    assert torch.equal(found.final.read(), states_T4H[:, 3])


def test_states_of_a_float32_server_are_rounded_to_bfloat16() -> None:
    """To the nearest of 8 significant bits, aux and final alike."""
    states_T4H = torch.full((8, 4, 2), 1.0)
    states_T4H[..., 1] = 257.5
    found = captured(states_T4H)
    assert found.aux.values.dtype == found.final.values.dtype == torch.bfloat16
    assert found.aux.read().tolist() == [[[1.0, 258.0]] * 3] * 8
    assert found.final.read().tolist() == [[1.0, 258.0]] * 8


def test_fp8_takes_half_the_bytes_and_keeps_every_state_close() -> None:
    """Median relative error per token and tap of about 2.5 %."""
    states_T4H = torch.randn(8, 4, 256, generator=torch.Generator().manual_seed(0)).bfloat16()
    found = captured(states_T4H, states_dtype="float8_e4m3fn")
    assert found.aux.values.nbytes == states_T4H[:, :3].nbytes // 2
    for read, want in ((found.aux.read(), states_T4H[:, :3]), (found.final.read(), states_T4H[:, 3])):
        error = (read.float() - want.float()).norm(dim=-1) / want.float().norm(dim=-1)
        assert 0.01 < float(error.median()) < 0.04


def test_final_states_are_kept_where_a_supervised_token_follows() -> None:
    """Spans 2-4, 4-5 and 7-8: tokens 1 to 3, and 6."""
    states_T4H = torch.arange(8 * 4.0).view(8, 4, 1)
    found = captured(states_T4H, final_states="supervised")
    assert found.final_at_F.tolist() == [1, 2, 3, 6]
    assert found.final.read().flatten().tolist() == [7.0, 11.0, 15.0, 27.0]
    cut = found.cut(3)
    assert (cut.final_at_F.tolist(), cut.final.read().flatten().tolist()) == ([1, 2], [7.0, 11.0])


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_a_batch_has_the_same_targets_however_finals_are_kept(dtype: str) -> None:
    """Every target finds its final state, whether the others have one or not."""
    states_T4H = torch.randn(8, 4, 16, generator=torch.Generator().manual_seed(1)).bfloat16()
    whole, few = (
        pack([join(captured(states_T4H, states_dtype=dtype, final_states=kept), SAMPLE, 64)] * 2)
        for kept in ("all", "supervised")
    )
    targets = whole.next_kind_T.nonzero().flatten()
    assert targets.tolist() == [1, 2, 3, 6, 9, 10, 11, 14]
    assert len(few.final_PH) == 8
    assert torch.equal(whole.final_PH, few.final_PH)
    assert torch.equal(whole.aux_T3H, few.aux_T3H)


def test_a_target_whose_final_state_was_not_kept_is_refused() -> None:
    """Spans that have grown since the states were taken."""
    found = captured(torch.zeros(8, 4, 1), final_states="supervised")
    grown = Sample(
        id="s",
        domain="d",
        token_ids=SAMPLE.token_ids,
        spans=(Span(start=2, end=8, kind=SpanKind.RESPONSE),),
    )
    with pytest.raises(ArtifactError, match="final state of token 4 wasn't kept"):
        join(found, grown, 64)

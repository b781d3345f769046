"""The hidden states of one sample, as they are stored and as they are computed with.

aux are the three layers that the draft reads, final is the state before the verifier's final norm, which
gives its distribution. fp8 states keep their scales beside them and are read as bfloat16.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from eagle.precision import FP8, dequantize, quantize
from eagle.tensors import all_finite
from synthgen.errors import ArtifactError

AUX = 3


@dataclass(frozen=True, slots=True)
class Rows:
    """States `values [R, …, H]`, and where these are fp8 their `scales [R, …]`."""

    values: torch.Tensor
    scales: torch.Tensor | None = None

    @classmethod
    def of(cls, states: torch.Tensor, states_dtype: str) -> Rows:
        """States as they are stored in that dtype; those that are bfloat16 already are not copied."""
        if states_dtype == "bfloat16":
            return cls(states.to(torch.bfloat16))
        values_RH, scales_R = quantize(states.reshape(-1, states.shape[-1]))
        return cls(values_RH.view(states.shape), scales_R.view(states.shape[:-1]))

    def read(self) -> torch.Tensor:
        """The states, without a copy where they are not fp8."""
        if self.scales is None:
            return self.values
        values_RH = self.values.reshape(-1, self.values.shape[-1])
        return dequantize(values_RH, self.scales.reshape(-1)).view(self.values.shape)

    def __getitem__(self, rows: slice) -> Rows:
        return Rows(self.values[rows], None if self.scales is None else self.scales[rows])

    def __len__(self) -> int:
        return len(self.values)

    @property
    def is_finite(self) -> bool:
        """Whether every state is."""
        return all_finite(self.values.float() if self.values.dtype is FP8 else self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleStates:
    """token_ids_T `[T]`; aux `[T, 3, H]`; final `[F, H]`, of the tokens final_at_F `[F]` (rising).

    file: the shard that has them; empty before they are in one.
    """

    sample_id: str
    token_ids_T: torch.Tensor
    aux: Rows
    final: Rows
    final_at_F: torch.Tensor
    file: str = ""

    def __post_init__(self) -> None:
        tokens, aux = tuple(self.token_ids_T.shape), tuple(self.aux.values.shape)
        final, at = tuple(self.final.values.shape), tuple(self.final_at_F.shape)
        if aux[:-1] != (*tokens, AUX) or final != (*at, aux[-1]):
            raise ArtifactError(
                f"sample {self.sample_id}: states {aux} and {final} don't fit token ids {tokens} and {at} "
                f"final ones; expected [T, 3, H] and [F, H]"
            )

    @classmethod
    def captured(
        cls,
        sample_id: str,
        token_ids_T: torch.Tensor,
        states_T4H: torch.Tensor,
        *,
        states_dtype: str = "bfloat16",
        final_at_F: torch.Tensor | None = None,
    ) -> SampleStates:
        """States as the verifier gave them; the final ones are kept at `final_at_F`, or everywhere."""
        tokens, shape = tuple(token_ids_T.shape), tuple(states_T4H.shape)
        if len(shape) != 3 or shape[:2] != (*tokens, AUX + 1):
            raise ArtifactError(
                f"sample {sample_id}: states {shape} don't fit token ids {tokens}; expected [T, 4, H]"
            )
        at_F = torch.arange(len(token_ids_T)) if final_at_F is None else final_at_F
        return cls(
            sample_id=sample_id,
            token_ids_T=token_ids_T,
            aux=Rows.of(states_T4H[:, :AUX], states_dtype),
            final=Rows.of(states_T4H[:, AUX][at_F], states_dtype),
            final_at_F=at_F,
        )

    def cut(self, num_tokens: int) -> SampleStates:
        """Of the first `num_tokens` tokens."""
        kept = int(torch.searchsorted(self.final_at_F, num_tokens))
        return SampleStates(
            sample_id=self.sample_id,
            token_ids_T=self.token_ids_T[:num_tokens],
            aux=self.aux[:num_tokens],
            final=self.final[:kept],
            final_at_F=self.final_at_F[:kept],
            file=self.file,
        )

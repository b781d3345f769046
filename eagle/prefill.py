"""A sample's states through a prefill: its ids go to a capturing server with one token to generate.

The reply names a file in the spool that the server's connector writes; nothing counts whose token ids aren't
the sample's.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from eagle.states import SampleStates
from eagle.taps import TapPoints
from synthgen.client.api import ApiClient
from synthgen.corpus.draft_sections import ExtractConfig
from synthgen.corpus.samples import Sample
from synthgen.errors import ArtifactError, ServerMismatch

FILE_WAIT_S = 60.0
"""A reply may come before its file; a writer that takes longer than this has failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """A capturing server and where its connector writes."""

    model: str
    client: ApiClient
    spool: Path
    taps: TapPoints
    hidden_size: int
    config: ExtractConfig

    async def states_of(self, sample: Sample) -> SampleStates:
        """The states of a sample.

        Raises ServerMismatch when the server captures nothing or other layers, RequestFailed when it refuses
        the sample, ArtifactError when the states are not its own.
        """
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": sample.token_ids,
            "max_tokens": 1,
            "temperature": 0,
            "add_special_tokens": False,
            "kv_transfer_params": {"states": "prompt"},
        }
        reply, _ = await self.client.complete(body)
        name = states_file(reply.kv_transfer_params or {}, self.taps)
        tensors = await asyncio.to_thread(take_states, self.spool / name)
        check_states(sample, tensors["token_ids"], tensors["states"], self.hidden_size)
        return SampleStates.captured(
            sample.id,
            tensors["token_ids"],
            tensors["states"],
            states_dtype=self.config.states_dtype,
            final_at_F=kept_finals(sample, self.config.final_states),
        )


def states_file(told: dict[str, Any], taps: TapPoints) -> str:
    """Name of the spool file that a reply tells. Raises ServerMismatch for another server than is needed."""
    name = told.get("states_file")
    if not isinstance(name, str):
        raise ServerMismatch(
            "the server returned no hidden states: it runs without the connector. Start it with `synthgen "
            "serve CONFIG --role capture`"
        )
    if told.get("layer_ids") != list(taps.captured):
        raise ServerMismatch(
            f"the server captures layers {told.get('layer_ids')}, this run wants {list(taps.captured)}: "
            f"start it anew with `synthgen serve CONFIG --role capture`"
        )
    return Path(name).name


def kept_finals(sample: Sample, final_states: str) -> torch.Tensor | None:
    """Of which tokens the final state is kept: those before a supervised one; None for all of them."""
    if final_states == "all":
        return None
    kept_T = torch.zeros(len(sample.token_ids), dtype=torch.bool)
    for span in sample.spans:
        kept_T[max(span.start - 1, 0) : span.end - 1] = True
    return kept_T.nonzero().flatten()


def take_states(path: Path) -> dict[str, torch.Tensor]:
    """Read and remove a spool file once it is there; it appears by a rename, so it is whole."""
    give_up = time.monotonic() + FILE_WAIT_S
    while not path.exists():
        if time.monotonic() > give_up:
            raise ArtifactError(
                f"{path} did not appear within {FILE_WAIT_S:.0f} s: the server's log says why the connector "
                f"could not write it; if the server runs on another machine, the run directory must be shared"
            )
        time.sleep(0.01)
    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise ArtifactError(f"{path}: damaged: {error}") from error
    path.unlink()
    return tensors


def check_states(
    sample: Sample, token_ids_T: torch.Tensor, states_T4H: torch.Tensor, hidden_size: int
) -> None:
    """Raise ArtifactError when states are another sample's, of another size, or not finite."""
    if tuple(token_ids_T.tolist()) != sample.token_ids:
        raise ArtifactError(f"sample {sample.id}: the states that came back are of other token ids")
    if tuple(states_T4H.shape[1:]) != (4, hidden_size):
        raise ArtifactError(
            f"sample {sample.id}: states are {tuple(states_T4H.shape)}, expected [T, 4, {hidden_size}]"
        )
    if not torch.isfinite(states_T4H).all():
        raise ArtifactError(f"sample {sample.id}: the states have values that are not finite")

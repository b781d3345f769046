"""A sample's states, from a capturing server's spool.

They came with the reply when it was generated, or come now through a prefill: the sample's ids are sent
with one token to generate. Nothing counts whose token ids aren't the sample's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from eagle.spool import Captured, read_states
from eagle.states import SampleStates
from eagle.taps import TapPoints
from eagle.tensors import all_finite
from synthgen.client.api import ApiClient
from synthgen.client.capture import FILE_WAIT_S, require_layers, states_file
from synthgen.client.outage import PROBE_S
from synthgen.corpus.config import RunConfig
from synthgen.corpus.draft_sections import ExtractConfig
from synthgen.corpus.samples import Sample
from synthgen.corpus.verifier_config import VerifierShape
from synthgen.errors import ArtifactError, ServerUnreachable

POLL_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """A capturing server and where its connector writes.

    turns: as many as the client has requests in flight; more would keep its health checks waiting.
    """

    config: RunConfig
    base_url: str
    client: ApiClient
    shape: VerifierShape
    turns: asyncio.Semaphore
    file_prefix: str = ""
    """What the names of the files begin with; empty for whatever the server calls them."""

    async def states_of(self, sample: Sample) -> SampleStates:
        """The states of a sample.

        Raises ServerMismatch when the server captures nothing or other layers, ServerUnreachable when it is
        gone, RequestFailed when it refuses the sample, ArtifactError when the states are not its own.
        """
        body: dict[str, Any] = {
            "model": self.config.verifier.served_name,
            "prompt": sample.token_ids,
            "max_tokens": 1,
            "temperature": 0,
            "add_special_tokens": False,
            "kv_transfer_params": {"states": "prompt"} | self._named(),
        }
        async with self.turns:
            reply, _ = await self.client.complete(body)
        layers = wanted_layers(self.config.extract, self.shape)
        path = states_file(reply.kv_transfer_params, layers, self.config.spool_path, self.base_url)
        captured = await take_states(path, self.client.is_healthy)
        require_layers(list(captured.layer_ids), layers, self.base_url)
        return checked(sample, captured, self.shape, self.config.extract)

    def _named(self) -> dict[str, str]:
        return {"file_prefix": self.file_prefix} if self.file_prefix else {}


def wanted_layers(config: ExtractConfig, shape: VerifierShape) -> tuple[int, ...]:
    """Ids of the four layers whose states a run keeps, in their order."""
    return TapPoints(aux=config.aux_layers, num_layers=shape.num_layers).captured


def kept_finals(sample: Sample, final_states: str) -> torch.Tensor | None:
    """Of which tokens the final state is kept: those before a supervised one; None for all of them.

    The last token of a sample never is one.
    """
    if final_states == "all":
        return None
    kept_T = torch.zeros(len(sample.token_ids), dtype=torch.bool)
    for span in sample.spans:
        kept_T[max(span.start - 1, 0) : span.end - 1] = True
    return kept_T.nonzero().flatten()


async def take_states(path: Path, is_healthy: Callable[[], Awaitable[bool]]) -> Captured:
    """Read and remove a spool file once it is there; it appears by a rename, so it is whole.

    Only reading takes a thread: a hundred that wait would leave none, and an interrupt would wait for them.
    Raises ServerUnreachable when the server is gone before it has written it, ArtifactError when it is there
    and does not.
    """
    give_up = time.monotonic() + FILE_WAIT_S
    look = time.monotonic() + PROBE_S
    while not path.exists():  # noqa: ASYNC240 -- a stat, where a thread is what others may lack
        if time.monotonic() > give_up:
            raise ArtifactError(
                f"{path} did not appear within {FILE_WAIT_S:.0f} s: the server's log says why the connector "
                f"could not write it; if the server runs on another machine, the run directory must be shared"
            )
        if time.monotonic() > look:
            if not await is_healthy() and not path.exists():  # noqa: ASYNC240
                raise ServerUnreachable(f"the server is gone, and {path} did not appear")
            look = time.monotonic() + PROBE_S
        await asyncio.sleep(POLL_S)
    return await asyncio.to_thread(_take, path)


def _take(path: Path) -> Captured:
    try:
        return read_states(path)
    finally:  # a damaged one too: nobody asks for it again
        path.unlink(missing_ok=True)


def checked(sample: Sample, captured: Captured, shape: VerifierShape, config: ExtractConfig) -> SampleStates:
    """A sample's states as they are stored: of all its tokens, or of all but the last one.

    Raises ArtifactError when they are another sample's, of other layers, of another size, or not finite.
    """
    layers = wanted_layers(config, shape)
    if captured.layer_ids != layers:
        raise ArtifactError(
            f"sample {sample.id}: the states that came back are of layers {list(captured.layer_ids)}, this "
            f"run wants {list(layers)}"
        )
    token_ids_T, states_T4H = captured.token_ids_T, captured.states_T4H
    length = len(sample.token_ids)
    found = tuple(token_ids_T[:length].tolist())
    if found != sample.token_ids and found != sample.token_ids[:-1]:
        raise ArtifactError(f"sample {sample.id}: the states that came back are of other token ids")
    if tuple(states_T4H.shape[1:]) != (4, shape.hidden_size):
        raise ArtifactError(
            f"sample {sample.id}: states are {tuple(states_T4H.shape)}, expected [T, 4, {shape.hidden_size}]"
        )
    if not all_finite(states_T4H):
        raise ArtifactError(f"sample {sample.id}: the states have values that are not finite")
    kept_F = kept_finals(sample, config.final_states)
    return SampleStates.captured(
        sample.id,
        token_ids_T[:length],
        states_T4H[:length],
        states_dtype=config.states_dtype,
        final_at_F=kept_F,
    )

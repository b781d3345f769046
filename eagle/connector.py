"""The vLLM KV connector that hands hidden states over, loaded by vLLM by name.

vLLM's `extract_hidden_states` method keeps the states of every token in a cache of its own. When a
request that asked for them ends, its blocks are held until they are copied; then they are written
to one file in the spool directory, aside and renamed, so that a file is complete or absent. A request
asks with `kv_transfer_params: {"states": "prompt"}`, or `"all"` for prompt and output less the last
token, which no forward pass has seen; `"most": n` keeps the first n tokens. The reply names the file:
`{"states_file": …}`; a `"file_prefix"` is what that name begins with. The file of a prompt is for whoever
asked, who waits for it; the file of a whole reply may lie until its server is long gone, so it is flushed
to the disk before it gets its name.

Written against vLLM's public connector interface; tested with 0.32, on the CPU. Only tensor-parallel
rank 0 writes: every rank holds the states of all tokens, and the same ones.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)
from vllm.distributed.parallel_state import get_tensor_model_parallel_rank
from vllm.logger import init_logger
from vllm.v1.kv_cache_interface import HiddenStateCacheSpec, KVCacheConfig
from vllm.v1.request import RequestStatus
from vllm.v1.sample import rejection_sampler
from vllm.v1.spec_decode.extract_hidden_states import ExtractHiddenStatesProposer

from eagle.bounded_writer import BoundedWriter
from eagle.no_drafts import skip_drafts
from eagle.sampling_guard import mend
from eagle.spool import Captured, file_name, write_states

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.request import Request

WRITER_THREADS = 4
MAX_UNWRITTEN_BYTES = 4 << 30
"""Copied out of the cache and not yet on disk; beyond it the server's next step waits."""
logger = init_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingSave:
    """A finished request whose states wait in the cache."""

    request_id: str
    token_ids: list[int]
    block_ids: list[int]
    file: str
    durable: bool
    """Whether the file is flushed to the disk: it outlives the request."""


@dataclass
class SaveMetadata(KVConnectorMetadata):  # type: ignore[misc]  # vLLM is untyped here
    """What the scheduler tells the workers with each step."""

    pending: list[PendingSave] = field(default_factory=list)


class StatesConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """Scheduler side: decides what is saved. Worker side: copies it out of the cache and writes it."""

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        require_whole_states(vllm_config)
        self._group = states_group(kv_cache_config)
        self._spool = Path(self._kv_transfer_config.get_from_extra_config("spool", ""))
        if not self._spool.is_absolute():
            raise ValueError("kv_connector_extra_config.spool must be an absolute directory")
        self._pending: list[PendingSave] = []
        draft = vllm_config.speculative_config.draft_model_config.hf_config
        self._layer_ids = tuple(draft.eagle_aux_hidden_state_layer_ids)
        if role is KVConnectorRole.WORKER:
            self._init_worker(vllm_config)

    def _init_worker(self, vllm_config: VllmConfig) -> None:
        self._cache: torch.Tensor | None = None
        self._writes = True
        self._copies: dict[str, torch.cuda.Event | None] = {}
        self._finished: set[str] = set()
        self._writer = BoundedWriter(WRITER_THREADS, MAX_UNWRITTEN_BYTES)
        self._stream: torch.cuda.Stream | None = None
        self._spool.mkdir(parents=True, exist_ok=True)
        skip_drafts(ExtractHiddenStatesProposer, rejection_sampler.RejectionSampler)
        if vllm_config.device_config.device_type == "cpu" and mend(rejection_sampler):
            logger.warning("replaced vLLM's expand_batch_to_tokens, which is wrong on the CPU (vllm#55005)")

    # ---------------------------------------------------------------- scheduler side

    @property
    def requires_kv_delivery(self) -> bool:
        """A preempted request computes anew what it had in flight: it must not end without its blocks."""
        return True

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int, bool]:
        """Nothing is ever loaded."""
        return 0, False

    def update_state_after_alloc(self, request: Request, blocks: Any, num_external_tokens: int) -> None:
        """Nothing is ever loaded."""

    def build_connector_meta(self, scheduler_output: Any) -> SaveMetadata:
        """Hand the finished requests of the last step to the workers."""
        pending, self._pending = self._pending, []
        return SaveMetadata(pending=pending)

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """Hold a request's blocks if it asked for states and was not aborted."""
        asked = request.kv_transfer_params or {}
        wanted, most = asked.get("states"), asked.get("most")
        if wanted not in ("prompt", "all") or request.status is RequestStatus.FINISHED_ABORTED:
            return False, None
        ids = list(request.all_token_ids)[:-1] if wanted == "all" else list(request.prompt_token_ids)
        if isinstance(most, int) and most > 0:  # a client's word: anything else must not end the server
            ids = ids[:most]
        if request.num_computed_tokens < len(ids):  # it ended before its last token was computed
            return False, None
        file = file_name(request.request_id, asked.get("file_prefix"))
        self._pending.append(
            PendingSave(
                request_id=request.request_id,
                token_ids=ids,
                block_ids=list(block_ids),
                file=file,
                durable=wanted == "all",
            )
        )
        return True, {"states_file": file, "layer_ids": list(self._layer_ids)}

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """The same, where each cache group has its own blocks."""
        if self._group >= len(block_ids):
            return False, None
        return self.request_finished(request, block_ids[self._group])

    # ---------------------------------------------------------------- worker side

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Find the cache of the states: `[num_blocks, 4, block_size, H]`."""
        names = [name for name in kv_caches if "cache_only_layers" in name]
        if len(names) != 1:
            raise ValueError(f"expected one cache of hidden states, found {names}")
        self._cache = kv_caches[names[0]]
        self._writes = get_tensor_model_parallel_rank() == 0

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        """Before a step: start copying the requests that ended in the one before.

        A long prefill may follow, so files that wait for the end of it would keep their readers waiting;
        vLLM calls `start_load_kv` only after the forward pass.
        """
        super().bind_connector_metadata(connector_metadata)
        assert isinstance(connector_metadata, SaveMetadata)
        for pending in connector_metadata.pending if self._writes else ():
            self._start_save(pending)

    def start_load_kv(self, *args: Any, **kwargs: Any) -> None:
        """Nothing is ever loaded."""

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """The requests whose states are copied, so that their blocks may be freed."""
        self._finished |= finished_req_ids
        copied = set()
        for request_id in list(self._finished):
            if request_id in self._copies:
                event = self._copies[request_id]
                if event is not None and not event.query():  # type: ignore[no-untyped-call]
                    continue
                del self._copies[request_id]
                copied.add(request_id)
            self._finished.discard(request_id)
        return copied or None, None

    def _start_save(self, pending: PendingSave) -> None:
        assert self._cache is not None
        states, event = self._copied(self._cache, pending)
        self._copies[pending.request_id] = event
        written = self._writer.submit(states.nbytes, self._write, pending, states, event)
        written.add_done_callback(_report)

    def _write(self, pending: PendingSave, states: torch.Tensor, copied: torch.cuda.Event | None) -> None:
        """In a writer thread: one request's file, once the copy of its states has arrived."""
        if copied is not None:
            copied.synchronize()
        captured = Captured(
            token_ids_T=torch.tensor(pending.token_ids),
            states_T4H=states,
            layer_ids=self._layer_ids,
            dtype=str(states.dtype).removeprefix("torch."),
        )
        write_states(self._spool / pending.file, captured, durable=pending.durable)

    def _copied(
        self, cache: torch.Tensor, pending: PendingSave
    ) -> tuple[torch.Tensor, torch.cuda.Event | None]:
        """The states of a request outside the cache, and what tells when they have arrived.

        From a GPU into pinned memory, on a stream of its own, after what the default stream has written.
        """
        if not cache.is_cuda:
            return gather_states(cache, pending.block_ids, len(pending.token_ids)), None
        if self._stream is None:
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            on_gpu = gather_states(cache, pending.block_ids, len(pending.token_ids))
            states = torch.empty_like(on_gpu, device="cpu", pin_memory=True)
            states.copy_(on_gpu, non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self._stream)
        return states, event

    def get_finished_count(self) -> int:
        """One report frees a request's blocks: only rank 0 copies, and tells when it has."""
        return 1

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing is ever loaded."""

    def save_kv_layer(self, *args: Any, **kwargs: Any) -> None:
        """The cache keeps the states until the request ends."""

    def wait_for_save(self) -> None:
        """Saving happens after a request ends."""

    def shutdown(self) -> None:
        """Finish what is being written."""
        if self._role is KVConnectorRole.WORKER:
            self._writer.close()

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: VllmConfig) -> str | None:
        """A token's states lie together in memory."""
        return "LBNHC"


def require_whole_states(vllm_config: VllmConfig) -> None:
    """Raise ValueError where rank 0 would hold only some of the tokens, or another process the states."""
    parallel = vllm_config.parallel_config
    sizes = {
        "pipeline-parallel-size": parallel.pipeline_parallel_size,
        "decode-context-parallel-size": parallel.decode_context_parallel_size,
        "prefill-context-parallel-size": parallel.prefill_context_parallel_size,
    }
    for name, size in sizes.items():
        if size > 1:
            raise ValueError(
                f"--{name} is {size}: hidden states can be captured with 1 only; use tensor parallelism"
            )


def states_group(kv_cache_config: KVCacheConfig) -> int:
    """Index of the cache group with the hidden states: their own, or the only one (MLA verifiers)."""
    groups = kv_cache_config.kv_cache_groups
    own = [i for i, group in enumerate(groups) if isinstance(group.kv_cache_spec, HiddenStateCacheSpec)]
    if len(own) == 1:
        return own[0]
    if len(groups) == 1:
        return 0
    raise ValueError(f"can't tell which of {len(groups)} KV-cache groups holds the hidden states")


def gather_states(cache: torch.Tensor, block_ids: list[int], num_tokens: int) -> torch.Tensor:
    """States of a request's tokens `[T, 4, H]` out of cache `[num_blocks, 4, block_size, H]`."""
    block_size = cache.shape[2]
    num_blocks = -(-num_tokens // block_size)
    blocks = torch.tensor(block_ids[:num_blocks], dtype=torch.long, device=cache.device)
    # One copy where a token's states lie together in memory; indexing the cache itself would make two.
    states = cache.transpose(1, 2).index_select(0, blocks).flatten(0, 1)
    return states[:num_tokens].contiguous()


def _report(future: Future[None]) -> None:
    error = future.exception()
    if error is not None:
        logger.error("states were not written: %r", error)

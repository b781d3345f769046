"""The connector: states out of the cache in order, and eight ranks that free each request once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle.spool import file_name, read_states

pytest.importorskip("vllm")

from vllm.config.kv_transfer import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.v1.kv_cache_interface import HiddenStateCacheSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import RequestStatus
from vllm.v1.sample.rejection_sampler import RejectionSampler
from vllm.v1.spec_decode.extract_hidden_states import ExtractHiddenStatesProposer

from eagle import connector

RANKS = 8
BLOCK_SIZE = 2
NUM_BLOCKS = 16


def test_states_are_gathered_in_token_order_over_scattered_blocks() -> None:
    """Blocks 3, 0, 2 of two slots each, five tokens: rows in the order of the tokens."""
    num_blocks, taps, block_size, hidden = 4, 4, 2, 3
    cache = torch.zeros(num_blocks, taps, block_size, hidden)
    for token, (block, slot) in enumerate([(3, 0), (3, 1), (0, 0), (0, 1), (2, 0)]):
        cache[block, :, slot] = token * 10 + torch.arange(taps)[:, None].float()
    states = connector.gather_states(cache, [3, 0, 2, 1], 5)
    assert tuple(states.shape) == (5, 4, 3)
    assert states[:, :, 0].tolist() == [[t * 10 + k for k in range(4)] for t in range(5)]
    assert states.is_contiguous()


def grouped(groups: list[Any]) -> Any:
    """Of vLLM's cache configuration what the connector reads."""
    return SimpleNamespace(kv_cache_groups=groups)


def test_the_group_of_the_states_is_found_or_refused() -> None:
    """Their own group, or the only one; several without a mark can't be told apart."""
    marked = HiddenStateCacheSpec(block_size=2, num_kv_heads=4, head_size=8, dtype=torch.bfloat16)
    groups: list[Any] = [SimpleNamespace(kv_cache_spec=object()), SimpleNamespace(kv_cache_spec=marked)]
    assert connector.states_group(grouped(groups)) == 1
    assert connector.states_group(grouped(groups[:1])) == 0
    with pytest.raises(ValueError, match="can't tell which of 2"):
        connector.states_group(grouped(groups[:1] * 2))


def vllm_config(spool: Path, **parallel: int) -> Any:
    """Of vLLM's configuration what the connector reads."""
    sizes = {
        "pipeline_parallel_size": 1,
        "decode_context_parallel_size": 1,
        "prefill_context_parallel_size": 1,
    }
    hf_config = SimpleNamespace(eagle_aux_hidden_state_layer_ids=[2, 4, 5, 8])
    return SimpleNamespace(
        kv_transfer_config=KVTransferConfig(
            kv_connector="StatesConnector",
            kv_role="kv_producer",
            kv_connector_extra_config={"spool": str(spool)},
        ),
        speculative_config=SimpleNamespace(draft_model_config=SimpleNamespace(hf_config=hf_config)),
        parallel_config=SimpleNamespace(**(sizes | parallel)),
        device_config=SimpleNamespace(device_type="cuda"),  # the guard for the CPU needs its kernels
    )


ONE_GROUP = grouped([SimpleNamespace(kv_cache_spec=object())])


class Engine:
    """vLLM's part for eight ranks: a scheduler's connector, eight workers' and vLLM's own aggregator."""

    def __init__(self, spool: Path) -> None:
        config = vllm_config(spool)
        self.scheduler = connector.StatesConnector(config, KVConnectorRole.SCHEDULER, ONE_GROUP)
        self.cache = torch.arange(float(NUM_BLOCKS * BLOCK_SIZE)).view(NUM_BLOCKS, 1, BLOCK_SIZE, 1)
        self.cache = self.cache.expand(NUM_BLOCKS, 4, BLOCK_SIZE, 3).clone()
        self.ranks = [self._rank(config, rank) for rank in range(RANKS)]
        self.aggregator = KVOutputAggregator.from_connector(self.scheduler, RANKS)
        self.held: set[str] = set()
        self.freed: list[str] = []
        self.ended: set[str] = set()

    def _rank(self, config: Any, rank: int) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            for patched, name in ((ExtractHiddenStatesProposer, "propose"), (RejectionSampler, "forward")):
                patch.setattr(patched, name, getattr(patched, name))  # put back for the tests after this one
            patch.setattr(connector, "get_tensor_model_parallel_rank", lambda: rank)
            worker = connector.StatesConnector(config, KVConnectorRole.WORKER, ONE_GROUP)
            worker.register_kv_caches({"model.layers.0": torch.zeros(1), "cache_only_layers.8": self.cache})
        return worker

    def end(self, request: Any, blocks: list[int]) -> dict[str, Any] | None:
        """A request ends: as the scheduler does it, its blocks are held or free."""
        hold, told = self.scheduler.request_finished_all_groups(request, (blocks,))
        self.ended.add(request.request_id)
        if hold:
            self.held.add(request.request_id)
        else:
            self.freed.append(request.request_id)
        return told

    def step(self) -> list[KVConnectorOutput]:
        """One step of all ranks; what vLLM aggregates frees blocks. Returns what each rank said."""
        metadata, ended, self.ended = self.scheduler.build_connector_meta(None), self.ended, set()
        outputs = []
        for worker in self.ranks:
            worker.bind_connector_metadata(metadata)
            worker.start_load_kv(None)
            worker.wait_for_save()
            results = worker.get_transfer_results(ended)
            outputs.append(KVConnectorOutput(finished_sending=results.finished_sending))
            worker.clear_connector_metadata()
        made = [ModelRunnerOutput.with_kv_conn_output_only(output) for output in outputs]
        together = self.aggregator.aggregate(made)
        assert together is not None
        for request_id in together.kv_connector_output.finished_sending or ():
            self.held.remove(request_id)  # freed twice, or without being held: a KeyError, as in vLLM
            self.freed.append(request_id)
        return outputs


@contextlib.contextmanager
def engine(spool: Path) -> Iterator[Engine]:
    """Eight ranks whose writers have ended when the block does."""
    made = Engine(spool)
    try:
        yield made
    finally:
        for worker in made.ranks:
            worker.shutdown()


def request(
    request_id: str,
    *,
    asked: dict[str, Any] | None,
    status: RequestStatus = RequestStatus.FINISHED_STOPPED,
    computed: int = 6,
) -> Any:
    """A request of four prompt tokens and three more; the last one was never computed."""
    return SimpleNamespace(
        request_id=request_id,
        kv_transfer_params=asked,
        status=status,
        all_token_ids=[11, 12, 13, 14, 15, 16, 17],
        prompt_token_ids=[11, 12, 13, 14],
        num_computed_tokens=computed,
    )


def test_one_of_eight_ranks_writes_and_one_report_frees(tmp_path: Path) -> None:
    """Rank 0 has the file and tells; the others say nothing, and what is held is freed once, at once."""
    with engine(tmp_path) as eight:
        told = eight.end(request("r", asked={"states": "all"}), [5, 0, 9])
        assert told == {"states_file": file_name("r"), "layer_ids": [2, 4, 5, 8]}
        assert eight.held == {"r"}
        assert [output.finished_sending for output in eight.step()] == [{"r"}] + [set()] * 7
        for _ in range(3):
            eight.step()
        assert (eight.held, eight.freed) == (set(), ["r"])
        assert [worker._finished | set(worker._copies) for worker in eight.ranks] == [set()] * RANKS
    found = read_states(tmp_path / file_name("r"))
    assert found.token_ids_T.tolist() == [11, 12, 13, 14, 15, 16]
    assert found.states_T4H[:, 0, 0].tolist() == [10, 11, 0, 1, 18, 19]
    assert [path.name for path in tmp_path.iterdir()] == [file_name("r")]


def test_a_copy_starts_before_the_forward_pass(tmp_path: Path) -> None:
    """With the step's metadata: vLLM calls nothing else of the connector before a long prefill is through."""
    with engine(tmp_path) as eight:
        eight.end(request("r", asked={"states": "prompt"}), [5, 0, 9])
        eight.ranks[0].bind_connector_metadata(eight.scheduler.build_connector_meta(None))
    assert read_states(tmp_path / file_name("r")).token_ids_T.tolist() == [11, 12, 13, 14]


KINDS: dict[str, tuple[dict[str, Any], bool]] = {
    "prompt": ({"asked": {"states": "prompt"}}, True),
    "all": ({"asked": {"states": "all", "most": 3}}, True),
    "unasked": ({"asked": None}, False),
    "misspelt": ({"asked": {"states": "everything"}}, False),
    "aborted": ({"asked": {"states": "all"}, "status": RequestStatus.FINISHED_ABORTED}, False),
    "uncomputed": ({"asked": {"states": "all"}, "computed": 5}, False),
}


class Arriving:
    """A copy from the GPU that arrives after some looks."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def query(self) -> bool:
        self.looks -= 1
        return self.looks < 0

    def synchronize(self) -> None:
        """The writer waits for it; the bytes are there."""


@settings(max_examples=25, deadline=None)
@given(
    steps=st.lists(
        st.lists(st.tuples(st.sampled_from(sorted(KINDS)), st.integers(0, 3)), max_size=4), max_size=5
    )
)
def test_every_request_is_freed_exactly_once(
    steps: list[list[tuple[str, int]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever ends when, and however long its copy takes; each that is held has its file, no other has one.

    No rank remembers anything afterwards.
    """
    spool = tmp_path_factory.mktemp("spool")
    looks: dict[str, int] = {}
    held: set[str] = set()
    with engine(spool) as eight, pytest.MonkeyPatch.context() as patch:
        gather = connector.gather_states
        patch.setattr(
            connector.StatesConnector,
            "_copied",
            lambda self, cache, pending: (
                gather(cache, pending.block_ids, len(pending.token_ids)),
                Arriving(looks[pending.request_id]),
            ),
        )
        for number, step in enumerate(steps):
            for place, (kind, late) in enumerate(step):
                request_id = f"{number}-{place}-{kind}"
                looks[request_id] = late
                values, holds = KINDS[kind]
                told = eight.end(request(request_id, **values), [5, 0, 9])
                assert (told is not None) is holds
                held |= {request_id} if holds else set()
            eight.step()
        for _ in range(4):
            eight.step()
        assert eight.held == set()
        assert sorted(eight.freed) == sorted(looks)
        assert [worker._finished | set(worker._copies) for worker in eight.ranks] == [set()] * RANKS
    assert {path.name for path in spool.iterdir()} == {file_name(request_id) for request_id in held}


@pytest.mark.parametrize("size", ["pipeline", "decode_context", "prefill_context"])
def test_where_no_rank_holds_all_states_nothing_is_captured(tmp_path: Path, size: str) -> None:
    """vLLM would start, and rank 0 write states of some tokens under the ids of all."""
    config = vllm_config(tmp_path, **{f"{size}_parallel_size": 2})
    with pytest.raises(ValueError, match=f"--{size.replace('_', '-')}-parallel-size is 2: "):
        connector.StatesConnector(config, KVConnectorRole.SCHEDULER, ONE_GROUP)


def test_preemption_never_ends_a_request_without_its_blocks(tmp_path: Path) -> None:
    """vLLM asks the connector: otherwise a reply that was in flight would come without its states."""
    config = vllm_config(tmp_path)
    assert connector.StatesConnector(config, KVConnectorRole.SCHEDULER, ONE_GROUP).requires_kv_delivery


def test_files_of_whole_replies_are_durable_those_of_prompts_are_not(tmp_path: Path) -> None:
    """A prefill's file is read at once and removed; a reply's waits for extraction."""
    scheduler = connector.StatesConnector(vllm_config(tmp_path), KVConnectorRole.SCHEDULER, ONE_GROUP)
    for kind in ("all", "prompt"):
        scheduler.request_finished(request(kind, asked={"states": kind}), [5, 0, 9])
    pending = scheduler.build_connector_meta(None).pending
    assert {one.request_id: one.durable for one in pending} == {"all": True, "prompt": False}

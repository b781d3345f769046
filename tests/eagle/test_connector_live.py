"""The connector in a real vLLM that is short of blocks: preempted, chunked and aborted requests.

Its cache has eight blocks of 128 tokens, a step takes at most 96 tokens.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from eagle.prefill import take_states
from eagle.spool import Captured
from prompts.problems import problems
from synthgen.client.api import ApiClient
from synthgen.client.launch import capturing, started
from synthgen.corpus.config import RunConfig
from synthgen.corpus.machine import has_amx
from synthgen.corpus.settings import load_config
from tests.conftest import ROOT
from tests.eagle.test_prefill import healthy

pytest.importorskip("vllm")
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not has_amx(), reason="vLLM 0.32 chunks latent attention's prefills on no other CPU"),
]

STEP_TOKENS = 96
LONG = 300
PROMPT_TOKENS = (100, 105, 110, 115, 120, 125)
"""Each fits one block, and needs a second one before its reply ends: twelve of eight."""
OUTPUT_TOKENS = 36


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A capturing server with few blocks."""

    config: RunConfig
    url: str
    log: Path

    def body(self, prompt: list[int], **values: Any) -> dict[str, Any]:
        """A completion of `prompt` with the states of prompt and output, never ended by the model."""
        model = self.config.verifier.served_name
        asked: dict[str, Any] = {
            "kv_transfer_params": {"states": "all"},
            "ignore_eos": True,
            "return_token_ids": True,
        }
        return {"model": model, "prompt": prompt, "temperature": 0.0, **asked, **values}

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        lines = httpx.get(self.url.removesuffix("/v1") + "/metrics").text.splitlines()
        found = [line for line in lines if line.startswith(f"vllm:{name}{{")]
        assert found, name
        return sum(float(line.rsplit(" ", 1)[1]) for line in found)

    def wait_idle(self) -> None:
        """Return when no request runs or waits and no block is held; fail after a minute."""
        give_up = time.monotonic() + 60
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        while any(self.metric(name) for name in names):
            assert time.monotonic() < give_up, {name: self.metric(name) for name in names}
            time.sleep(0.2)

    def spooled(self) -> list[str]:
        """What lies in the spool, once whoever was writing has had the time to end."""
        time.sleep(1.0)
        return sorted(path.name for path in self.config.spool_path.iterdir())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The demo's verifier with the connector and a cache of eight blocks (the ninth is vLLM's own)."""
    directory = tmp_path_factory.mktemp("live")
    values = yaml.safe_load((ROOT / "configs/demo.yaml").read_text())
    values["run_dir"] = str(directory / "run")
    values["verifier"]["model"] = str(ROOT / "models/tiny-kimi")
    values["server"] |= {
        "port": 8215,
        "start_timeout_s": 600,
        "max_model_len_tokens": 640,
        "max_num_batched_tokens": STEP_TOKENS,
        "max_num_seqs": 16,
        "extra_args": ["--num-gpu-blocks-override", "9"],
    }
    (directory / "live.yaml").write_text(yaml.safe_dump(values))
    config = load_config(directory / "live.yaml")
    with started(config, capturing(config)) as (process,):
        yield Server(config=config, url=process.base_url, log=process.log)


@pytest.fixture(scope="module")
def token_ids() -> list[int]:
    """Text of the kind that the verifier knows."""
    text = " ".join(f"{one.question} {one.thinking}" for one in problems("live", 25))
    ids: list[int] = AutoTokenizer.from_pretrained(ROOT / "models/tiny-kimi").encode(
        text, add_special_tokens=False
    )
    return ids


async def ask(server: Server, bodies: list[dict[str, Any]]) -> list[tuple[list[int], Captured]]:
    """Send completions at once; of each the prompt and output ids, and the states that came with it."""
    client = ApiClient(
        server.url, api_key=None, concurrency=16, timeout_s=300, retry_attempts=1, retry_seconds=1
    )
    async with client:
        replies = [reply for reply, _ in await asyncio.gather(*map(client.complete, bodies))]
    files = [(reply.kv_transfer_params or {})["states_file"] for reply in replies]
    captured = [await take_states(server.config.spool_path / file, healthy) for file in files]
    outputs = [list(reply.choices[0].token_ids or ()) for reply in replies]
    return [
        (body["prompt"] + output, one) for body, output, one in zip(bodies, outputs, captured, strict=True)
    ]


def transformers_states(ids: list[list[int]], aux_layers: tuple[int, ...]) -> list[torch.Tensor]:
    """`[T, 4, H]` of each sequence in float32: the aux layers' and the last one before its norm."""
    model = AutoModelForCausalLM.from_pretrained(ROOT / "models/tiny-kimi", dtype=torch.float32)
    finals: list[torch.Tensor] = []
    model.model.norm.register_forward_pre_hook(lambda _, inputs: finals.append(inputs[0][0]))
    states = []
    for sequence in ids:
        with torch.no_grad():
            hidden = model(torch.tensor([sequence]), output_hidden_states=True).hidden_states
        states.append(torch.stack([hidden[k][0] for k in aux_layers] + [finals.pop()], dim=1))
    return states


def test_states_are_whole_and_in_order_when_requests_are_preempted_and_prefilled_in_chunks(
    server: Server, token_ids: list[int]
) -> None:
    """Every token's state is transformers' of that token and nearer to it than to any other's.

    vLLM counts the preemptions; it says that a step takes fewer tokens than the long prompts have.
    """
    prompts = [token_ids[i * 130 : i * 130 + length] for i, length in enumerate(PROMPT_TOKENS)]
    bodies = [server.body(prompt, max_tokens=OUTPUT_TOKENS) for prompt in prompts]
    bodies.append(server.body(token_ids[-LONG:], max_tokens=OUTPUT_TOKENS))
    alone = {"max_tokens": 1, "kv_transfer_params": {"states": "prompt"}}
    bodies.append(server.body(token_ids[-LONG - 40 : -40], **alone))
    taken = asyncio.run(ask(server, bodies))
    assert server.metric("num_preemptions_total") > 0
    chunked = f"Chunked prefill is enabled with max_num_batched_tokens={STEP_TOKENS}."
    assert chunked in server.log.read_text()

    ids = [tokens[:-1] for tokens, _ in taken]
    assert [captured.token_ids_T.tolist() for _, captured in taken] == ids
    assert [len(one) for one in ids] == [length + OUTPUT_TOKENS - 1 for length in (*PROMPT_TOKENS, LONG)] + [
        LONG
    ]
    expected = transformers_states(ids, server.config.extract.aux_layers)
    for (_, captured), want_T4H in zip(taken, expected, strict=True):
        found_T4H = captured.states_T4H.float()
        errors_T4 = (found_T4H - want_T4H).norm(dim=-1) / want_T4H.norm(dim=-1)
        assert float(errors_T4.median(dim=0).values.max()) < 0.03
        nearest_T = torch.cdist(found_T4H[:, 0], want_T4H[:, 0]).argmin(dim=1)
        assert nearest_T.tolist() == list(range(len(want_T4H)))
    server.wait_idle()
    assert server.spooled() == []


def test_aborted_requests_leave_nothing(server: Server, token_ids: list[int]) -> None:
    """Clients that go while tokens come, or before any has, leave no file and no block; others are served."""
    prompts = [token_ids[i * 120 : i * 120 + 110] for i in range(8)]

    async def gone_in_the_middle(session: aiohttp.ClientSession, prompt: list[int]) -> int:
        body = server.body(prompt, max_tokens=380, stream=True)
        async with session.post(server.url + "/completions", json=body) as response:
            return len(await response.content.readany())  # and the connection is closed

    async def gone_before(session: aiohttp.ClientSession, prompt: list[int]) -> None:
        body = server.body(prompt, max_tokens=380)
        with pytest.raises(TimeoutError):
            await session.post(server.url + "/completions", json=body, timeout=aiohttp.ClientTimeout(2.0))

    async def work() -> list[int]:
        async with aiohttp.ClientSession() as session:
            middle = [gone_in_the_middle(session, prompt) for prompt in prompts[:5]]
            before = [gone_before(session, prompt) for prompt in prompts[5:]]
            waiting = asyncio.gather(*before)
            came = await asyncio.gather(*middle)
            await waiting
            return list(came)

    ended = server.metric("request_success_total")
    assert min(asyncio.run(work())) > 0
    server.wait_idle()
    assert server.metric("request_success_total") == ended
    assert server.spooled() == []
    ((ids, captured),) = asyncio.run(ask(server, [server.body(prompts[0], max_tokens=4)]))
    assert captured.token_ids_T.tolist() == ids[:-1]
    server.wait_idle()
    assert server.spooled() == []

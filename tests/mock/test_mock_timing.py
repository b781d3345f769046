"""How the mock server spends time: its queue, shared speeds, clients that leave, and outages."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from synthgen.client.control import Control
from synthgen.mock.distributions import Fixed, Uniform
from synthgen.mock.faults import HalfOpen, Restart, Rule, Unavailable
from synthgen.mock_server import MockConfig, MockServer

# One client for all, since making one takes longer than most tests; it keeps no connection.
HTTP = httpx.Client(trust_env=False, timeout=10.0, limits=httpx.Limits(max_keepalive_connections=0))
SHORT: dict[str, Any] = {"thinking_tokens": Uniform(5, 30), "response_tokens": Uniform(5, 20)}


def body(text: str = "Why?", **changes: Any) -> dict[str, Any]:
    """A chat completion as the harness sends it."""
    asked = {
        "model": "mock",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 100,
        "return_token_ids": True,
        "chat_template_kwargs": {"thinking": True},
    }
    return asked | changes


def post(server: MockServer, asked: dict[str, Any]) -> httpx.Response:
    """Send it; a patient client without retries."""
    return HTTP.post(f"{server.base_url}/chat/completions", json=asked)


def metric(server: MockServer, name: str) -> float:
    """One number of /metrics."""
    text = HTTP.get(f"{server.root_url}/metrics").text
    return float(text.split(f'vllm:{name}{{engine="0",model_name="mock"}} ')[1].split("\n")[0])


def test_requests_over_max_num_seqs_wait() -> None:
    """Of five, two run and three wait; /metrics says so in vLLM's format, and all are served."""
    config = MockConfig(
        max_num_seqs=2, latency_s=Fixed(0.5), kv_cache_tokens=200, thinking_tokens=Fixed(50), seed=1
    )
    with MockServer(config) as server, ThreadPoolExecutor(5) as pool:
        replies = [pool.submit(post, server, body(str(number))) for number in range(5)]
        deadline = time.monotonic() + 5
        while metric(server, "num_requests_waiting") != 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert metric(server, "num_requests_running") == 2
        assert 0.5 < metric(server, "kv_cache_usage_perc") <= 1
        assert [reply.result().status_code for reply in replies] == [200] * 5
        assert server.counters.most_in_flight == 5
        assert metric(server, "num_requests_running") == metric(server, "num_requests_waiting") == 0
        assert metric(server, "num_preemptions_total") > 0
        assert metric(server, "generation_tokens_total") == sum(
            reply.result().json()["usage"]["completion_tokens"] for reply in replies
        )


def test_a_full_queue_answers_503() -> None:
    """One runs, one waits, the third is told that the engine is busy."""
    config = MockConfig(max_num_seqs=1, max_queued=1, latency_s=Fixed(0.5), **SHORT)
    with MockServer(config) as server, ThreadPoolExecutor(3) as pool:
        statuses = sorted(r.status_code for r in pool.map(lambda n: post(server, body(str(n))), range(3)))
        assert statuses == [200, 200, 503]
        assert server.counters.faults == {"queue-full": 1}


def test_a_client_that_leaves_frees_its_place() -> None:
    """As vLLM aborts a request whose connection is gone."""
    with MockServer(MockConfig(max_num_seqs=1, decode_tokens_per_s=1.0, **SHORT)) as server:
        with pytest.raises(httpx.ReadTimeout):
            HTTP.post(f"{server.base_url}/chat/completions", json=body(), timeout=0.2)
        deadline = time.monotonic() + 5
        while metric(server, "num_requests_running") and time.monotonic() < deadline:
            time.sleep(0.01)
        assert metric(server, "num_requests_running") == 0
        assert server.counters.served.total() == 0


def test_a_client_that_leaves_within_a_stream_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """The server says nothing of it, counts no reply, and serves the next."""
    asked = body(stream=True, max_tokens=25_000)
    with MockServer(MockConfig(thinking_tokens=Fixed(20_000))) as server:
        with HTTP.stream("POST", f"{server.base_url}/chat/completions", json=asked) as response:
            next(response.iter_raw())
        assert post(server, body(max_tokens=1)).status_code == 200
        assert server.counters.served.total() == 1
    assert caplog.records == []


def test_speed_saturates_with_concurrency() -> None:
    """Alone a request decodes at its own top speed; eight share the engine's, which is twice that."""
    config = MockConfig(
        clock_speed=20.0,
        decode_tokens_per_s=20.0,
        max_decode_tokens_per_s=40.0,
        thinking_tokens=Fixed(50),
        response_tokens=Fixed(48),
    )
    with MockServer(config) as server, ThreadPoolExecutor(8) as pool:
        started_s = server.now_s
        post(server, body())
        alone_s = server.now_s - started_s
        started_s = server.now_s
        list(pool.map(lambda number: post(server, body(str(number))), range(8)))
        together_s = server.now_s - started_s
    assert 100 / 20 - 0.1 <= alone_s < 15
    assert 8 * 100 / 40 - 0.1 <= together_s < 35


def test_prompts_are_read_one_after_the_other() -> None:
    """Prefill is shared by all: four prompts take as long as their tokens together."""
    with (
        MockServer(MockConfig(prefill_tokens_per_s=1000.0, **SHORT)) as server,
        ThreadPoolExecutor(4) as pool,
    ):
        started = time.monotonic()
        replies = list(pool.map(lambda number: post(server, body(f"{number}" * 60)), range(4)))
        seconds = time.monotonic() - started
    assert seconds >= sum(reply.json()["usage"]["prompt_tokens"] for reply in replies) / 1000


def test_an_outage_ends_by_the_accelerated_clock() -> None:
    """Forty seconds in two: what runs is reset, nobody can connect, then all is as before."""
    restart = Rule(Restart(), from_s=25, to_s=65)
    with MockServer(MockConfig(clock_speed=20.0, decode_tokens_per_s=1.0, faults=(restart,))) as server:
        assert post(server, body(max_tokens=1)).status_code == 200
        with pytest.raises(httpx.TransportError):
            post(server, body("caught by it"))
        assert 25 <= server.now_s < 65
        with pytest.raises(httpx.ConnectError):
            post(server, body("during"))
        while not Control(server.base_url).is_healthy():
            time.sleep(0.02)
        assert server.now_s >= 65
        assert post(server, body("after", max_tokens=1)).status_code == 200
        assert server.counters.faults == {"restart": 1}
        assert server.counters.requests.total() == 3
        assert server.counters.served.total() == 2


@pytest.mark.parametrize("fault", [Unavailable(), HalfOpen()], ids=lambda fault: fault.kind)
def test_a_server_that_is_down_fails_its_health_check(fault: Unavailable | HalfOpen) -> None:
    """While the fault is certain, and no longer."""
    config = MockConfig(clock_speed=60.0, faults=(Rule(fault, to_s=30),), **SHORT)
    with MockServer(config) as server:
        if isinstance(fault, HalfOpen):
            with pytest.raises(httpx.ReadTimeout):
                HTTP.get(f"{server.root_url}/health", timeout=0.1)
        else:
            assert HTTP.get(f"{server.root_url}/health").status_code == 503
        while server.now_s < 30:
            time.sleep(0.02)
        assert Control(server.base_url).is_healthy()

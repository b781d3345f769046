"""Each fault of the mock server, as it looks on the wire, and when it is dealt."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import msgspec
import pytest

from synthgen.mock.distributions import Fixed
from synthgen.mock.faults import (
    NO_FAULT,
    AnyFault,
    CutShort,
    Dealer,
    Exclamations,
    HalfOpen,
    InternalErrorOnce,
    InvalidJson,
    InvalidUtf8,
    MissingTokenIds,
    NullContent,
    Reset,
    Rule,
    SlowHeaders,
    TooManyRequests,
    Unavailable,
    UnknownFinish,
    WrongUsage,
)
from synthgen.mock_server import MockConfig, MockServer, Preset

# One client for all, since making one takes longer than most tests; it keeps no connection.
HTTP = httpx.Client(trust_env=False, limits=httpx.Limits(max_keepalive_connections=0))
BODY: dict[str, Any] = {
    "model": "mock",
    "messages": [{"role": "user", "content": "Why?"}],
    "return_token_ids": True,
}


@contextmanager
def server_with(fault: AnyFault, **changes: Any) -> Iterator[MockServer]:
    """A server that deals one fault to every request."""
    config = MockConfig(
        thinking_tokens=Fixed(6), response_tokens=Fixed(4), faults=(Rule(fault),), **({"seed": 1} | changes)
    )
    with MockServer(config) as server:
        yield server


def send(server: MockServer, *, timeout_s: float = 5.0, **changes: Any) -> httpx.Response:
    """One chat completion."""
    return HTTP.post(f"{server.base_url}/chat/completions", json=BODY | changes, timeout=timeout_s)


def events_of(response: httpx.Response) -> list[Any]:
    """What the events of a stream hold, [DONE] aside."""
    lines = response.content.split(b"\n\n")[:-2]
    return [msgspec.json.decode(line.removeprefix(b"data: ")) for line in lines]


def test_too_many_requests_says_when_to_come_back() -> None:
    """429, and the seconds that really pass: two of a clock that runs twice as fast are one."""
    with server_with(TooManyRequests(retry_after_s=2), clock_speed=2.0) as server:
        response = send(server)
        assert (response.status_code, response.headers["Retry-After"]) == (429, "1")
        assert response.json()["error"]["code"] == 429
        assert server.counters.faults == {"too-many-requests": 1}


def test_a_500_goes_away() -> None:
    """The first try of a body fails, its second is served; another body begins anew."""
    with server_with(InternalErrorOnce()) as server:
        assert [send(server).status_code for _ in range(3)] == [500, 200, 200]
        assert [send(server, seed=2).status_code for _ in range(2)] == [500, 200]


def test_unavailable_is_a_503() -> None:
    """With vLLM's words."""
    with server_with(Unavailable()) as server:
        response = send(server)
        assert response.status_code == 503
        assert response.json()["error"]["type"] == "ServiceUnavailable"


def test_a_reset_breaks_the_connection() -> None:
    """There is no answer at all."""
    with server_with(Reset()) as server, pytest.raises(httpx.ReadError):
        send(server)


def test_half_open_never_answers() -> None:
    """The request arrives, and only the client's own time limit ends it."""
    with server_with(HalfOpen()) as server:
        with pytest.raises(httpx.ReadTimeout):
            send(server, timeout_s=0.2)
        assert server.counters.faults == {"half-open": 1}
        assert server.counters.requests.total() == 1


def test_slow_headers_come_late() -> None:
    """A patient client gets the whole reply, another one nothing."""
    with server_with(SlowHeaders(seconds=30), clock_speed=100.0) as server:
        with pytest.raises(httpx.ReadTimeout):
            send(server, timeout_s=0.1)
        assert send(server).elapsed.total_seconds() >= 0.3
        assert server.counters.served.total() == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_cut_body_ends_early(stream: bool) -> None:
    """The connection closes before the length that was promised, or before the last chunk."""
    with server_with(CutShort()) as server:
        with pytest.raises(httpx.RemoteProtocolError):
            send(server, stream=stream)
        assert server.counters.served.total() == 0


@pytest.mark.parametrize("stream", [False, True])
def test_invalid_json_can_not_be_decoded(stream: bool) -> None:
    """200, complete by its length, and yet no JSON."""
    with server_with(InvalidJson()) as server:
        response = send(server, stream=stream)
        assert response.status_code == 200
        with pytest.raises(msgspec.DecodeError):
            events_of(response) if stream else msgspec.json.decode(response.content)


@pytest.mark.parametrize("stream", [False, True])
def test_invalid_utf8_is_in_the_text(stream: bool) -> None:
    """The bytes 0xFF 0xFE, which no text has."""
    with server_with(InvalidUtf8()) as server:
        response = send(server, stream=stream)
        assert response.status_code == 200
        assert b'"content":"\xff\xfe' in response.content
        with pytest.raises(UnicodeDecodeError):
            response.content.decode()


@pytest.mark.parametrize("stream", [False, True])
def test_token_ids_can_be_missing(stream: bool) -> None:
    """Though they were asked for; the text is there."""
    with server_with(MissingTokenIds()) as server:
        response = send(server, stream=stream)
        assert b'token_ids":[' not in response.content
        assert b'"reasoning":' in response.content


def test_usage_can_be_wrong() -> None:
    """It counts other tokens than were sent."""
    with server_with(WrongUsage(off_by_tokens=-1)) as server:
        reply = send(server).json()
        assert len(reply["choices"][0]["token_ids"]) == 12
        assert reply["usage"]["completion_tokens"] == 11


def test_content_can_be_null_though_it_stopped() -> None:
    """All text is reasoning, and the ids have no `</think>`: six words, four words, end of turn."""
    with server_with(NullContent()) as server:
        reply = send(server).json()
        choice = reply["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == (None, "stop")
        assert len(choice["token_ids"]) == reply["usage"]["completion_tokens"] == 11
        whole = HTTP.post(f"{server.root_url}/detokenize", json={"tokens": choice["token_ids"]})
        assert whole.json()["prompt"] == choice["message"]["reasoning"] + "<|im_end|>"


@pytest.mark.parametrize(("thinking", "part", "length"), [(True, "reasoning", 12), (False, "content", 5)])
def test_a_reply_can_be_exclamation_marks(thinking: bool, part: str, length: int) -> None:
    """As many as it would have had tokens, in the part where it started."""
    with server_with(Exclamations()) as server:
        message = send(server, chat_template_kwargs={"thinking": thinking}).json()["choices"][0]["message"]
        assert message[part] == "!" * length


@pytest.mark.parametrize("stream", [False, True])
def test_a_finish_reason_can_be_unknown(stream: bool) -> None:
    """One that OpenAI's API doesn't have."""
    with server_with(UnknownFinish()) as server:
        response = send(server, stream=stream)
        reply = events_of(response)[-1] if stream else response.json()
        assert reply["choices"][0]["finish_reason"] == "abort"


def test_draws_do_not_depend_on_the_order_of_requests() -> None:
    """A body's n-th try gets the same fault whenever it comes, so a concurrent rehearsal repeats."""
    tries = [(f"{number}", attempt) for number in range(300) for attempt in (1, 2)]
    dealer = Dealer(Preset.harsh.rules, seed=5)
    first = {key: dealer.deal(*key, now_s=0.0) for key in tries}
    random.Random(0).shuffle(tries)
    assert {key: Dealer(Preset.harsh.rules, seed=5).deal(*key, now_s=9.0) for key in tries} == first
    assert {key: Dealer(Preset.harsh.rules, seed=6).deal(*key, now_s=0.0) for key in tries} != first


def test_faults_come_as_often_as_their_rule_says() -> None:
    """One in ten of two thousand is two hundred, give or take a fifth; outside the window there is none."""
    dealer = Dealer([Rule(Reset(), 0.1, from_s=10, to_s=20)], seed=0)
    hits = Counter(dealer.deal(f"{number}", 1, now_s=15.0).kind for number in range(2000))
    assert hits["reset"] == pytest.approx(200, abs=40)
    assert all(
        dealer.deal(f"{number}", 1, now_s=now_s) is NO_FAULT for number in range(99) for now_s in (9, 20)
    )


def test_presets_name_known_faults() -> None:
    """None deals nothing; harsh deals everything but restarts; an outage is ten minutes long."""
    assert Preset.none.rules == ()
    kinds = {rule.fault.kind for rule in Preset.harsh.rules}
    assert len(kinds) == len(Preset.harsh.rules) == 14
    restart = Preset.outage.rules[0]
    assert (restart.fault.kind, restart.to_s - restart.from_s) == ("restart", 600.0)


def test_rules_can_be_written_as_json() -> None:
    """A config with faults survives being written and read, each fault under its name."""
    config = MockConfig(faults=Preset.outage.rules[1:])
    written = msgspec.json.encode(config)
    assert b'{"fault":"unavailable"}' in written
    assert msgspec.json.decode(written.replace(b'"to_s":null', b'"to_s":1e308'), type=MockConfig)

"""Control calls: who the server is, and what it counted."""

from __future__ import annotations

import pytest

from synthgen.client.control import Control, api_key
from synthgen.client.metrics import ServerLoad, SpecCounters, parse_counts, parse_load
from synthgen.corpus.sections import VerifierConfig
from synthgen.errors import ConfigError, ServerError, ServerMismatch, ServerUnreachable
from tests.scripted_server import MODEL, SPECIAL, ScriptedServer

METRICS = """\
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 10.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1.7e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 30.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 14.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 8.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 4.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="2"} 2.0
"""


def verifier(**changes: object) -> VerifierConfig:
    """A verifier section that fits the scripted server."""
    fields: dict[str, object] = {
        "model": "x",
        "revision": None,
        "served_name": MODEL,
        "think_end": "</think>",
        "tool_section": None,
        "trust_remote_code": False,
    }
    return VerifierConfig(**{**fields, **changes})  # type: ignore[arg-type]


def test_counters_are_read_with_their_positions(server: ScriptedServer) -> None:
    """Totals and positions; `_created` lines are no counters. 1 + 14 / 10 tokens a step."""
    server.counters = METRICS
    counters = Control(server.base_url).spec_counters()
    assert counters == SpecCounters(
        drafts=10.0, draft_tokens=30.0, accepted=14.0, accepted_by_position=(8.0, 4.0, 2.0)
    )
    assert counters.acceptance_length == 2.4
    assert counters.rate_by_position == [0.8, 0.4, 0.2]


LOAD = """\
vllm:num_requests_running{engine="0",model_name="m"} 60.0
vllm:num_requests_waiting{engine="0",model_name="m"} 17.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 17.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:num_preemptions_total{engine="0",model_name="m"} 3.0
vllm:num_preemptions_created{engine="0",model_name="m"} 1.7e+09
"""


def test_the_load_is_read_by_exact_names() -> None:
    """Gauges that only begin alike are others; a server without them has no load."""
    assert parse_load(LOAD) == ServerLoad(running=60.0, waiting=17.0, kv_usage=0.25, preemptions=3.0)
    assert parse_load("python_gc_objects 3\n") is None


def test_the_load_of_several_engines_is_their_sum_and_their_fullest_cache() -> None:
    """Data parallelism shows each engine's gauges: eight caches at 15 % are not one at 120 %."""
    text = "".join(
        f'vllm:num_requests_running{{engine="{i}"}} 4.0\nvllm:kv_cache_usage_perc{{engine="{i}"}} 0.1{i}\n'
        for i in range(8)
    )
    assert parse_load(text) == ServerLoad(running=32.0, waiting=0.0, kv_usage=0.17, preemptions=0.0)


@pytest.mark.parametrize("key", ["sk-secret\r", "sk-secret\n", " sk-secret", "sk-s\u00e9cret"])
def test_a_key_that_fits_no_header_is_refused_without_being_shown(
    monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """As a file from Windows leaves it; the variable is named, the key isn't."""
    monkeypatch.setenv("MY_KEY", key)
    with pytest.raises(ConfigError, match="the key in environment variable MY_KEY") as caught:
        api_key("MY_KEY")
    assert "cret" not in str(caught.value)


def test_what_was_counted_since_is_the_difference() -> None:
    """Before and after a burst."""
    before = SpecCounters(drafts=10.0, draft_tokens=30.0, accepted=14.0, accepted_by_position=(8.0, 6.0))
    after = SpecCounters(drafts=14.0, draft_tokens=42.0, accepted=20.0, accepted_by_position=(12.0, 8.0))
    assert after.since(before) == SpecCounters(
        drafts=4.0, draft_tokens=12.0, accepted=6.0, accepted_by_position=(4.0, 2.0)
    )
    with pytest.raises(ServerError, match="restarted meanwhile"):
        before.since(after)


def test_parts_add_up() -> None:
    """Domains are counted apart and reported together."""
    part = SpecCounters(drafts=4.0, draft_tokens=12.0, accepted=6.0, accepted_by_position=(4.0, 2.0))
    assert SpecCounters.total([part, part]).accepted_by_position == (8.0, 4.0)
    assert SpecCounters.total([part, part]).acceptance_length == 2.5


def test_no_drafts_is_no_acceptance_length() -> None:
    """Replies of a token or two draft nothing; that isn't a length of 1."""
    nothing = SpecCounters(drafts=0.0, draft_tokens=0.0, accepted=0.0, accepted_by_position=())
    with pytest.raises(ServerError, match="counted no drafts"):
        _ = nothing.acceptance_length


COUNTS = """\
process_start_time_seconds 1.79e+09
vllm:cache_config_info{block_size="16",enable_prefix_caching="True",engine="0"} 1.0
vllm:generation_tokens_total{engine="0",model_name="m"} 500.0
vllm:generation_tokens_total{engine="1",model_name="m"} 20.0
vllm:generation_tokens_created{engine="0",model_name="m"} 1.7e+09
vllm:time_to_first_token_seconds_count{engine="0"} 8.0
vllm:time_to_first_token_seconds_sum{engine="0"} 2.0
"""


def test_what_a_server_counted_is_summed_over_its_engines() -> None:
    """Tokens, the first ones' times, its start, and whether it caches prompts."""
    counts = parse_counts(COUNTS)
    assert (counts.is_vllm, counts.spec, counts.started_at) == (True, None, 1.79e9)
    assert (counts.output_tokens, counts.first_token_mean_s, counts.prefix_caching) == (520.0, 0.25, True)
    assert not parse_counts(COUNTS.replace("True", "False")).prefix_caching
    nothing = parse_counts("")
    assert (nothing.is_vllm, nothing.started_at, nothing.first_token_mean_s) == (False, None, None)


def test_counts_since_know_a_restart() -> None:
    """By another start, or by fewer tokens where the start isn't told."""
    before, after = parse_counts(COUNTS), parse_counts(COUNTS.replace("500.0", "600.0"))
    assert after.since(before).output_tokens == 100.0
    for one, other in (
        (COUNTS, COUNTS.replace("1.79e+09", "1.8e+09")),
        (COUNTS, COUNTS.replace("500.0", "3.0")),
        (COUNTS + METRICS, COUNTS + METRICS.replace(',position="2"', ',position="1"')),
    ):
        with pytest.raises(ServerError, match="restarted meanwhile"):
            parse_counts(other).since(parse_counts(one))


def test_a_server_without_a_draft_is_named(server: ScriptedServer) -> None:
    """Acceptance can't be read where nothing is drafted, nor where there are no counters at all."""
    with pytest.raises(ServerMismatch, match="has no counters of vLLM"):
        Control(server.base_url).spec_counters()
    server.counters = COUNTS
    with pytest.raises(ServerMismatch, match="runs without a draft"):
        Control(server.base_url).spec_counters()


def test_nobody_there_says_how_to_start_one(server: ScriptedServer) -> None:
    """A dead server is one clear line."""
    with pytest.raises(
        ServerUnreachable, match=r"nothing answers at http://127\.0\.0\.1:9/v1/models.*synthgen serve"
    ):
        Control("http://127.0.0.1:9/v1").models()
    assert not Control("http://127.0.0.1:9/v1").is_healthy()


def test_another_model_is_named_with_what_is_served(server: ScriptedServer) -> None:
    """Both names stand in the error."""
    with pytest.raises(ServerMismatch, match="serves 'scripted', not 'kimi'"):
        Control(server.base_url).require_model("kimi")


def test_boundary_tokens_are_resolved_by_name(server: ScriptedServer) -> None:
    """Ids come from the server's tokenizer; a text of several tokens is refused."""
    control = Control(server.base_url)
    assert control.markers(verifier()).think_end == 900
    assert control.markers(verifier(think_end=None)).think_end is None
    with pytest.raises(ServerMismatch, match=r"verifier\.think_end '</thinking>' is 11 tokens"):
        control.markers(verifier(think_end="</thinking>"))


def test_a_fingerprint_tells_servers_apart(server: ScriptedServer) -> None:
    """A server has the same digest each time, and another one when its tokenizer gives other ids."""
    control = Control(server.base_url)
    found = control.fingerprint(MODEL)
    assert (found.model, found.max_model_len, found.engine) == (MODEL, 1024, "vllm 0.0.scripted")
    assert control.fingerprint(MODEL).digest == found.digest
    server.tokenizer_suffix = [7]
    assert control.fingerprint(MODEL).digest != found.digest


def test_special_tokens_are_those_that_the_template_writes(server: ScriptedServer) -> None:
    """By name, with the markers; what is no name in brackets is left out."""
    control = Control(server.base_url)
    assert control.markers(verifier()).special == SPECIAL
    assert control.markers(verifier(think_end=None)).special == SPECIAL


def test_a_template_without_system_messages_is_asked_without_one(server: ScriptedServer) -> None:
    """A refusal of the first conversation doesn't end the run."""
    server.takes_system = False
    assert "<|im_user|>" in Control(server.base_url).special_tokens(MODEL)


def test_a_server_that_names_no_tokens_gives_only_the_markers(server: ScriptedServer) -> None:
    """`token_strs: null`, as of other servers."""
    server.names_tokens = False
    assert Control(server.base_url).special_tokens(MODEL) == {}
    section = verifier(tool_section="<|tool_calls_section_begin|>")
    assert Control(server.base_url).markers(section).special == {
        "</think>": 900,
        "<|tool_calls_section_begin|>": 901,
    }


def test_a_key_that_the_server_repeats_is_not_shown(server: ScriptedServer) -> None:
    """Some say which header they refuse."""
    server.tokenize_status = 401
    server.says = "bad header: Bearer sk-SECRET"
    with pytest.raises(ServerMismatch, match=r"answered 401: .*Bearer \(the key\)"):
        Control(server.base_url, "sk-SECRET").tokenize(MODEL, prompt="a")

"""What a server that runs can do of what a run asks of it: each by trying it once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from packaging.specifiers import SpecifierSet

from synthgen.client.api import ApiClient
from synthgen.client.bodies import chat_body
from synthgen.client.capture import require_capture
from synthgen.client.control import TEMPLATE_PROBE, Control, Markers
from synthgen.client.metrics import parse_load, parse_spec_counters
from synthgen.client.replies import ChatReply
from synthgen.corpus.config import RunConfig
from synthgen.corpus.records import Message, Sampling, SeedPrompt, Timing, Trace, seed_id
from synthgen.doctor.findings import Finding, Level, finding
from synthgen.doctor.packages import tested_engines, tested_with
from synthgen.errors import RequestFailed, ServerError
from synthgen.generate.traces import ServerFacts, trace_of

ASKED = Message(role="user", content="What is 17 + 25?")
REPLY_TOKENS = 128
REPLY_S = 120.0
"""A first reply may wait for a compiler."""
NO_MARKERS = Markers(think_end=None, tool_section=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patient:
    """A server that is examined, and what for."""

    control: Control
    model: str
    config: RunConfig | None
    key: str | None

    def find(self, check: str, level: Level, said: str) -> Finding:
        """A finding of this server."""
        return finding(check, level, said, self.control.base_url)

    def tried(self, check: str, look: Callable[[Patient], Finding]) -> Finding:
        """What `look` finds; a server that refuses or is gone is a problem of that check."""
        try:
            return look(self)
        except ServerError as error:
            return self.find(check, Level.PROBLEM, str(error))


def server_findings(base_url: str, config: RunConfig | None, key: str | None) -> Iterator[Finding]:
    """All that can be known of a server; when nothing answers, or it serves another model, only that."""
    control = Control(base_url, key)
    asked = config.verifier.served_name if config else None
    try:
        names = [str(entry["id"]) for entry in control.models()]
    except ServerError as error:
        yield finding("server", Level.PROBLEM, str(error), control.base_url)
        return
    yield finding("server", Level.OK, "answers", control.base_url)
    patient = Patient(control=control, model=asked or next(iter(names), ""), config=config, key=key)
    model = patient.tried("model", model_finding)
    yield model
    if model.level is Level.PROBLEM:
        return
    yield patient.tried("version", version_finding)
    yield patient.tried("template", template_finding)
    yield from reply_findings(patient)
    yield patient.tried("metrics", metrics_finding)
    yield patient.tried("capture", capture_finding)
    yield patient.tried("draft", draft_finding)


def model_finding(patient: Patient) -> Finding:
    """The model that the config asks for, with room for its longest conversation."""
    entry, config = patient.control.require_model(patient.model), patient.config
    room = entry.get("max_model_len")
    said = f"{patient.model}, {room:,} tokens at most" if room else patient.model
    if config is None or room is None or room >= config.server.max_model_len_tokens:
        return patient.find("model", Level.OK, said)
    wanted = f"server.max_model_len_tokens is {config.server.max_model_len_tokens:,}"
    if room <= config.generate.max_tokens:
        return patient.find(
            "model",
            Level.PROBLEM,
            f"{said}, and generate.max_tokens {config.generate.max_tokens:,} leaves no room for a prompt: "
            f"start the server with a larger --max-model-len, or lower generate.max_tokens",
        )
    return patient.find("model", Level.WARNING, f"{said}, but {wanted}: longer conversations will fail")


def version_finding(patient: Patient) -> Finding:
    """vLLM's version, against those that were tested."""
    return judged_version(patient, patient.control.version(), tested_engines())


def judged_version(patient: Patient, version: str, tested: SpecifierSet | None) -> Finding:
    """A version that isn't among the tested ones may do: that is a warning."""
    if tested is None or tested.contains(version, prereleases=True):
        return patient.find("version", Level.OK, f"vLLM {version}")
    return patient.find("version", Level.WARNING, f"vLLM {version}: {tested_with(tested)}")


def template_finding(patient: Patient) -> Finding:
    """A conversation as the chat template writes it, and whether the boundary tokens are single ones."""
    control = patient.control
    ids = control.tokenize(patient.model, messages=TEMPLATE_PROBE)
    markers = markers_of(patient)
    if not markers.special:
        return patient.find(
            "template",
            Level.WARNING,
            f"{len(ids)} tokens for three messages, but the server names no tokens (`return_token_strs`): "
            f"screening won't see special tokens in texts",
        )
    return patient.find(
        "template",
        Level.OK,
        f"{len(ids)} tokens for three messages, {len(markers.special)} special ones by name",
    )


def markers_of(patient: Patient) -> Markers:
    """The configured boundary tokens; without a config only the special tokens that have names."""
    if patient.config is not None:
        return patient.control.markers(patient.config.verifier)
    special = patient.control.special_tokens(patient.model)
    return Markers(think_end=special.get("</think>"), tool_section=None, special=special)


def reply_findings(patient: Patient) -> Iterator[Finding]:
    """One short reply: does it come, with its token ids, and with its thinking apart?"""
    config = patient.config
    sampling = Sampling(
        temperature=0.0,
        top_p=1.0,
        max_tokens=min(REPLY_TOKENS, config.generate.max_tokens) if config else REPLY_TOKENS,
        thinking=config.generate.thinking if config else True,
    )
    prompt = SeedPrompt(id=seed_id((ASKED,)), source="doctor", domain="doctor", messages=(ASKED,))
    try:
        reply = asyncio.run(_ask(patient, chat_body(prompt, patient.model, sampling)))
        trace = _trace(patient, prompt, reply, sampling)
    except RequestFailed as error:
        yield patient.find("token ids", Level.PROBLEM, f"{error}. {_remedy(error)}")
        return
    except ServerError as error:
        yield patient.find("token ids", Level.PROBLEM, str(error))
        return
    said = f"{len(trace.prompt_token_ids)} of the prompt, {trace.output_length} of the reply, as usage says"
    yield patient.find("token ids", Level.OK, said)
    yield thinking_finding(patient, trace)


def _remedy(error: RequestFailed) -> str:
    if error.status is not None:
        return "Send the server a chat completion by hand, and see its log"
    return (
        "A corpus can't be made from it: take vLLM 0.32, without a proxy that rewrites replies, and see "
        "docs/troubleshooting.md"
    )


async def _ask(patient: Patient, body: dict[str, Any]) -> ChatReply:
    client = ApiClient(
        patient.control.base_url,
        api_key=patient.key,
        concurrency=1,
        timeout_s=REPLY_S,
        retry_attempts=2,
        retry_seconds=10.0,
    )
    async with client:
        reply, _ = await client.chat(body)
        return reply


def _trace(patient: Patient, prompt: SeedPrompt, reply: ChatReply, sampling: Sampling) -> Trace:
    """The reply as `synthgen generate` would keep it."""
    facts = ServerFacts(fingerprint=patient.control.fingerprint(patient.model), markers=markers_of(patient))
    timing = Timing(started_at=time.time(), seconds=0.0)
    return trace_of(prompt, 0, reply, sampling, facts, 1, timing)


def thinking_finding(patient: Patient, trace: Trace) -> Finding:
    """Whether thinking comes apart from the response, in the text and in the ids."""
    length = trace.output_length
    if not trace.sampling.thinking:
        return patient.find("thinking", Level.OK, "off (generate.thinking)")
    if trace.thinking and trace.think_end is not None:
        said = f"comes apart; it ends at token {trace.think_end} of {length}"
        return patient.find("thinking", Level.OK, said)
    if trace.thinking and trace.truncated_in is not None:
        said = f"comes apart; the reply was cut inside it, after {length} tokens"
        return patient.find("thinking", Level.OK, said)
    if trace.thinking:
        said = (
            "the reply ended inside its thinking: see verifier.think_end, and `synthgen generate --preview 1`"
        )
        return patient.find("thinking", Level.WARNING, said)
    if trace.think_end is not None:
        said = (
            f"its closing token is in the ids (token {trace.think_end} of {length}), but its text comes with "
            f"the response: start the server with --reasoning-parser (server.reasoning_parser)"
        )
        return patient.find("thinking", Level.PROBLEM, said)
    said = (
        f"none in {length} tokens: for a model that thinks, start the server with --reasoning-parser and see "
        f"verifier.think_end; for another, set generate.thinking to false"
    )
    return patient.find("thinking", Level.WARNING, said)


def metrics_finding(patient: Patient) -> Finding:
    """The gauges by which `generate.concurrency: auto` finds its limit."""
    load = parse_load(patient.control.metrics())
    if load is None:
        said = (
            "/metrics has no vllm:num_requests_running, so generate.concurrency auto can't see how busy the "
            "server is: set it to a number, or let /metrics through the proxy"
        )
        return patient.find("metrics", Level.WARNING, said)
    return patient.find(
        "metrics", Level.OK, f"{load.running:.0f} requests running, {load.waiting:.0f} waiting"
    )


def capture_finding(patient: Patient) -> Finding:
    """Whether the hidden-state connector is there and, with a config, whether its files arrive here."""
    control, config = patient.control, patient.config
    told = control.captured(patient.model, control.tokenize(patient.model, prompt="a")[:1]) or {}
    if "states_file" not in told:
        said = "no connector: `eagle extract` needs one: `synthgen serve CONFIG --role capture`"
        if config is not None and (config.generate.capture or config.train.stream):
            key = "generate.capture" if config.generate.capture else "train.stream"
            return patient.find("capture", Level.PROBLEM, f"{said}; {key} does, too")
        return patient.find("capture", Level.WARNING if config else Level.OK, said)
    if config is None:
        return patient.find(
            "capture", Level.OK, f"layers {told.get('layer_ids')}; where it writes isn't known"
        )
    require_capture(config, control)
    return patient.find("capture", Level.OK, f"layers {told.get('layer_ids')}, into {config.spool_path}")


def draft_finding(patient: Patient) -> Finding:
    """Whether the server drafts."""
    counters, config = parse_spec_counters(patient.control.metrics()), patient.config
    if counters is None:
        return patient.find("draft", Level.OK, "none: replies are the verifier's alone")
    said = f"speculative decoding is on, {counters.drafts:,.0f} drafts so far"
    if config is not None and config.server.device == "cpu" and config.generate.temperature > 0:
        return patient.find(
            "draft",
            Level.WARNING,
            f"{said}: vLLM 0.32 on a CPU samples wrongly above temperature 0 then, unless our connector "
            f"mends it: generate from a server without a draft",
        )
    return patient.find("draft", Level.OK, said)

"""The whole line on real parts: a real vLLM serves the demo's verifier, in a small run.

One run is made for the module, and one server with the connector; the tests look at what came out.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow
import pyarrow.parquet
import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from eagle.accept.report import AcceptanceReport
from eagle.checkpoint import load_weights
from eagle.draft import Draft, build_draft, unroll
from eagle.export import chosen
from eagle.loss import VerifierHead, target_logits, verifier_head
from eagle.prefill import take_states
from eagle.shards import read_all
from eagle.taps import TapPoints
from eagle.verifier import VerifierWeights, read_weights
from eagle.vocab import VocabMap, load_vocab
from prompts.problems import problems
from synthgen.client.api import ApiClient
from synthgen.client.bodies import chat_body
from synthgen.client.control import Control
from synthgen.client.launch import capturing, started
from synthgen.client.replies import ChatReply
from synthgen.corpus.config import RunConfig
from synthgen.corpus.journal import read_journal, write_journal
from synthgen.corpus.manifest import read_manifest, require_manifest
from synthgen.corpus.records import Sampling, SeedPrompt, Timing, Trace, prompt_key
from synthgen.corpus.samples import DatasetRow, Origin
from synthgen.corpus.settings import load_config
from synthgen.generate.traces import ServerFacts, trace_of
from synthgen.run import stages
from tests.conftest import ROOT
from tests.eagle.test_prefill import healthy
from tests.rows import row_of

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

GREEDY = Sampling(temperature=0.0, top_p=1.0, max_tokens=256, thinking=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A finished run."""

    config: RunConfig
    path: Path
    stdout: str
    stderr: str


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Line:
    """`synthgen run` on 64 prompts and 12 held-out ones, states captured with the replies.

    Three tenths of the supervised tokens are replies that others wrote, in open-perfectblend's shape.
    """
    directory = tmp_path_factory.mktemp("line")
    write_blend(directory / "blend.parquet")
    values: dict[str, Any] = yaml.safe_load((ROOT / "configs/demo.yaml").read_text())
    values["run_dir"] = str(directory / "run")
    values["server"]["port"] = 8150
    values["prompts"] |= {"limit": 64, "heldout": 12}
    values["generate"]["capture"] = True
    values["mix"] = {
        "unit": "tokens",
        "parts": [
            {"name": "native", "share": 0.7, "traces": [], "replies": None},
            {"name": "blend", "share": 0.3, "traces": None, "replies": str(directory / "blend.parquet")},
        ],
        "heldout_fraction": 0.1,
    }
    values["extract"]["shard_tokens"] = 2048
    values["train"] |= {"epochs": 14, "batch_tokens": 256, "max_seq_tokens": 256, "checkpoint_steps": 50}
    values["accept"] |= {
        "prompts": 12,
        "single_prompts": 4,
        "concurrencies": [1, 2],
        "rounds": 1,
        "max_tokens": 256,
        "untrained": False,
    }
    path = directory / "small.yaml"
    path.write_text(yaml.safe_dump(values))
    done = _run(path)
    assert done.returncode == 0, done.stderr[-4000:]
    return Line(config=load_config(path), path=path, stdout=done.stdout, stderr=done.stderr)


def write_blend(path: Path) -> None:
    """Worked problems as open-perfectblend writes conversations."""
    rows = [
        {
            "source": f"problems/{problem.domain}",
            "conversations": [
                {"from": "human", "value": problem.question},
                {"from": "gpt", "value": f"{problem.thinking} The answer is {problem.answer}."},
            ],
        }
        for problem in problems("blend", 300)
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def _run(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "synthgen", "run", str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=800, check=False, cwd=ROOT)


@pytest.fixture(scope="module")
def tokenizer(line: Line) -> PreTrainedTokenizerBase:
    """The verifier's tokenizer, loaded apart from the server."""
    loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(line.config.verifier.model)
    return loaded


@pytest.fixture(scope="module")
def traces(line: Line) -> list[Trace]:
    """The run's corpus."""
    return list(read_journal(line.config.traces_path, Trace))


@pytest.fixture(scope="module")
def dataset(line: Line) -> list[DatasetRow]:
    """What the draft is trained on."""
    return list(read_journal(line.config.train_path, DatasetRow))


@pytest.fixture(scope="module")
def spool(line: Line) -> Path:
    """Where the capturing server writes."""
    path = line.config.spool_path
    path.mkdir(exist_ok=True)
    return path


@pytest.fixture(scope="module")
def capture_url(line: Line, spool: Path) -> Iterator[str]:
    """A server with the project's connector."""
    with started(line.config, capturing(line.config, port_offset=5)) as (process,):
        yield process.base_url


def _taps(config: RunConfig) -> TapPoints:
    return TapPoints(config.extract.aux_layers, num_layers=8)


def _ask(
    url: str, config: RunConfig, prompts: list[SeedPrompt], sampling: Sampling, **extra: Any
) -> list[ChatReply]:
    """Replies to prompts, sixteen at a time."""

    async def work() -> list[ChatReply]:
        client = ApiClient(
            url, api_key=None, concurrency=16, timeout_s=300, retry_attempts=1, retry_seconds=1
        )
        async with client:
            bodies = [chat_body(prompt, config.verifier.served_name, sampling) | extra for prompt in prompts]
            return [reply for reply, _ in await asyncio.gather(*map(client.chat, bodies))]

    return asyncio.run(work())


def _heldout(config: RunConfig) -> list[SeedPrompt]:
    return list(read_journal(config.heldout_path, SeedPrompt))


def test_the_last_line_of_stdout_is_the_run_in_json(line: Line) -> None:
    """One object with the figures that the table shows, and the table before it within 100 columns."""
    *table, last = line.stdout.splitlines()
    figures = json.loads(last)
    assert list(figures) == [
        "traces", "rows", "thinking_tokens", "response_tokens", "vocab_coverage", "acceptance_length",
        "acceptance_length_untrained", "lossless", "speedup", "seconds",
    ]  # fmt: skip
    assert figures["traces"] == 64
    assert figures["thinking_tokens"] > figures["response_tokens"] > 64
    assert 0.9 < figures["vocab_coverage"] <= 1.0
    assert figures["acceptance_length"] > 1.3
    assert figures["lossless"] is True
    assert figures["speedup"] > 0
    assert "acceptance length" in "\n".join(table)
    assert max(map(len, table)) <= 100


def test_every_artifact_is_complete_and_says_how_it_was_made(line: Line) -> None:
    """A manifest and the resolved config beside each."""
    for stage in stages(line.config):
        manifest = read_manifest(stage.artifact)
        assert manifest is not None
        assert manifest.complete
        assert manifest.versions["python"].startswith("3.")
        assert load_config(stage.artifact / "run.yaml") == line.config


def test_running_again_does_nothing_and_says_the_same(line: Line) -> None:
    """Every stage is complete and fits: no server is started, no request sent."""
    again = _run(line.path)
    assert again.returncode == 0, again.stderr
    assert again.stdout.splitlines()[-1] == line.stdout.splitlines()[-1]
    assert "starting vLLM" not in again.stderr


def test_prompt_ids_are_those_of_the_models_own_template(
    traces: list[Trace], tokenizer: PreTrainedTokenizerBase
) -> None:
    """What the server rendered is what the template renders, ending inside the thinking."""
    for trace in traces:
        messages = [{"role": m.role, "content": m.content or ""} for m in trace.messages]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert isinstance(text, str)
        assert text.endswith("<think>")
        assert list(trace.prompt_token_ids) == tokenizer.encode(text, add_special_tokens=False)


def test_the_thinking_ends_where_the_model_closed_it(
    traces: list[Trace], tokenizer: PreTrainedTokenizerBase
) -> None:
    """think_end is the first `</think>`; the texts are those of the two sides, less white space."""
    closing = tokenizer.convert_tokens_to_ids("</think>")
    closed = [trace for trace in traces if trace.think_end is not None]
    assert len(closed) >= 60
    for trace in closed:
        assert trace.think_end is not None
        assert trace.output_token_ids.index(closing) == trace.think_end
        thinking = tokenizer.decode(list(trace.output_token_ids[: trace.think_end]))
        response = tokenizer.decode(
            list(trace.output_token_ids[trace.think_end + 1 :]), skip_special_tokens=True
        )
        assert (trace.thinking or "").strip() == str(thinking).strip()
        assert (trace.response or "").strip() == str(response).strip()


def test_states_are_transformers_at_each_tap(line: Line) -> None:
    """Median relative error per token under 2 %, at the ids' own layers, the final one before the norm."""
    model = AutoModelForCausalLM.from_pretrained(line.config.verifier.model, dtype=torch.float32)
    finals: list[torch.Tensor] = []
    hook = model.model.norm.register_forward_pre_hook(lambda _, inputs: finals.append(inputs[0]))
    errors: list[list[torch.Tensor]] = [[], [], [], []]
    for sample in list(read_all(line.config.states_path))[:12]:
        finals.clear()
        with torch.no_grad():
            hidden = model(sample.token_ids_T[None], output_hidden_states=True).hidden_states
        expected = [hidden[k][0] for k in line.config.extract.aux_layers] + [finals[0][0]]
        for tap, want_TH in enumerate(expected):
            found_TH = (sample.aux.read()[:, tap] if tap < 3 else sample.final.read()).float()
            errors[tap].append((found_TH - want_TH).norm(dim=-1) / want_TH.norm(dim=-1))
    hook.remove()
    medians = [float(torch.cat(parts).median()) for parts in errors]
    assert all(median < 0.02 for median in medians), medians


def test_shares_hold_and_no_prompt_is_on_both_sides(line: Line, dataset: list[DatasetRow]) -> None:
    """70/30 by supervised tokens within one percent; prompts held out for acceptance are on neither side."""
    tokens = dict.fromkeys(("native", "blend"), 0)
    for row in dataset:
        tokens[row.part] += sum(span.end - span.start for span in row.spans)
    assert tokens["native"] / sum(tokens.values()) == pytest.approx(0.7, abs=0.01)
    heldout = list(read_journal(line.config.validation_path, DatasetRow))
    assert heldout
    sides = [{row.prompt for row in side} for side in (dataset, heldout)]
    kept = {prompt_key(prompt.messages) for prompt in read_journal(line.config.heldout_path, SeedPrompt)}
    assert not sides[0] & sides[1]
    assert not (sides[0] | sides[1]) & kept


def test_rows_are_the_traces_as_they_were_sampled(dataset: list[DatasetRow], traces: list[Trace]) -> None:
    """Every native row is its trace's, id for id and span for span."""
    by_id = {trace.id: row_of(trace) for trace in traces}
    native = [row for row in dataset if row.origin is Origin.NATIVE]
    assert len(native) > 40
    for row in native:
        assert row == by_id[row.id]


def test_states_cover_the_dataset_once(line: Line, dataset: list[DatasetRow], traces: list[Trace]) -> None:
    """Of a captured reply all but its last token, of a prefilled row all; in several shards, none twice.

    Those that are held out of training are among them. The spool keeps what the dataset left out.
    """
    rows = [*dataset, *read_journal(line.config.validation_path, DatasetRow)]
    found = {sample.sample_id: sample.token_ids_T.tolist() for sample in read_all(line.config.states_path)}
    assert found == {row.id: list(row.token_ids[: -1 if row.states_file else None]) for row in rows}
    assert {row.origin for row in rows if row.states_file} == {Origin.NATIVE}
    assert {row.origin for row in rows if not row.states_file} == {Origin.VERBATIM}
    assert len(list(line.config.states_path.glob("states-*.safetensors"))) > 1
    left_out = {trace.states_file for trace in traces if trace.states_file and trace.id not in found}
    assert {path.name for path in line.config.spool_path.glob("*")} == left_out


def test_states_pass_their_own_verification(line: Line) -> None:
    """The server's most likely tokens are those of the final states; every tap is transformers' own."""
    command = [
        sys.executable,
        "-m",
        "eagle",
        "verify",
        "states",
        str(line.path),
        "--live",
        "--reference",
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["probe"]["against"] == "server"
    assert report["probe"]["agreement"] >= 0.995
    assert max(tap["median"] for tap in report["taps"]) < 0.02


def test_a_reply_that_would_retokenize_differently_keeps_the_sampled_ids(
    line: Line, capture_url: str, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    """Replies held to single letters: their text reads back as other tokens, the trace as those sampled."""
    letters = [tokenizer.convert_tokens_to_ids(letter) for letter in "abcdefghijklmnopqrstuvwxyz"]
    prompts, sampling = _heldout(line.config), msgspec.structs.replace(GREEDY, temperature=2.0, max_tokens=40)
    replies = _ask(capture_url, line.config, prompts, sampling, allowed_token_ids=letters)
    control = Control(capture_url)
    server = ServerFacts(
        fingerprint=control.fingerprint("tiny-kimi"), markers=control.markers(line.config.verifier)
    )
    timing = Timing(started_at=0.0, seconds=1.0)
    made = [
        trace_of(prompt, 0, reply, sampling, server, 1, timing)
        for prompt, reply in zip(prompts, replies, strict=True)
    ]
    write_journal(tmp_path / "traces.jsonl", made)
    different = 0
    for trace, reply in zip(read_journal(tmp_path / "traces.jsonl", Trace), replies, strict=True):
        ids = list(reply.choices[0].token_ids or ())
        different += tokenizer.encode(str(tokenizer.decode(ids)), add_special_tokens=False) != ids
        assert list(trace.output_token_ids) == ids
        assert set(ids) <= set(letters)
    assert different > 0


def test_sampling_under_capture_follows_the_verifiers_distribution(
    line: Line, capture_url: str, spool: Path
) -> None:
    """Mean surprisal of the sampled tokens under the captured final states equals their mean entropy.

    vLLM 0.32 on the CPU fails this by far without the guard: it samples from garbled logits.
    """
    hot = Sampling(temperature=1.0, top_p=1.0, max_tokens=48, thinking=True)
    prompts = _heldout(line.config) * 4
    replies = _ask(capture_url, line.config, prompts, hot, kv_transfer_params={"states": "all"})
    head = _verifier_head(line.config)
    surprisals, entropies = [], []
    for reply in replies:
        captured = asyncio.run(take_states(spool / (reply.kv_transfer_params or {})["states_file"], healthy))
        prompt = len(reply.prompt_token_ids or ())
        logits = target_logits(head, captured.states_T4H[prompt - 1 :, 3]).logits_PK
        log_p = logits.double().log_softmax(-1)
        sampled = torch.tensor(reply.choices[0].token_ids)[:, None]
        assert len(log_p) == len(sampled)
        surprisals.append(-log_p.gather(1, sampled)[:, 0])
        entropies.append(-(log_p.exp() * log_p).sum(-1))
    surprisal, entropy = torch.cat(surprisals), torch.cat(entropies)
    deviation = (surprisal - entropy).std() / len(surprisal) ** 0.5
    assert abs(float(surprisal.mean() - entropy.mean())) < 4 * float(deviation)
    assert float(surprisal.mean()) < 1.0


def _verifier_head(config: RunConfig) -> VerifierHead:
    """The verifier's head over its whole vocabulary."""
    weights = read_weights(Path(config.verifier.model))
    whole = VocabMap(
        t2d_V=torch.ones(len(weights.head_VH), dtype=torch.bool),
        d2t_K=torch.zeros(len(weights.head_VH), dtype=torch.int64),
    )
    return verifier_head(weights, 1e-6, whole, torch.float32, torch.device("cpu"))


def trained_checkpoint(config: RunConfig) -> Path:
    """The one that is exported."""
    return chosen(config.checkpoints_path, require_manifest(config.checkpoints_path, "eagle train"))[0]


def test_acceptance_counted_live_is_what_the_trained_draft_proposes(
    line: Line, capture_url: str, spool: Path
) -> None:
    """The trainer's own draft, drafting greedily on the verifier's states, is accepted as often as live.

    Within 5 %: the states differ by bfloat16, and what follows the end of a reply isn't known here.
    """
    config = line.config
    replies = _ask(capture_url, config, _heldout(config), GREEDY, kv_transfer_params={"states": "all"})
    weights, vocab = read_weights(Path(config.verifier.model)), load_vocab(config.vocab_path)
    draft = build_draft(config.draft, weights, vocab, config.seed)
    load_weights(trained_checkpoint(config), draft)
    drafts = accepted = 0
    for reply in replies:
        captured = asyncio.run(take_states(spool / (reply.kv_transfer_params or {})["states_file"], healthy))
        output = reply.choices[0].token_ids or ()
        tokens = [*(reply.prompt_token_ids or ()), *output]
        slot = len(tokens) - len(output) - 1
        while slot + 2 < len(tokens):
            proposed = _propose(draft, weights, vocab, captured.states_T4H, tokens[: slot + 2], steps=3)
            truth = tokens[slot + 2 : slot + 5]
            same = next(
                (i for i, (a, b) in enumerate(zip(proposed, truth, strict=False)) if a != b), len(truth)
            )
            drafts, accepted, slot = drafts + 1, accepted + same, slot + same + 1
    manifest = read_manifest(config.accept_path)
    assert manifest is not None
    assert 1 + accepted / drafts == pytest.approx(manifest.figures["acceptance_length"], rel=0.05)


def test_live_and_offline_acceptance_agree_on_the_same_replies(line: Line) -> None:
    """Within 3 %: the events of the counted replies are verify steps, their states the verifier's.

    The counters have more, what was accepted beyond the ends of twelve short replies; never less.
    """
    manifest = read_manifest(line.config.accept_path)
    assert manifest is not None
    report = msgspec.convert(manifest.figures, AcceptanceReport)
    assert report.live is not None
    assert report.offline is not None
    assert report.gap == pytest.approx(0, abs=0.03)
    for span in ("thinking", "response"):
        live, offline = (one.by_span[span].length for one in (report.live, report.offline.walked))
        assert offline == pytest.approx(live, rel=0.1)
    assert report.live.whole.length <= report.acceptance_length
    assert report.heldout is not None
    assert [one.concurrency for one in report.by_concurrency] == [1, 2]
    assert report.warnings == report.not_measured == ()


def _propose(
    draft: Draft,
    weights: VerifierWeights,
    vocab: VocabMap,
    states_T4H: torch.Tensor,
    tokens: list[int],
    steps: int,
) -> list[int]:
    """Greedy proposals after `tokens`, whose last one has no states yet, each fed to the next step."""
    slot = len(tokens) - 2
    aux_T3H = states_T4H[: slot + 1, :3]
    tokens = list(tokens)
    for step in range(steps):
        padded_T3H = torch.cat((aux_T3H, aux_T3H.new_zeros(len(tokens) - slot - 1, *aux_T3H.shape[1:])))
        with torch.no_grad():
            outputs_SNH = unroll(
                draft,
                torch.bfloat16,
                padded_T3H,
                weights.embedding_VH[torch.tensor(tokens)],
                torch.tensor([slot]),
                (0, len(tokens)),
                step + 1,
            )
            logits_K = outputs_SNH[step, 0] @ draft.lm_head.weight.to(outputs_SNH.dtype).T
        tokens.append(int(vocab.target_ids_K[logits_K.argmax()]))
    return tokens[-steps:]


def test_the_capturing_server_has_the_fingerprint_of_the_plain_one(line: Line, capture_url: str) -> None:
    """Model, limits, tokenizer and template are the same, so their replies belong to one corpus."""
    control = Control(capture_url)
    (digest,) = {trace.server for trace in read_journal(line.config.traces_path, Trace)}
    assert control.fingerprint("tiny-kimi").digest == digest

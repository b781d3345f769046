"""A run directory for `eagle compare`: replies that SmolLM2 gave, and the reference answers to such prompts.

    python -m benchmarks.reference_answers CONFIG DATA [--states RUN] [--set …]

DATA has `gsm8k_test.jsonl`, `human_eval.jsonl`, `self_instruct_seed_tasks.jsonl` and, in `smollm2/`, given
traces (see `fixed_traces.py`) whose ids are file and row: `gsm8k_test/1171`. The traces become the corpus,
the prompts that are held out of them its held-out prompts; the reference answers become `generic.jsonl`
beside it, as ShareGPT conversations with the prompts worded as the traces'. What follows are the usual
stages. --states takes over states of the same traces that another run has.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.fixed_traces import SAMPLING, given_prompts, given_rows
from eagle.shards import read_all, read_index, write_shard
from synthgen.client.control import Control
from synthgen.client.launch import rendering, serving_url
from synthgen.corpus.config import RunConfig
from synthgen.corpus.journal import write_journal
from synthgen.corpus.manifest import manifest_of, read_manifest, write_manifest
from synthgen.corpus.records import Finish, Message, SeedPrompt, Timing, Trace, TruncatedIn
from synthgen.corpus.settings import load_config
from synthgen.corpus.token_ids import encode_ids

CODE_PROMPT = "Complete the following Python function.\n\n"
GSM8K_ROWS = 400
"""All to prompts that have traces; more would leave hardly anything else among the answers."""
SAMPLES_A_SHARD = 250


def prepare(config: RunConfig, data: Path, states: Path | None) -> None:
    """Write the corpus, the reference answers, and states that another run has."""
    given = data / "smollm2"
    prompts = given_prompts(given)
    heldout = [row["id"] for row in given_rows(given, "heldout")]
    with serving_url(config, rendering(config)) as url:
        fingerprint = Control(url).fingerprint(config.verifier.served_name)
        special = Control(url).markers(config.verifier).special
    traces = [_trace(row, prompts[row["id"]], fingerprint.digest) for row in given_rows(given, "train")]
    config.corpus_path.mkdir(parents=True, exist_ok=True)
    write_journal(config.traces_path, traces)
    write_journal(config.heldout_path, [_prompt(name, prompts[name]) for name in heldout])
    figures = {
        "traces": len(traces),
        "thinking_tokens": 0,
        "response_tokens": sum(trace.output_length for trace in traces),
        "truncated": sum(trace.truncated_in is not None for trace in traces),
        "failures": 0,
        "server": msgspec.to_builtins(fingerprint),
        "special_tokens": special,
    }
    settings = {"verifier": config.verifier, "sampling": SAMPLING}
    manifest = manifest_of(
        "generate", settings=settings, inputs={"server": fingerprint.digest}, figures=figures, seconds=0.0
    )
    write_manifest(config.corpus_path, manifest)
    answers = list(_answers(data, {trace.seed_id for trace in traces}, set(heldout)))
    generic = config.run_path / "generic.jsonl"
    generic.write_text("".join(json.dumps(row) + "\n" for row in answers))
    print(f"{len(traces)} traces, {len(heldout)} held-out prompts, {len(answers)} answers in {generic}")
    if states is not None and not read_index(config.states_path):
        _take_over(config, states)


def _trace(row: dict[str, Any], prompt: str, server: str) -> Trace:
    finish = Finish(row["finish_reason"])
    return Trace(
        seed_id=row["id"],
        sample_index=0,
        source=row["source"],
        domain=row["source"],
        messages=(Message(role="user", content=prompt),),
        prompt_token_ids=tuple(row["prompt_token_ids"]),
        output=encode_ids(row["token_ids"]),
        think_end=None,
        tool_start=None,
        thinking=None,
        response=row["text"],
        finish=finish,
        truncated_in=TruncatedIn.RESPONSE if finish is Finish.LENGTH else None,
        sampling=SAMPLING,
        server=server,
        timing=Timing(started_at=0.0, seconds=0.0),
    )


def _prompt(name: str, text: str) -> SeedPrompt:
    source = name.split("/")[0]
    return SeedPrompt(id=name, source=source, domain=source, messages=(Message(role="user", content=text),))


def _answers(data: Path, traced: set[str], heldout: set[str]) -> Iterator[dict[str, Any]]:
    """Reference answers to what isn't held out; of GSM8K first those to prompts that have traces."""
    for source, make in (("human_eval", _code), ("self_instruct_seed_tasks", _task), ("gsm8k_test", _sum)):
        rows = [json.loads(line) for line in (data / f"{source}.jsonl").read_text().splitlines()]
        names = [f"{source}/{number}" for number in range(len(rows))]
        left = sorted(
            (name not in traced, number) for number, name in enumerate(names) if name not in heldout
        )
        for _, number in left[:GSM8K_ROWS] if source == "gsm8k_test" else left:
            asked, answered = make(rows[number])
            if answered.strip():
                turns = [{"from": "human", "value": asked}, {"from": "gpt", "value": answered}]
                yield {"source": source, "conversations": turns}


def _code(row: dict[str, Any]) -> tuple[str, str]:
    """Without its first indentation, which the tokenizer would join with the end of the prompt."""
    return CODE_PROMPT + row["prompt"], row["canonical_solution"].strip()


def _task(row: dict[str, Any]) -> tuple[str, str]:
    first = row["instances"][0]
    return row["instruction"] + (f"\n\n{first['input']}" if first["input"] else ""), first["output"]


def _sum(row: dict[str, Any]) -> tuple[str, str]:
    return row["question"], row["answer"]


def _take_over(config: RunConfig, other: Path) -> None:
    """States of the traces from another run, under the ids that they have here."""
    waiting = []
    for states in read_all(other / "states"):
        waiting.append(replace(states, sample_id=f"{states.sample_id}-0"))
        if len(waiting) == SAMPLES_A_SHARD:
            write_shard(config.states_path, waiting)
            waiting = []
    if waiting:
        write_shard(config.states_path, waiting)
    made = read_manifest(other / "states")
    assert made is not None
    settings = made.settings | {
        "verifier": {"model": config.verifier.model, "revision": config.verifier.revision}
    }
    begun = manifest_of("extract", settings=settings, inputs={}, figures={}, seconds=0.0, complete=False)
    write_manifest(config.states_path, begun)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--states", type=Path, help="a run directory whose states are of the same traces")
    parser.add_argument("--set", action="append", default=[])
    asked = parser.parse_args()
    prepare(load_config(asked.config, tuple(asked.set)), asked.data, asked.states)


if __name__ == "__main__":
    main()

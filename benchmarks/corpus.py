"""Screening and mixing a corpus, against merely decoding its journal: time, rows a second, memory; one core.

Decoding is of everything in a trace, ids included; `decode_lazily` leaves the ids as text, as our reader does
where nobody asks for them.

Each trace has 1,000 output tokens and some 4 KB of English: words drawn from models/tiny-kimi/general.txt, in
every fourth with its code and typographic characters.
Page cache as writing the file leaves it. Each step runs in a process of its own, for its memory; the
rounds take turns, the best counts.

    python -m benchmarks.corpus
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from benchmarks.rivals.measured import measured
from benchmarks.scratch import scratch
from synthgen.corpus.config import RunConfig
from synthgen.corpus.journal import read_journal, write_journal
from synthgen.corpus.manifest import manifest_of, write_manifest
from synthgen.corpus.records import Finish, Message, Sampling, SeedPrompt, Timing, Trace, seed_id
from synthgen.corpus.settings import load_config
from synthgen.corpus.token_ids import encode_ids
from synthgen.mix.stage import mix
from synthgen.screen.stage import screen

ROOT = Path(__file__).parent.parent
SPECIAL = {
    "<|im_end|>": 163586,
    "<|im_user|>": 163587,
    "<|im_assistant|>": 163588,
    "<|im_system|>": 163594,
    "<|tool_calls_section_begin|>": 163595,
    "<|tool_calls_section_end|>": 163596,
    "<|tool_call_begin|>": 163597,
    "<|tool_call_argument_begin|>": 163598,
    "<|tool_call_end|>": 163599,
    "<|im_middle|>": 163601,
    "<think>": 163606,
    "</think>": 163607,
}
"""As a server of Kimi-K2.5 names them."""
TOKENS, THINKING_TOKENS = 1000, 600
WORDS = 720
STEPS = ("decode", "decode_lazily", "screen", "mix")


def vocabulary() -> tuple[list[str], list[str]]:
    """The words of the text, and those that are plain English."""
    words = (ROOT / "models/tiny-kimi/general.txt").read_text(encoding="utf-8").split()
    return words, [word for word in words if word.isascii() and word.strip(".,:;?!'\"()").isalnum()]


def trace(number: int, words: list[str]) -> Trace:
    """Trace `number`: random words, and random ids, small ones more often as in real text."""
    draw = random.Random(number)
    text = draw.choices(words, k=WORDS)
    ids = [int(163_584 * draw.random() ** 3) for _ in range(TOKENS - 2)]
    border = WORDS * THINKING_TOKENS // TOKENS
    return Trace(
        seed_id=f"{number:016x}",
        sample_index=0,
        source="prompts.jsonl",
        domain="math",
        messages=(Message(role="user", content=" ".join(draw.choices(words, k=30))),),
        prompt_token_ids=tuple(range(1000, 1050)),
        output=encode_ids([*ids[: THINKING_TOKENS - 1], 163607, *ids[THINKING_TOKENS - 1 :], 163586]),
        think_end=THINKING_TOKENS - 1,
        tool_start=None,
        thinking=" ".join(text[:border]),
        response=" ".join(text[border:]),
        finish=Finish.STOP,
        truncated_in=None,
        sampling=Sampling(temperature=0.7, top_p=1.0, max_tokens=4096, thinking=True),
        server="0123456789abcdef",
        timing=Timing(started_at=1.0, seconds=2.0),
    )


def write(config: RunConfig, rows: int) -> None:
    """A complete corpus of `rows` traces; every 2,000 the same words and ids come again for other prompts."""
    config.corpus_path.mkdir(parents=True)
    words, plain = vocabulary()
    lines = [
        msgspec.json.encode(trace(number, plain if number % 4 else words))
        for number in range(min(rows, 2000))
    ]
    with config.traces_path.open("wb") as file:
        for number in range(rows):
            line = lines[number % len(lines)]
            ours, new = b"%016x" % (number % len(lines)), b"%016x" % number
            content = b'"messages":[{"role":"user","content":"'
            file.write(line.replace(ours, new, 1).replace(content, content + new + b" ", 1) + b"\n")
    kept_back = (Message(role="user", content="What is held out?"),)
    prompt = SeedPrompt(id=seed_id(kept_back), source="prompts.jsonl", domain="math", messages=kept_back)
    write_journal(config.heldout_path, [prompt])
    figures = {"traces": rows, "special_tokens": SPECIAL}
    made = manifest_of("generate", settings={}, inputs={}, figures=figures, seconds=0.0)
    write_manifest(config.corpus_path, made)


def run_in(directory: Path) -> RunConfig:
    """The demo's config with its run directory there, room for these traces, and none held out."""
    return load_config(
        ROOT / "configs/demo.yaml",
        (f"run_dir={directory}", "screen.max_seq_tokens=2048", "mix.heldout_fraction=0"),
    )


def do(step: str, config: RunConfig, rows: int) -> None:
    """One step; the figures of one that is measured are one line of JSON."""
    if step == "write":
        write(config, rows)
        return
    with measured(rows):
        match step:
            case "decode":
                count = sum(1 for trace in read_journal(config.traces_path, Trace) if trace.output_token_ids)
            case "decode_lazily":
                count = sum(1 for _ in read_journal(config.traces_path, Trace))
            case "screen":
                count = screen(config).figures["kept"]
            case _:
                count = mix(config).figures["rows"]
    assert count == rows, f"{step}: {count} of {rows} rows"


def run_step(step: str, directory: str, rows: int) -> str:
    """A step in a process of its own, whose peak memory is no smaller than ours; what it prints."""
    command = [sys.executable, "-m", "benchmarks.corpus", "--step", step, "--directory", directory]
    return subprocess.run([*command, "--rows", str(rows)], check=True, capture_output=True, text=True).stdout


def rounds_of(directory: str, rows: int, rounds: int) -> Iterator[tuple[str, dict[str, float]]]:
    """The figures of each step in each round."""
    for _ in range(rounds):
        for step in STEPS:
            if step in ("screen", "mix"):
                made = {"screen": "screen", "mix": "dataset"}[step]
                (Path(directory) / made / "manifest.json").unlink(missing_ok=True)
            yield step, msgspec.json.decode(run_step(step, directory, rows).splitlines()[-1])


def main(
    rows: Annotated[int, typer.Option(help="Traces in the journal.")] = 10_000,
    rounds: Annotated[int, typer.Option(help="Runs of each step.")] = 5,
    step: Annotated[str | None, typer.Option(hidden=True)] = None,
    directory: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Write a corpus, decode, screen and mix it in turns; the last line is JSON."""
    if step is not None and directory is not None:
        do(step, run_in(directory), rows)
        return
    with scratch() as place:
        config = run_in(Path(place))
        run_step("write", place, rows)
        print(f"{rows:,} traces, {config.traces_path.stat().st_size / 1e9:.2f} GB, best of {rounds}")
        best: dict[str, dict[str, float]] = {}
        for name, figures in rounds_of(place, rows, rounds):
            if name not in best or figures["cpu_s"] < best[name]["cpu_s"]:
                best[name] = figures
    decode_s = best["decode"]["cpu_s"]
    result = {
        name: {
            "cpu_s": round(figures["cpu_s"], 2),
            "rows_per_s": round(rows / figures["cpu_s"]),
            "ratio": round(figures["cpu_s"] / decode_s, 2),
            "rss_mb": round(figures["rss_mb"]),
        }
        for name, figures in best.items()
    }
    both_s = best["screen"]["cpu_s"] + best["mix"]["cpu_s"]
    ratios = {
        "rows_per_s": round(rows / both_s),
        "ratio": round(both_s / decode_s, 2),
        "ratio_lazily": round(both_s / best["decode_lazily"]["cpu_s"], 2),
        "rss_mb": max(figures["rss_mb"] for figures in result.values()),
    }
    print(msgspec.json.encode({"rows": rows, **result, "screen_and_mix": ratios}).decode())


if __name__ == "__main__":
    typer.run(main)

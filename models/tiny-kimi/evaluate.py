"""Asks a live server held-out problems at temperature 0 and counts right answers and closed thinking.

python models/tiny-kimi/evaluate.py --base-url http://127.0.0.1:8300/v1 --count 400
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from prompts.problems import DOMAINS, Problem, is_right, problems


@dataclass(frozen=True)
class Outcome:
    """What became of one question."""

    problem: Problem
    right: bool
    closed: bool
    tokens: int
    text: str


def questions(seed: int, count: int) -> list[Problem]:
    """Different held-out problems, the same for every call with these arguments."""
    chosen: dict[str, Problem] = {}
    for problem in problems(f"evaluation {seed}", 100 * count, held_out=True):
        if len(chosen) == count:
            break
        chosen.setdefault(problem.question, problem)
    return list(chosen.values())


def judge(problem: Problem, reply: dict[str, Any]) -> Outcome:
    """Thinking is closed when the server found its end and the reply came to its own end."""
    choice = reply["choices"][0]
    text: str | None = choice["message"]["content"]
    closed = text is not None and choice["finish_reason"] == "stop"
    thinking = choice["message"].get("reasoning") or choice["message"].get("reasoning_content") or ""
    right = closed and is_right(problem, text or "")
    return Outcome(problem, right, closed, reply["usage"]["completion_tokens"], f"{thinking} => {text}")


async def ask(client: httpx.AsyncClient, problem: Problem, body: dict[str, Any]) -> Outcome:
    """One request."""
    messages = [{"role": "user", "content": problem.question}]
    response = await client.post("chat/completions", json={**body, "messages": messages})
    response.raise_for_status()
    return judge(problem, response.json())


async def ask_all(
    base_url: str, asked: list[Problem], body: dict[str, Any], concurrency: int
) -> list[Outcome]:
    """All requests, a limited number at a time."""
    gate = asyncio.Semaphore(concurrency)
    limits = httpx.Limits(max_connections=concurrency, keepalive_expiry=2.0)
    async with httpx.AsyncClient(base_url=base_url.rstrip("/") + "/", timeout=300.0, limits=limits) as client:

        async def gated(problem: Problem) -> Outcome:
            async with gate:
                return await ask(client, problem, body)

        return list(await asyncio.gather(*map(gated, asked)))


def table(outcomes: list[Outcome]) -> list[str]:
    """One line per domain and one for all."""
    lines = [f"{'domain':12} {'asked':>6} {'right':>7} {'closed':>7} {'tokens':>7}"]
    for domain in (*DOMAINS, "all"):
        group = [outcome for outcome in outcomes if domain in {outcome.problem.domain, "all"}]
        if group:
            right, closed = (
                sum(values) / len(group) for values in zip(*((o.right, o.closed) for o in group), strict=True)
            )
            tokens = sum(outcome.tokens for outcome in group) / len(group)
            lines.append(f"{domain:12} {len(group):6} {right:7.1%} {closed:7.1%} {tokens:7.1f}")
    return lines


def main() -> None:
    """Print a table by domain and, as the last line, one JSON object."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--base-url", default="http://127.0.0.1:8300/v1")
    parser.add_argument("--model", default="tiny-kimi")
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--max-tokens", type=int, default=300)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--show-wrong", type=int, default=0, help="print this many wrong replies")
    options = parser.parse_args()
    body = {name: getattr(options, name) for name in ("model", "temperature", "max_tokens", "seed")}
    asked = questions(options.seed, options.count)
    outcomes = asyncio.run(ask_all(options.base_url, asked, body, options.concurrency))
    for outcome in [outcome for outcome in outcomes if not outcome.right][: options.show_wrong]:
        print(f"{outcome.problem.question}\n  {outcome.text}\n  expected: {outcome.problem.answer}")
    print("\n".join(table(outcomes)))
    right, closed = (sum(getattr(o, name) for o in outcomes) / len(outcomes) for name in ("right", "closed"))
    print(
        json.dumps({"right": round(right, 4), "closed_thinking": round(closed, 4), "problems": len(outcomes)})
    )


if __name__ == "__main__":
    main()

"""Solutions that nobody's model wrote, for `eagle compare` on the demo's verifier.

    python -m benchmarks.worked_solutions 700 > solutions.jsonl

Each row is a ShareGPT conversation: a problem of the demo's kind, and as its reply the worked solution and
the answer, without thinking, as replies in public chat data are.
"""

from __future__ import annotations

import json
import sys

from prompts.problems import problems

SEED = 11


def main() -> None:
    """Print as many rows as are asked for."""
    for problem in problems(SEED, int(sys.argv[1]), held_out=True):
        reply = f"{problem.thinking} The answer is {problem.answer}."
        turns = [{"from": "human", "value": problem.question}, {"from": "gpt", "value": reply}]
        sys.stdout.write(json.dumps({"source": problem.domain, "conversations": turns}) + "\n")


if __name__ == "__main__":
    main()

"""Bespoke Curator's `LLM` with its openai backend: limits out of the way, no cache, no retries, no telemetry.

python -m venv /tmp/curator
/tmp/curator/bin/pip install bespokelabs-curator
"""

from __future__ import annotations

import os
from importlib.metadata import distribution
from typing import Any

from benchmarks.rivals.command_line import read_task
from benchmarks.rivals.measured import measured


def main() -> None:
    """Run and check."""
    task = read_task()
    os.environ["TELEMETRY_ENABLED"] = "false"
    os.environ["CURATOR_DISABLE_CACHE"] = "true"
    os.environ["CURATOR_DISABLE_RICH_DISPLAY"] = "1"
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    os.environ["OPENAI_API_KEY"] = "EMPTY"
    # It would download the vocabulary with which it counts tokens; litellm, which it needs, carries the file.
    vocabularies = distribution("litellm").locate_file("litellm/litellm_core_utils/tokenizers")
    os.environ["TIKTOKEN_CACHE_DIR"] = str(vocabularies)
    from bespokelabs import curator

    class Replies(curator.LLM):  # type: ignore[misc]
        """One request for a row; the whole completion, as there is no other way to the reasoning."""

        return_completions_object = True

        def prompt(self, row: dict[str, str]) -> str:
            return row["prompt"]

        def parse(self, row: dict[str, str], reply: dict[str, Any]) -> dict[str, str]:
            message = reply["choices"][0]["message"]
            return {"prompt": row["prompt"], "text": message["content"], "reasoning": message["reasoning"]}

    replies = Replies(
        model_name="stub",
        backend="openai",
        backend_params={
            "base_url": task.url,
            "max_requests_per_minute": 10**7,
            "max_tokens_per_minute": 10**11,
            "max_concurrent_requests": task.concurrency,
            "max_retries": 0,
            "invalid_finish_reasons": ["content_filter"],
        },
    )
    rows = [{"prompt": text} for text in task.texts()]
    with measured(task.rows):
        dataset = replies(rows, working_dir=str(task.directory)).dataset
    assert len(dataset) == task.rows
    assert all(row["text"] and row["reasoning"] for row in dataset)


if __name__ == "__main__":
    main()

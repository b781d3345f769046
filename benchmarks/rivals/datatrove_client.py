"""datatrove's `InferenceRunner` on a local endpoint: its own HTTP client, JSONL, no request cache.

python -m venv /tmp/datatrove
/tmp/datatrove/bin/pip install "datatrove[io]" httpx aiofiles aiosqlite xxhash orjson
"""

from __future__ import annotations

import json
from typing import Any

from datatrove.data import Document
from datatrove.pipeline.inference.run_inference import InferenceConfig, InferenceRunner
from datatrove.pipeline.writers import JsonlWriter

from benchmarks.rivals.command_line import read_task
from benchmarks.rivals.measured import measured


async def rollout(document: Any, generate: Any) -> dict[str, str]:
    """One request for one document."""
    reply = await generate({"messages": [{"role": "user", "content": document.text}]})
    return {"text": reply.text, "reasoning": reply.reasoning}


def main() -> None:
    """Run and check."""
    task = read_task()
    runner = InferenceRunner(
        rollout_fn=rollout,
        config=InferenceConfig(
            server_type="endpoint",
            model_name_or_path="stub",
            endpoint_url=task.url.removesuffix("/v1"),
            max_concurrent_generations=task.concurrency,
        ),
        output_writer=JsonlWriter(str(task.directory), output_filename="${rank}.jsonl", compression=None),
    )
    documents = [Document(text=text, id=text) for text in task.texts()]
    with measured(task.rows):
        runner.run(documents)
    with (task.directory / "00000.jsonl").open() as lines:
        replies = [json.loads(line)["metadata"]["rollout_results"][0] for line in lines]
    assert len(replies) == task.rows
    assert all(reply["text"] and reply["reasoning"] for reply in replies)


if __name__ == "__main__":
    main()

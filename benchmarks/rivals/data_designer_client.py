"""NVIDIA's NeMo Data Designer: one LLM column over seed prompts, with the reasoning, into parquet.

Its transport's retries can't be turned off; there is nothing here to retry. The token statistics that it ends
with need a vocabulary from the network: without one it warns and leaves them out.

    python -m venv /tmp/data_designer
    /tmp/data_designer/bin/pip install data-designer
"""

from __future__ import annotations

import os

from benchmarks.rivals.command_line import read_task
from benchmarks.rivals.measured import measured


def main() -> None:
    """Run and check."""
    task = read_task()
    os.environ["NEMO_TELEMETRY_ENABLED"] = "false"
    os.environ["DATA_DESIGNER_HOME"] = str(task.directory / "home")
    import data_designer.config as dd
    from data_designer.interface import DataDesigner

    parameters = dd.ChatCompletionInferenceParams(max_parallel_requests=task.concurrency, timeout=600)
    model = dd.ModelConfig(
        alias="model",
        model="stub",
        provider="stub",
        skip_health_check=True,
        inference_parameters=parameters,
    )
    column = dd.LLMTextColumnConfig(
        name="text", model_alias="model", prompt="{{ prompt }}", extract_reasoning_content=True
    )
    builder = dd.DataDesignerConfigBuilder(model_configs=[model])
    builder.with_seed_dataset(dd.LocalFileSeedSource(path=str(task.prompts)))
    builder.add_column(column)
    provider = dd.ModelProvider(name="stub", endpoint=task.url, api_key="EMPTY")
    designer = DataDesigner(artifact_path=task.directory / "artifacts", model_providers=[provider])
    run_config = dd.RunConfig(
        max_in_flight_tasks=2 * max(task.concurrency, 1024),
        max_conversation_restarts=0,
        otel_metrics_port=None,
        jinja_rendering_engine=dd.JinjaRenderingEngine.NATIVE,
    )
    designer.set_run_config(run_config)
    with measured(task.rows):
        results = designer.create(builder, num_records=task.rows)
    replies = results.load_dataset()
    assert len(replies) == task.rows
    assert all(replies["text"])
    assert all(replies["text__reasoning_content"])


if __name__ == "__main__":
    main()

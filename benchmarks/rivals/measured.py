"""Time, CPU and memory of a block, as one line of JSON. Standard library only, for rivals' own venvs."""

from __future__ import annotations

import contextlib
import json
import resource
import sys
import time
from collections.abc import Iterator


@contextlib.contextmanager
def measured(rows: int) -> Iterator[None]:
    """Print seconds, CPU seconds (children included) and peak memory once the block has done `rows`."""
    cpu, began = _cpu_s(), time.perf_counter()
    yield
    seconds, cpu_s = time.perf_counter() - began, _cpu_s() - cpu
    peak_kib = max(resource.getrusage(who).ru_maxrss for who in _WHOSE)
    figures = {"rows": rows, "seconds": seconds, "cpu_s": cpu_s, "rss_mb": peak_kib * 1024 / 1e6}
    sys.stdout.write(json.dumps(figures) + "\n")


_WHOSE = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)


def _cpu_s() -> float:
    usages = [resource.getrusage(who) for who in _WHOSE]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)

"""Where benchmarks write: beside the repository's other caches, on the disk that is measured."""

from __future__ import annotations

import tempfile
from pathlib import Path

CACHE = Path(__file__).parent.parent / ".cache"


def scratch() -> tempfile.TemporaryDirectory[str]:
    """A directory that is gone after its `with` block."""
    CACHE.mkdir(exist_ok=True)
    return tempfile.TemporaryDirectory(dir=CACHE)

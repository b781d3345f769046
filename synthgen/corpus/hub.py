"""The package that speaks to the hub, for what needs it."""

from __future__ import annotations

import importlib
from typing import Any

from synthgen.errors import ConfigError


def imported_hub(what: str) -> Any:
    """huggingface_hub. Raises ConfigError naming the extra that brings it; `what` wants it, and begins the
    message."""
    try:
        hub = importlib.import_module("huggingface_hub")
        for name in ("constants", "errors", "utils"):
            importlib.import_module(f"huggingface_hub.{name}")
        return hub
    except ImportError as error:
        raise ConfigError(
            f"{what}: huggingface_hub isn't installed: pip install 'synthgen[train]'"
        ) from error

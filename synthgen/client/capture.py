"""Whether a server hands hidden states over as a run needs them, asked before anything is sent to it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from synthgen.client.control import Control
from synthgen.client.launch import captured_layers
from synthgen.corpus.config import RunConfig
from synthgen.errors import ServerMismatch

FILE_WAIT_S = 60.0
"""A reply may come before its file; a writer that takes longer than this has failed."""


def states_file(told: dict[str, Any] | None, layers: Sequence[int], spool: Path, base_url: str) -> Path:
    """The file in `spool` that a reply names. Raises ServerMismatch for another server than is needed."""
    name = (told or {}).get("states_file")
    if not isinstance(name, str):
        raise ServerMismatch(
            f"{base_url} returned no hidden states: it runs without the connector. Start it with "
            f"`synthgen serve CONFIG --role capture`"
        )
    require_layers((told or {}).get("layer_ids"), layers, base_url)
    return spool / Path(name).name


def require_layers(found: object, layers: Sequence[int], base_url: str) -> None:
    """Raise ServerMismatch when the layers that a server says it captured, a list, are not the run's."""
    if found != list(layers):
        raise ServerMismatch(
            f"{base_url} captures layers {found}, this run wants {list(layers)}: start it anew with "
            f"`synthgen serve CONFIG --role capture`"
        )


def require_capture(config: RunConfig, control: Control) -> None:
    """Capture one token's states and remove them.

    Raises ServerMismatch when the server hands over none, those of other layers, or into another directory.
    """
    model = config.verifier.served_name
    told = control.captured(model, control.tokenize(model, prompt="a")[:1])
    path = states_file(told, captured_layers(config), config.spool_path, control.base_url)
    give_up = time.monotonic() + FILE_WAIT_S
    while not path.exists():
        if time.monotonic() > give_up:
            raise ServerMismatch(
                f"{control.base_url} did not write its hidden states into {config.spool_path}: start it with "
                f"this run's config (`synthgen serve CONFIG --role capture`), on a disk that both share"
            )
        time.sleep(0.05)
    path.unlink()

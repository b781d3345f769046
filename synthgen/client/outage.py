"""A server that is gone: when it is back, and that it is the same one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from synthgen.client.api import ApiClient
from synthgen.client.control import Control, Fingerprint
from synthgen.errors import ServerMismatch, ServerUnreachable

MOST_SERVERS_LOST = 5
"""A row that a server went away with this often is a failure: it may be what kills it."""
PROBE_S = 2.0
PROBE_TIMEOUT_S = 5.0
"""For each question to a server that is back: an interrupted run waits for the answers."""


def stayed_away(down_wait_s: float, base_urls: Iterable[str], what: str) -> ServerUnreachable:
    """The error for servers that nobody waits for any longer; `what` there is stays."""
    return ServerUnreachable(
        f"no server has answered for {down_wait_s:.0f} s (generate.down_wait_s): {', '.join(base_urls)}. "
        f"All {what} so far are kept; run the same command again when one is back"
    )


async def is_back(client: ApiClient, control: Control, expected: Fingerprint) -> bool:
    """Whether a server that was gone answers again. Raises ServerMismatch when it is another one."""
    if not await client.is_healthy():
        return False
    try:
        found = await asyncio.to_thread(control.fingerprint, expected.model)
    except ServerUnreachable:
        return False
    require_same(expected, found, control.base_url)
    return True


def require_same(expected: Fingerprint, found: Fingerprint, base_url: str) -> None:
    """Raise ServerMismatch naming the field in which a server differs from the run's others."""
    for name in ("model", "engine", "tokenizer", "template", "max_model_len"):
        want, have = getattr(expected, name), getattr(found, name)
        if want != have:
            raise ServerMismatch(
                f"{base_url} is another server than the run's: its {name} is {have!r}, expected {want!r}. "
                f"All endpoints must serve the same model, tokenizer and template"
            )

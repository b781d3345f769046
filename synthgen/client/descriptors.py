"""File descriptors: each request in flight is a socket, and many systems allow 1,024 at first."""

from __future__ import annotations

import resource

from synthgen.errors import ConfigError

OTHERS = 64
"""For files, journals, servers and what libraries keep open."""


def require_descriptors(connections: int) -> None:
    """Raise the soft limit as needed. Raises ConfigError with both numbers when the hard one is too low."""
    needed = connections + OTHERS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard not in (-1, resource.RLIM_INFINITY) and needed > hard:
        raise ConfigError(
            f"{connections} requests in flight need {needed} open files, this process may have {hard}: lower "
            f"generate.concurrency or max_concurrency, or raise the limit (`ulimit -Hn`)"
        )
    if soft not in (-1, resource.RLIM_INFINITY) and needed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))

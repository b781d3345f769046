"""A line of an OpenAI batch file: what it asks for, as far as a run can honour it."""

from __future__ import annotations

from typing import Any

URL = "/v1/chat/completions"
READ = ("messages", "tools", "temperature", "top_p", "max_tokens", "max_completion_tokens")
PASSED_OVER = ("model", "user", "metadata", "store", "service_tier", "seed", "stream", "stream_options")
"""What doesn't change what is asked, or is the run's to say."""


def require_honoured(row: dict[str, Any], body: dict[str, Any]) -> None:
    """Raise ValueError for another endpoint, and for a parameter that would be lost."""
    url, method = row.get("url") or URL, row.get("method") or "POST"
    if url != URL or method != "POST":
        raise ValueError(f"asks for {method} {url}; only POST {URL} is read")
    for name, value in body.items():
        if value is not None and name not in READ + PASSED_OVER:
            raise ValueError(f"body.{name} can't be honoured; what is read: {', '.join(READ)}")


def sampling_of(body: dict[str, Any]) -> dict[str, Any] | None:
    """The body's sampling parameters under a run's names; None without any."""
    most = body.get("max_completion_tokens")
    asked = {
        "temperature": body.get("temperature"),
        "top_p": body.get("top_p"),
        "max_tokens": body.get("max_tokens") if most is None else most,
    }
    return {name: value for name, value in asked.items() if value is not None} or None

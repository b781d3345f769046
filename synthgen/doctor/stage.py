"""The whole examination, in the order in which a run would meet what is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from synthgen.client.control import api_key
from synthgen.corpus.config import RunConfig
from synthgen.corpus.console import waiting
from synthgen.corpus.settings import load_config
from synthgen.doctor.findings import Finding, Level, finding
from synthgen.doctor.machine import machine_findings
from synthgen.doctor.packages import package_findings
from synthgen.doctor.server import server_findings
from synthgen.errors import ConfigError

KEY_VARIABLE = "OPENAI_API_KEY"


def examine(path: Path | None, overrides: tuple[str, ...], url: str | None) -> Iterator[Finding]:
    """Every finding: of the config, this machine, and the server at `url` or those that the config names.

    A config that can't be loaded is a finding, and the rest is looked at without it.
    """
    config: RunConfig | None = None
    if path is not None:
        try:
            config = load_config(path, overrides)
            yield finding("config", Level.OK, str(path))
        except ConfigError as error:
            yield finding("config", Level.PROBLEM, str(error))
    yield from package_findings(config)
    yield from machine_findings(config)
    urls = (url,) if url is not None else config.server.base_urls if config else ()
    if not urls:
        return
    try:
        key = api_key(config.server.api_key_env if config else KEY_VARIABLE)
    except ConfigError as error:
        yield finding("key", Level.PROBLEM, str(error))
        return
    for base_url in dict.fromkeys(urls):
        with waiting(f"asking {base_url}"):
            found = list(server_findings(base_url, config, key))
        yield from found


def as_figures(findings: list[Finding]) -> dict[str, Any]:
    """The findings as JSON: what `synthgen doctor --json` prints."""
    return {
        "problems": sum(found.level is Level.PROBLEM for found in findings),
        "warnings": sum(found.level is Level.WARNING for found in findings),
        "findings": findings,
    }

"""Python and the installed packages, against what the installed synthgen itself asks for."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterator, Mapping

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from synthgen.corpus.config import RunConfig
from synthgen.doctor.findings import Finding, Level, finding

CORE, TRAIN, SERVE = "", "train", ("gpu", "cpu")
ENGINE = "vllm"


def package_findings(config: RunConfig | None) -> Iterator[Finding]:
    """Python, the packages of the harness, those of the trainer, and vLLM."""
    needed = requirements()
    if not needed:
        yield finding(
            "packages",
            Level.WARNING,
            "synthgen isn't installed, so nothing says which packages it needs: pip install -e .",
        )
        return
    yield python_finding(importlib.metadata.metadata("synthgen")["Requires-Python"])
    found = {name: installed(name) for wanted in needed.values() for name in (r.name for r in wanted)}
    yield lacking_finding("harness", needed[CORE], found, Level.PROBLEM, "pip install -U synthgen")
    yield lacking_finding("trainer", needed[TRAIN], found, Level.WARNING, "pip install -U 'synthgen[train]'")
    starts_servers = config is not None and not config.server.base_urls
    yield engine_finding([r for extra in SERVE for r in needed[extra]], found, starts_servers)


def requirements() -> dict[str, list[Requirement]]:
    """What the installed synthgen asks for, by the extra that asks; empty when it isn't installed."""
    try:
        lines = importlib.metadata.requires("synthgen") or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    wanted = [Requirement(line) for line in lines]
    return {extra: [r for r in wanted if _asks(r, extra)] for extra in (CORE, TRAIN, *SERVE)}


def _asks(requirement: Requirement, extra: str) -> bool:
    """Whether an extra brings a requirement that the package alone doesn't."""
    marker = requirement.marker
    if marker is None or marker.evaluate({"extra": CORE}):
        return extra == CORE
    return marker.evaluate({"extra": extra})


def installed(name: str) -> str | None:
    """The installed version of a package."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def python_finding(wanted: str) -> Finding:
    """This Python against `requires-python`."""
    have = platform.python_version()
    if SpecifierSet(wanted).contains(have, prereleases=True):
        return finding("python", Level.OK, have)
    return finding("python", Level.PROBLEM, f"{have}, {wanted} is needed: make a new environment with it")


def lacking_finding(
    check: str,
    wanted: list[Requirement],
    found: Mapping[str, str | None],
    level: Level,
    remedy: str,
) -> Finding:
    """Of the wanted packages those that aren't there, or don't fit; `level` when there are any."""
    wrong = [
        f"{r.name} {found[r.name] or 'is missing'} ({r.specifier or 'any'} is needed)"
        for r in wanted
        if (have := found[r.name]) is None or not r.specifier.contains(have, prereleases=True)
    ]
    if wrong:
        return finding(check, level, f"{', '.join(wrong)}: {remedy}")
    return finding(check, Level.OK, ", ".join(f"{r.name} {found[r.name]}" for r in wanted))


def engine_finding(
    wanted: list[Requirement], found: Mapping[str, str | None], starts_servers: bool
) -> Finding:
    """vLLM as it is installed here; a run that starts no servers does without."""
    there = [(r, have) for r in wanted if (have := found[r.name]) is not None]
    if not there:
        said = (
            "isn't installed here: `pip install 'synthgen[gpu]'`, or set server.base_urls to servers that run"
        )
        return finding(ENGINE, Level.PROBLEM if starts_servers else Level.WARNING, said)
    requirement, have = there[0]
    tested = requirement.specifier
    if tested.contains(have, prereleases=True):
        return finding(ENGINE, Level.OK, f"{requirement.name} {have}")
    return finding(ENGINE, Level.WARNING, f"{requirement.name} {have}: {tested_with(tested)}")


def tested_engines() -> SpecifierSet | None:
    """The versions of vLLM that this was tested with; None when nothing says it."""
    wanted = requirements().get(SERVE[0], [])
    return next((r.specifier for r in wanted if r.name == ENGINE), None)


def tested_with(tested: SpecifierSet) -> str:
    """What is said of a version that isn't among those."""
    return (
        f"tested with {tested}; the connector and the served draft depend on it: try `eagle verify states` "
        f"on a few samples first, or install that version"
    )

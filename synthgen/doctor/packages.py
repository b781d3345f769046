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
    yield engine_finding([r for extra in SERVE for r in needed[extra]], found, config)


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
    wanted: list[Requirement], found: Mapping[str, str | None], config: RunConfig | None
) -> Finding:
    """vLLM as it is installed here; with servers that run, only `eagle accept` starts some."""
    there = [(r, have) for r in wanted if (have := found[r.name]) is not None]
    on_gpu = config is not None and config.server.device == "cuda"
    fits = [(r, have) for r, have in there if r.name == ENGINE or not on_gpu]
    if not fits:
        said = f"{there[0][0].name} {there[0][1]} uses no GPU" if there else "isn't installed here"
        return _no_engine(said, config)
    requirement, have = fits[0]
    tested = requirement.specifier
    if tested.contains(have, prereleases=True):
        return finding(ENGINE, Level.OK, f"{requirement.name} {have}")
    return finding(ENGINE, Level.WARNING, f"{requirement.name} {have}: {tested_with(tested)}")


def _no_engine(said: str, config: RunConfig | None) -> Finding:
    """A problem where stages start servers, a warning where servers run already or nothing is known."""
    install = "`pip install 'synthgen[gpu]'`"
    if config is not None and config.server.base_urls:
        own = "`eagle accept` starts its own servers"
        said = f"{said}, and {own}: {install}, or give it --url and --base-url"
        return finding(ENGINE, Level.WARNING, said)
    level = Level.WARNING if config is None else Level.PROBLEM
    return finding(ENGINE, level, f"{said}: {install}, or set server.base_urls to servers that run")


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

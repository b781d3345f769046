"""Read a run's YAML strictly: unknown and missing keys fail with their path before anything starts."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import yaml

from synthgen.corpus.config import RunConfig
from synthgen.corpus.files import written_aside
from synthgen.corpus.sections import Section
from synthgen.errors import ConfigError


def load_config(path: Path, overrides: tuple[str, ...] = ()) -> RunConfig:
    """The run that `path` describes, with `a.b=c` overrides laid over it.

    Raises ConfigError naming the file, the key's path, and what is known there.
    """
    values = _parse_yaml(path)
    for override in overrides:
        _lay_over(values, override)
    _require_known_keys(values, RunConfig, path, ())
    try:
        return msgspec.convert(values, RunConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {_with_path(str(error))}") from error


def save_config(config: RunConfig, path: Path) -> None:
    """Write the resolved config as YAML; it loads back as it is."""
    with written_aside(path) as aside:
        aside.write_text(yaml.safe_dump(msgspec.to_builtins(config), sort_keys=False), encoding="utf-8")


def _parse_yaml(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such file. The configs that come along are in configs/") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: can't be read as YAML: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: a run's config is a mapping of sections, this is {type(values).__name__}")
    return values


def _lay_over(values: dict[str, Any], override: str) -> None:
    name, equals, text = override.partition("=")
    if not equals or not name:
        raise ConfigError(f"--set {override}: write it as section.key=value")
    *parents, last = name.split(".")
    place = values
    for parent in parents:
        inner = place.get(parent)
        if not isinstance(inner, dict):
            raise ConfigError(f"--set {override}: there is no section `{parent}`{_hint(parent, place)}")
        place = inner
    if last not in place:
        raise ConfigError(f"--set {override}: there is no key `{name}`{_hint(last, place)}")
    try:
        place[last] = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {override}: the value can't be read as YAML: {error}") from error


def _require_known_keys(values: dict[str, Any], kind: type[Section], path: Path, at: tuple[str, ...]) -> None:
    fields = get_type_hints(kind)
    known = dict.fromkeys(kind.__struct_fields__)
    for key in values:
        if key not in known:
            where = ".".join((*at, str(key)))
            raise ConfigError(f"{path}: unknown key `{where}`{_hint(str(key), known)}")
    for key in known:
        where = ".".join((*at, key))
        if key not in values:
            raise ConfigError(f"{path}: `{where}` is missing: every key is written out (see configs/)")
        inner = fields[key]
        if isinstance(inner, type) and issubclass(inner, Section) and isinstance(values[key], dict):
            _require_known_keys(values[key], inner, path, (*at, key))


def _hint(name: str, known: dict[str, Any]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    if close:
        return f"; did you mean `{close[0]}`?"
    return f"; known here: {', '.join(known)}"


def _with_path(message: str) -> str:
    """msgspec writes `… - at `$.a.b``; a person reads `a.b: …`."""
    found = re.fullmatch(r"(.*) - at `\$\.?(.*)`", message, re.DOTALL)
    if not found:
        return message
    return f"`{found[2]}`: {found[1]}" if found[2] else found[1]

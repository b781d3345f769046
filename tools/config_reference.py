"""Write docs/config.md: every key of a run's YAML, as the sections declare it.

python -m tools.config_reference
"""

from __future__ import annotations

import ast
import enum
import html
import inspect
import itertools
import textwrap
import types
import typing
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from synthgen.corpus.config import RunConfig
from synthgen.corpus.sections import Section

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/config.md"
HEAD = """\
# Configuration

<!-- Made by `python -m tools.config_reference` from the code: change that, not this. -->

One YAML describes a run. Every key is required, so that the file shows the whole of it; an unknown key, a
missing one or a value of another type is refused before anything is loaded or sent, with its path and the
nearest name. Paths are relative to the directory in which a command is run. `--set section.key=value` lays a
value over the file, for one command; the resolved config is kept as `run.yaml` in each artifact. The columns
of values are `configs/demo.yaml` and `configs/kimi-k2.5.yaml`.
"""
CONFIGS = ("configs/demo.yaml", "configs/kimi-k2.5.yaml")
LONGEST = 40
PLAIN: dict[Any, str] = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "true or false",
    types.NoneType: "null",
}


def page() -> str:
    """The page's text."""
    values = [yaml.safe_load((ROOT / name).read_text(encoding="utf-8")) for name in CONFIGS]
    kinds = typing.get_type_hints(RunConfig)
    top = {key: kind for key, kind in kinds.items() if key in RunConfig.__struct_fields__}
    sections = {key: kind for key, kind in top.items() if _is_section(kind)}
    parts = [HEAD, "## The run", "", *_table(RunConfig, values, [key for key in top if key not in sections])]
    for key, kind in sections.items():
        parts += section_lines(key, kind, [found[key] for found in values], "##")
    return "\n".join(parts)


def section_lines(path: str, kind: type[Section], values: list[Any], level: str) -> list[str]:
    """A section with its keys, then the sections inside it."""
    hints = typing.get_type_hints(kind)
    lines = [f"{level} {path}", "", _joined(kind.__doc__ or ""), ""]
    lines += _table(kind, values, list(kind.__struct_fields__))
    for key in kind.__struct_fields__:
        for inner in _sections_in(hints[key]):
            below = [_first(found.get(key)) for found in values]
            lines += section_lines(f"{path}.{key}", inner, below, "###")
    return lines


def _table(kind: type[Section], values: list[dict[str, Any]], keys: list[str]) -> list[str]:
    kinds, meanings = typing.get_type_hints(kind), dict(field_docs(kind))
    lines = ["| key | type | demo | Kimi-K2.5 | |", "| --- | --- | --- | --- | --- |"]
    for key in keys:
        shown = " | ".join(_value(found.get(key, "")) if found else "" for found in values)
        lines.append(f"| `{key}` | {kind_text(kinds[key])} | {shown} | {_cell(meanings.get(key, ''))} |")
    return [*lines, ""]


def kind_text(kind: Any) -> str:
    """A type in the words of a YAML."""
    if kind in PLAIN:
        return PLAIN[kind]
    if _is_section(kind):
        return "mapping, below"
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _either(f"`{choice.value}`" for choice in kind)
    parts = typing.get_args(kind)
    if typing.get_origin(kind) is typing.Literal:
        return _either(f"`{part}`" for part in parts)
    if typing.get_origin(kind) is tuple:
        return f"list of {kind_text(parts[0])}" if ... in parts else f"{len(parts)} of {kind_text(parts[0])}"
    if typing.get_origin(kind) is dict:
        return f"{kind_text(parts[0])}: {kind_text(parts[1])}"
    return _either(kind_text(part) for part in parts)


def _either(texts: Iterable[str]) -> str:
    *first, last = texts
    return f"{', '.join(first)} or {last}" if first else last


def field_docs(kind: type[Section]) -> Iterator[tuple[str, str]]:
    """Each key that has a docstring, with it."""
    body = _class(kind).body
    for node, after in itertools.pairwise(body):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            yield node.target.id, str(after.value.value)


def _class(kind: type[Section]) -> ast.ClassDef:
    (found,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(found, ast.ClassDef)
    return found


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Section)


def _sections_in(kind: Any) -> list[type[Section]]:
    """The sections that a key's type names: itself, or inside a tuple or a union."""
    return [inner for inner in (kind, *typing.get_args(kind)) if _is_section(inner)]


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value else value


def _value(value: Any) -> str:
    """A value of a config in few characters; that of a list of sections stands in its own table."""
    if value == "" or (isinstance(value, list) and value and isinstance(value[0], dict)):
        return ""
    text = yaml.safe_dump(value, default_flow_style=True, width=1000).strip().removesuffix("...").strip()
    cut = "" if len(text) <= LONGEST else " …"
    return f"<code>{html.escape(text[:LONGEST]).replace('|', '&#124;')}</code>{cut}"


def _joined(text: str) -> str:
    return " ".join(text.split())


def _cell(text: str) -> str:
    return _joined(text).replace("|", "\\|")


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()

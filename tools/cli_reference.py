"""Write docs/cli.md: every command and option of `synthgen` and `eagle`, as the code declares them.

python -m tools.cli_reference
"""

from __future__ import annotations

import enum
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer

import eagle.__main__
import synthgen.__main__

PAGE = Path(__file__).parent.parent / "docs/cli.md"
HEAD = """\
# Commands

<!-- Made by `python -m tools.cli_reference` from the code: change that, not this. -->

`synthgen` is the line from prompts to a dataset, and the whole line; `eagle` the one from a dataset to a
draft. Every command has `--help`, writes results to stdout, progress and errors to stderr. Exit codes that
all share: 0 done, 2 an error that you can mend (one line says what, where and how), 130 interrupted with
everything finished kept.
"""
APPS = (("synthgen", synthgen.__main__.app), ("eagle", eagle.__main__.app))
Command = Callable[..., Any]


def page() -> str:
    """The page's text."""
    parts = [HEAD]
    for name, app in APPS:
        parts.append(f"## {name}\n\n{app.info.help}\n")
        parts += [command_text(path, command) for path, command in commands(name, app)]
    return "\n".join(parts)


def commands(path: str, app: typer.Typer) -> Iterator[tuple[str, Command]]:
    """Every command of an app with the words that call it, in the order of the help."""
    for command in app.registered_commands:
        assert command.callback is not None
        yield f"{path} {command.name or command.callback.__name__.replace('_', '-')}", command.callback
    for group in app.registered_groups:
        assert group.typer_instance is not None
        yield from commands(f"{path} {group.name}", group.typer_instance)


def command_text(path: str, command: Command) -> str:
    """One command: how it is called, what it does, its arguments and options, its examples."""
    told, examples = split_examples(inspect.getdoc(command) or "")
    rows = [Row(name, *taken) for name, taken in _parameters(command)]
    usage = " ".join([path, *(row.metavar for row in rows if row.is_argument), "[OPTIONS]"])
    lines = [f"### {path}", "", f"`{usage}`", "", told, ""]
    lines += ["| | default | |", "| --- | --- | --- |", *(row.text for row in rows), ""]
    if examples:
        lines += ["```sh", *examples, "```", ""]
    return "\n".join(lines)


def split_examples(docstring: str) -> tuple[str, list[str]]:
    """A command's docstring without its paragraph of examples, and those."""
    paragraphs = [" ".join(part.split()) for part in docstring.split("\n\n")]
    told = [part for part in paragraphs if not part.startswith("Example")]
    shown = [part for part in paragraphs if part.startswith("Example")]
    return "\n\n".join(told), [found for part in shown for found in re.findall(r"`([^`]+)`", part)]


def _parameters(command: Command) -> Iterator[tuple[str, tuple[Any, Any, Any]]]:
    """Name, type, what typer is told and default of each parameter."""
    hints = typing.get_type_hints(command, include_extras=True)
    for name, parameter in inspect.signature(command).parameters.items():
        kind, told = typing.get_args(hints[name])
        yield name, (kind, told, parameter.default)


class Row:
    """One argument or option."""

    def __init__(self, name: str, kind: Any, told: Any, default: Any) -> None:
        self.is_argument = isinstance(told, typer.models.ArgumentInfo)
        self._name, self._kind, self._told, self._default = name, kind, told, default

    @property
    def metavar(self) -> str:
        """An argument as a call shows it."""
        name = self._name.upper() + ("..." if typing.get_origin(self._kind) is list else "")
        return name if self._default is inspect.Parameter.empty else f"[{name}]"

    @property
    def text(self) -> str:
        """It as a row of a table."""
        return f"| {self._named()} | {self._defaulted()} | {_cell(self._told.help or '')} |"

    def _named(self) -> str:
        if self.is_argument:
            return f"`{self._name.upper()}`"
        first = self._told.default  # where typer keeps the first name of an option in Annotated
        named = (*((first,) if isinstance(first, str) else ()), *(self._told.param_decls or ()))
        flags = named or (f"--{self._name.replace('_', '-')}",)
        return " ".join((", ".join(f"`{flag}`" for flag in flags), self._valued())).rstrip()

    def _valued(self) -> str:
        """What stands behind an option."""
        inner = [kind for kind in typing.get_args(self._kind) if kind is not types.NoneType]
        kind = inner[0] if inner else self._kind
        if kind is bool:
            return ""
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return _cell(" | ".join(str(choice.value) for choice in kind))
        return {int: "INTEGER", float: "NUMBER", Path: "PATH"}.get(kind, "TEXT")

    def _defaulted(self) -> str:
        if self._default is inspect.Parameter.empty:
            return "needed"
        value = getattr(self._default, "value", self._default)
        return "" if value in (None, False, []) else f"`{value}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()

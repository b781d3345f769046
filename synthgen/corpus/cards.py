"""What the cards of a dataset and of a draft are made of: front matter, tables, names that others may see."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from synthgen.corpus.config import RunConfig
from synthgen.corpus.console import printable
from synthgen.corpus.verifier_files import local_directory


def front_matter(values: dict[str, Any]) -> str:
    """`values` in their order as the YAML that the hub reads at a card's head."""
    return f"---\n{_Dumper.text(values)}---\n"


class _Dumper(yaml.SafeDumper):
    """YAML without anchors, which the hub's parser would have to resolve."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    @classmethod
    def text(cls, values: dict[str, Any]) -> str:
        """`values` in their order."""
        return str(yaml.dump(values, Dumper=cls, sort_keys=False, allow_unicode=True))


def public_name(text: str) -> str:
    """A name as others may see it: of a path on this machine only its last part."""
    return Path(text).name if text.startswith(("/", ".", "~")) else text


def verifier_name(config: RunConfig) -> str:
    """The verifier's hub id, or the last part of its directory."""
    path = local_directory(config.verifier)
    return path.name if path else public_name(config.verifier.model)


def percent(part: float, whole: float) -> str:
    """A share with one decimal; of nothing it is 0."""
    return f"{part / whole:.1%}" if whole else "0.0%"


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table; without rows the word `none`."""
    if not rows:
        return ["none"]
    cells = (heads, ["---"] * len(heads), *rows)
    return ["| " + " | ".join(map(_cell, row)) + " |" for row in cells]


def _cell(text: str) -> str:
    """`text` on one line of a table, whatever a source is called."""
    return " ".join(printable(text).split()).replace("|", "\\|")

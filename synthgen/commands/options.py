"""Arguments that every command has."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Config = Annotated[Path, typer.Argument(help="The run's YAML, for instance configs/demo.yaml.")]
Overrides = Annotated[
    list[str], typer.Option("--set", help="Lay a value over the YAML: --set generate.temperature=1.0")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object instead of tables.")]

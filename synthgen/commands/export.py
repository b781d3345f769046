"""The dataset for others."""

from __future__ import annotations

import sys
from typing import Annotated

import msgspec
import typer

from synthgen.commands.options import AsJson, Config, Overrides
from synthgen.corpus.console import exits
from synthgen.corpus.files import in_units
from synthgen.corpus.settings import load_config
from synthgen.errors import ConfigError
from synthgen.export.formats import Format
from synthgen.export.hub import open_hub, push
from synthgen.export.stage import Exported, said_left_out
from synthgen.export.stage import export as export_dataset


def export(
    config: Config,
    set_: Overrides = [],  # noqa: B006
    formats: Annotated[
        list[Format], typer.Option("--format", help="May be given several times.", show_default="parquet")
    ] = [Format.PARQUET],  # noqa: B006
    push_to_hub: Annotated[
        str | None,
        typer.Option(
            metavar="OWNER/NAME",
            help="Upload the export to this dataset repository of the hub. In one that is there already, all "
            "files of data/ that the export doesn't have are deleted, and its README.md is replaced.",
        ),
    ] = None,
    private: Annotated[
        bool, typer.Option("--private/--public", help="Of a repository that this makes.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Write the mixed dataset in the formats of others, each with a dataset card.

    parquet and speculators carry exact token ids and every row; specforge, torchspec, sharegpt and openai
    carry text, and leave out rows that text can't represent. An export that fits the dataset is left alone.

    Exit code 0: all formats are there. 2: something has to be mended first. 130: interrupted.

    Examples: `synthgen export my.yaml --format speculators --format openai --json`,
    `synthgen export my.yaml --format parquet --push-to-hub me/traces --private`
    """
    with exits():
        loaded = load_config(config, tuple(set_))
        kinds = tuple(dict.fromkeys(formats))
        if push_to_hub is not None and len(kinds) > 1:
            raise ConfigError(
                f"--push-to-hub {push_to_hub}: a repository holds one format, "
                f"--format names {', '.join(kinds)}"
            )
        hub = None if push_to_hub is None else open_hub(push_to_hub, private=private)
        done = export_dataset(loaded, kinds)
        if not as_json:
            sys.stdout.writelines(_line(one) + "\n" for one in done)
        address = None if hub is None else push(hub, done[0].path, loaded.export.title)
        if as_json:
            plain = {"exports": [_plain(one) for one in done], "pushed_to": address}
            sys.stdout.write(msgspec.json.encode(plain).decode() + "\n")
        elif address:
            sys.stdout.write(f"pushed to {address}\n")


def _line(one: Exported) -> str:
    figures = one.manifest.figures
    rows = " and ".join(f"{count:,} {split}" for split, count in figures["rows"].items())
    left_out = said_left_out(figures)
    return (
        f"{one.path}: {rows} rows, {in_units(figures['bytes'])}"
        + (f"; left out: {left_out}" if left_out else "")
        + ("" if one.made else "; was there already and fits")
    )


def _plain(one: Exported) -> dict[str, object]:
    figures = one.manifest.figures
    return {
        "format": one.kind,
        "path": str(one.path),
        "rows": figures["rows"],
        "left_out": figures["left_out"],
        "bytes": figures["bytes"],
        "made": one.made,
    }

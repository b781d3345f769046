"""`synthgen prompts`: what is understood, without a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from typer.testing import CliRunner

from synthgen.__main__ import app
from synthgen.corpus.settings import load_config
from synthgen.seeds.figures import DomainFigures, SourceFigures
from synthgen.seeds.report import read_report


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """Two files with one prompt in common, a bad row in the second."""
    (tmp_path / "a.jsonl").write_text('{"prompt": "1"}\n{"prompt": "2", "domain": "x"}\n{"prompt": "1"}\n')
    (tmp_path / "b.csv").write_text("question,domain\n1,y\n,y\n3,x\n" + "z" * 400 + ",x\n")
    return str(tmp_path / "a.jsonl"), str(tmp_path / "b.csv")


def test_sources_and_domains_are_counted_and_examples_taken_in_turn(
    demo_values: dict[str, Any], write_config: Any, files: tuple[str, str]
) -> None:
    """A prompt that two files have counts for the first; examples are of what is chosen."""
    demo_values["prompts"] |= {"sources": list(files), "on_bad_row": "skip", "heldout": 1, "limit": None}
    demo_values["accept"] |= {"prompts": 1, "single_prompts": 1}
    report = read_report(load_config(write_config(demo_values)), 3)
    assert report.figures.sources == (
        SourceFigures(
            source=files[0], format="JSONL", shape="text in `prompt`", rows=3, left_out=0, note="", corpus=1
        ),
        SourceFigures(
            source=files[1],
            format="CSV",
            shape="text in `question`",
            rows=4,
            left_out=1,
            note="b.csv: 1 of 4 rows left out, first at row 2: no prompt: has none of messages, prompt, "
            "question, instruction, turns, conversations, body, or not as it should be; keys: question, "
            "domain; prompts.field names another column",
            corpus=2,
        ),
    )
    assert (report.figures.rows, report.figures.distinct) == (7, 4)
    assert report.figures.domains == {
        "x": DomainFigures(read=3, heldout=1, corpus=2),
        "a": DomainFigures(read=2, heldout=0, corpus=1),
        "y": DomainFigures(read=1, heldout=0, corpus=0),
    }
    assert [prompt.source for prompt in report.examples] == ["b.csv", "a.jsonl", "b.csv"]


def invoke(values: dict[str, Any], path: Path, *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the command on a config of `values`."""
    path.write_text(yaml.safe_dump(values))
    result = CliRunner().invoke(app, ["prompts", str(path), *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_the_command_shows_tables_and_examples(
    demo_values: dict[str, Any], files: tuple[str, str], tmp_path: Path
) -> None:
    """Within 100 columns; an example ends after 300 characters."""
    demo_values["prompts"] |= {"sources": list(files), "on_bad_row": "skip"}
    code, out, _ = invoke(demo_values, tmp_path / "c.yaml", "--count", "4")
    assert code == 0
    assert max(len(line) for line in out.splitlines()) <= 100
    for text in (
        "7 rows, 4 different prompts",
        "JSONL",
        "CSV",
        "1 of 4 rows left out, first at row 2",
        "a.jsonl",
    ):
        assert text in out
    unwrapped = out.replace("\n", "")
    assert "z" * 300 in unwrapped
    assert "z" * 301 not in unwrapped


def test_the_command_gives_one_json_object(
    demo_values: dict[str, Any], files: tuple[str, str], tmp_path: Path
) -> None:
    """The first 300 characters are for the eye; here prompts are whole."""
    demo_values["prompts"] |= {"sources": [files[0]]}
    code, out, _ = invoke(demo_values, tmp_path / "c.yaml", "--count", "1", "--json")
    assert code == 0
    assert msgspec.json.decode(out) == {
        "sources": [
            {
                "source": files[0],
                "format": "JSONL",
                "shape": "text in `prompt`",
                "rows": 3,
                "left_out": 0,
                "note": "",
                "revision": None,
                "corpus": 0,
            }
        ],
        "counts": {
            "rows": 3,
            "distinct": 2,
            "left_out": 0,
            "duplicate": 1,
            "near_duplicate": 0,
            "excluded": 0,
            "near_excluded": 0,
            "over_cap": 0,
            "not_drawn": 0,
            "heldout": 2,
            "corpus": 0,
        },
        "domains": {
            "a": {"read": 2, "dropped": 1, "heldout": 1, "corpus": 0},
            "x": {"read": 1, "dropped": 0, "heldout": 1, "corpus": 0},
        },
        "examples": [
            {
                "id": "7aafcef3132bc8b7",
                "source": "a.jsonl",
                "domain": "x",
                "messages": [{"role": "user", "content": "2"}],
            }
        ],
    }


def test_what_becomes_of_the_rows_is_a_table(
    demo_values: dict[str, Any], files: tuple[str, str], tmp_path: Path
) -> None:
    """Each end with its rows and the key that decides it; domains with what was read and what is left."""
    demo_values["prompts"] |= {"sources": list(files), "on_bad_row": "skip", "heldout": 1, "limit": 1}
    demo_values["accept"] |= {"prompts": 1, "single_prompts": 1}
    code, out, _ = invoke(demo_values, tmp_path / "c.yaml", "--count", "0")
    assert code == 0
    rows = [" ".join(line.split()) for line in out.splitlines()]
    for row in (
        "left out: give no prompt 1 14.3%",
        "the same as an earlier one 2 28.6%",
        "not drawn: prompts.limit 2 28.6%",
        "held out for the acceptance: prompts.heldout 1 14.3%",
        "corpus 1 14.3%",
        "domain read dropped held out corpus",
        "y 1 1 0 0",
    ):
        assert row in rows


def test_the_command_refuses_as_a_run_would(
    demo_values: dict[str, Any], files: tuple[str, str], tmp_path: Path
) -> None:
    """Exit code 2, one line with file and row."""
    demo_values["prompts"] |= {"sources": list(files)}
    code, out, error = invoke(demo_values, tmp_path / "c.yaml")
    assert (code, out) == (2, "")
    assert error.startswith(f"error: {files[1]}:2: no prompt: ")

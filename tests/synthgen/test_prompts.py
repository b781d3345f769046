"""`synthgen prompts`: what is understood, without a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from typer.testing import CliRunner

from synthgen.__main__ import app
from synthgen.prompts import FileReport, read_report
from tests.conftest import prompts_config


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """Two files with one prompt in common, a bad row in the second."""
    (tmp_path / "a.jsonl").write_text('{"prompt": "1"}\n{"prompt": "2", "domain": "x"}\n{"prompt": "1"}\n')
    (tmp_path / "b.csv").write_text("question,domain\n1,y\n,y\n3,x\n" + "z" * 400 + ",x\n")
    return str(tmp_path / "a.jsonl"), str(tmp_path / "b.csv")


def test_files_and_domains_are_counted_and_examples_taken_in_turn(files: tuple[str, str]) -> None:
    """A prompt that two files have counts for the first, as in a run."""
    config = prompts_config(sources=files, on_bad_row="skip")
    report = read_report(config, 3)
    assert report.files == (
        FileReport(
            file=files[0], format="JSONL", shape="text in `prompt`", rows=3, distinct=2, left_out=0, note=""
        ),
        FileReport(
            file=files[1],
            format="CSV",
            shape="text in `question`",
            rows=4,
            distinct=3,
            left_out=1,
            note="b.csv: 1 of 4 rows left out, first at row 2: no prompt: has none of messages, prompt, "
            "question, instruction, turns, conversations, body, or not as it should be; keys: question, "
            "domain; prompts.field names another column",
        ),
    )
    assert (report.distinct, report.domains) == (4, {"x": 3, "a": 1})
    assert [prompt.messages[0].content for prompt in report.examples] == ["1", "3", "2"]


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
    for text in ("4 different prompts", "JSONL", "CSV", "1 of 4 rows left out, first at row 2", "a.jsonl"):
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
        "files": [
            {
                "file": files[0],
                "format": "JSONL",
                "shape": "text in `prompt`",
                "rows": 3,
                "distinct": 2,
                "left_out": 0,
                "note": "",
            }
        ],
        "distinct": 2,
        "domains": {"a": 1, "x": 1},
        "examples": [
            {
                "id": "e8494dc4263f6c30",
                "source": "a.jsonl",
                "domain": "a",
                "messages": [{"role": "user", "content": "1"}],
            }
        ],
    }


def test_the_command_refuses_as_a_run_would(
    demo_values: dict[str, Any], files: tuple[str, str], tmp_path: Path
) -> None:
    """Exit code 2, one line with file and row."""
    demo_values["prompts"] |= {"sources": list(files)}
    code, out, error = invoke(demo_values, tmp_path / "c.yaml")
    assert (code, out) == (2, "")
    assert error.startswith(f"error: {files[1]}:2: no prompt: ")

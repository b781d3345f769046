"""Prompt files: formats, broken lines, the split."""

from __future__ import annotations

from pathlib import Path

import pytest

from synthgen.corpus.records import Message
from synthgen.errors import InputError
from synthgen.seeds.choose import split_prompts
from synthgen.sources.prompt_file import PromptFile
from tests.conftest import prompts_config

ROOT = Path(__file__).parent.parent.parent


def write(path: Path, *lines: str) -> Path:
    """A file of lines."""
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("line", "content"),
    [
        ('{"messages": [{"role": "user", "content": "a"}]}', "a"),
        ('{"prompt": "b"}', "b"),
        ('{"question": "c", "answer": "x"}', "c"),
        ('{"instruction": "d", "instances": [{"input": "e", "output": "f"}]}', "d\n\ne"),
        ('{"instruction": "d", "instances": [{"input": "", "output": "f"}]}', "d"),
        ('{"instruction": "d", "input": "g"}', "d\n\ng"),
        ('{"category": "qa", "turns": ["h", "i"]}', "h"),
    ],
)
def test_the_usual_shapes_are_understood(tmp_path: Path, line: str, content: str) -> None:
    """OpenAI messages, a single text under its usual names, the first of several turns."""
    (prompt,) = PromptFile(write(tmp_path / "p.jsonl", line))
    assert prompt.messages == (Message(role="user", content=content),)
    assert prompt.source == "p.jsonl"


def test_the_domain_is_the_rows_own_or_the_files(tmp_path: Path) -> None:
    """`domain`, then `category`, then the file's name."""
    rows = ('{"prompt": "a", "domain": "x"}', '{"prompt": "b", "category": "y"}', '{"prompt": "c"}')
    domains = [p.domain for p in PromptFile(write(tmp_path / "f.jsonl", *rows))]
    assert domains == ["x", "y", "f"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt": "a"', r"p\.jsonl:2:15: not JSON: Input data was truncated"),
        ('{"prompt": a}', r"p\.jsonl:2:12: not JSON: JSON is malformed"),
        ("[1]", r"p\.jsonl:2:1: a line is a JSON object, this is list"),
        ('{"text": "a"}', r"p\.jsonl:2:1: no prompt: has none of messages, prompt, .* keys: text"),
        ('{"prompt": "x", "sampling": {"top_p": 0}}', r"p\.jsonl:2:1: sampling\.top_p 0\.0 is not above 0"),
        ('{"prompt": "x", "sampling": {"temperature": -1}}', r"2:1: sampling\.temperature -1\.0 is negative"),
        ('{"prompt": "x", "sampling": {"max_tokens": 0}}', r"2:1: sampling\.max_tokens 0 is less than 1"),
        ('{"prompt": "x", "sampling": {"top_k": 5}}', r"p\.jsonl:2:1: .*unknown field `top_k`"),
    ],
)
def test_a_broken_line_is_named_by_file_line_and_column(tmp_path: Path, line: str, message: str) -> None:
    """Before anything is sent."""
    with pytest.raises(InputError, match=message):
        list(PromptFile(write(tmp_path / "p.jsonl", '{"prompt": "fine"}', line)))


def test_bytes_that_are_no_utf8_are_named(tmp_path: Path) -> None:
    """A Latin-1 file is refused at the byte."""
    path = tmp_path / "p.jsonl"
    path.write_bytes(b'{"prompt": "caf\xe9"}\n')
    with pytest.raises(InputError, match=r"p\.jsonl:1:\d+: not (UTF-8|JSON)"):
        list(PromptFile(path))


@pytest.mark.parametrize(("content", "message"), [(None, "No such file"), ("\n\n", "is empty")])
def test_a_missing_or_empty_file_is_named(tmp_path: Path, content: str | None, message: str) -> None:
    """There is nothing to send."""
    if content is not None:
        (tmp_path / "p.jsonl").write_text(content)
    with pytest.raises(InputError, match=message):
        list(PromptFile(tmp_path / "p.jsonl"))


def prompts_file(path: Path, count: int) -> str:
    """A file of `count` different prompts."""
    return str(write(path, *(f'{{"prompt": "q{i}"}}' for i in range(count))))


def test_rows_that_are_left_out_are_told_at_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line a file, on stderr; the other prompts are split as ever."""
    file = write(tmp_path / "p.jsonl", '{"prompt": "a"}', "[1]", '{"prompt": "b"}', '{"question": "c"}')
    config = prompts_config(sources=(str(file),), on_bad_row="skip")
    assert len(split_prompts(config, seed=1).corpus) == 1
    expected = "p.jsonl: 2 of 4 rows left out, first at row 2: a line is a JSON object, this is list\n"
    assert capsys.readouterr().err == expected


def test_a_column_can_be_named_for_all_files(tmp_path: Path) -> None:
    """Instead of the one that would be found."""
    file = write(tmp_path / "p.jsonl", '{"prompt": "a", "text": "b"}', '{"prompt": "a", "text": "c"}')
    config = prompts_config(sources=(str(file),), field="text")
    split = split_prompts(config, seed=1)
    assert {p.messages[0].content for p in (*split.corpus, *split.heldout)} == {"b", "c"}


def test_the_split_is_by_content_and_disjoint(tmp_path: Path) -> None:
    """Reordering the files or doubling a prompt moves nothing."""
    one, two = prompts_file(tmp_path / "a.jsonl", 20), prompts_file(tmp_path / "b.jsonl", 30)
    split = split_prompts(prompts_config(sources=(one, two), heldout=5), seed=1)
    other = split_prompts(prompts_config(sources=(two, one), heldout=5), seed=1)
    heldout, corpus = {p.id for p in split.heldout}, {p.id for p in split.corpus}
    assert (len(heldout), len(corpus)) == (5, 25)
    assert not heldout & corpus
    assert [p.id for p in other.heldout] == [p.id for p in split.heldout]
    assert [p.id for p in other.corpus] == [p.id for p in split.corpus]


def test_a_limit_takes_a_prefix_and_another_seed_draws_otherwise(tmp_path: Path) -> None:
    """Raising the limit later only adds prompts."""
    files = (prompts_file(tmp_path / "a.jsonl", 30),)
    small = split_prompts(prompts_config(sources=files, limit=4, heldout=5), seed=1).corpus
    large = split_prompts(prompts_config(sources=files, limit=9, heldout=5), seed=1).corpus
    other = split_prompts(prompts_config(sources=files, limit=4, heldout=5), seed=2).corpus
    assert large[:4] == small
    assert other != small


def test_too_few_prompts_are_refused_with_both_numbers(tmp_path: Path) -> None:
    """Nothing would be left for the corpus."""
    files = (prompts_file(tmp_path / "a.jsonl", 5),)
    with pytest.raises(InputError, match=r"5 different prompts, but prompts\.heldout alone asks for 5"):
        split_prompts(prompts_config(sources=files, limit=None, heldout=5), seed=1)


def test_the_prompts_that_come_along_are_many_and_all_different() -> None:
    """At least 600 in eight domains, each of its file's domain, no two the same."""
    files = sorted((ROOT / "prompts/seeds").glob("*.jsonl"))
    prompts = [prompt for file in files for prompt in PromptFile(file)]
    assert [file.stem for file in files] == [
        "code", "dialogue", "extraction", "languages", "math", "reasoning", "tool_use", "writing",
    ]  # fmt: skip
    assert len({p.id for p in prompts}) == len(prompts) >= 600
    assert all(prompt.domain == Path(prompt.source).stem for prompt in prompts)
    assert all(prompt.tools for prompt in prompts if prompt.domain == "tool_use")

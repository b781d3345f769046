"""Files of every format and shape to seed prompts; bad rows refused or left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from synthgen.corpus.records import SamplingOverride, SeedPrompt
from synthgen.errors import InputError
from synthgen.sources.prompt_file import PromptFile

ROOT = Path(__file__).parent.parent.parent
PUBLIC = ROOT.parent / "shared/data"
HI = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f"}}


def jsonl(path: Path, *rows: Any) -> Path:
    """A JSONL file of `rows`; text is a line as it is."""
    lines = (row.encode() if isinstance(row, str) else msgspec.json.encode(row) for row in rows)
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def brief(prompt: SeedPrompt) -> tuple[str, str]:
    """A prompt's domain and the beginning of its last message."""
    return prompt.domain, (prompt.messages[-1].content or "")[:20]


@pytest.mark.parametrize(
    ("rows", "shape", "prompts"),
    [
        (
            ('{"question": "How many?", "answer": "4"}', '{"question": "Why?", "answer": "5"}'),
            "text in `question`",
            [("p", "How many?"), ("p", "Why?")],
        ),
        (
            (
                '{"task_id": "HumanEval/0", "prompt": "def f():\\n", "entry_point": "f", "test": "x"}',
                '{"task_id": "HumanEval/1", "prompt": "def g():\\n", "entry_point": "g", "test": "x"}',
            ),
            "text in `prompt` (HumanEval)",
            [("p", "def f():\n"), ("p", "def g():\n")],
        ),
        (
            (
                '{"question_id": 81, "category": "writing", "turns": ["Write.", "Again."]}',
                '{"question_id": 82, "category": "qa", "turns": ["Who?"]}',
            ),
            "user turns in `turns`",
            [("writing", "Write."), ("qa", "Who?")],
        ),
        (
            (
                '{"id": "seed_task_0", "instruction": "Eat?", "instances": [{"input": "", "output": "x"}]}',
                '{"id": "seed_task_1", "instruction": "Pair?", "instances": [{"input": "A", "output": "y"}]}',
            ),
            "text in `instruction` with its input",
            [("p", "Eat?"), ("p", "Pair?\n\nA")],
        ),
        (
            (
                '{"source": "math", "conversations": [{"from": "human", "value": "1+1?"}, '
                '{"from": "gpt", "value": "2"}]}',
                '{"source": "code", "conversations": [{"from": "system", "value": "s"}, '
                '{"from": "human", "value": "f?"}]}',
            ),
            "ShareGPT from/value in `conversations`",
            [("math", "1+1?"), ("code", "f?")],
        ),
    ],
)
def test_public_prompt_sets_are_understood(
    tmp_path: Path, rows: tuple[str, ...], shape: str, prompts: list[tuple[str, str]]
) -> None:
    """Lines as in GSM8K, HumanEval, Spec-Bench, self-instruct and open-perfectblend."""
    file = PromptFile(jsonl(tmp_path / "p.jsonl", *rows))
    assert [brief(prompt) for prompt in file] == prompts
    assert (str(file.shape), file.format, file.rows, file.note) == (shape, "JSONL", 2, "")


@pytest.mark.parametrize(
    ("name", "rows", "shape", "domains"),
    [
        ("gsm8k_test", 1319, "text in `question`", 1),
        ("human_eval", 164, "text in `prompt` (HumanEval)", 1),
        ("spec_bench", 480, "user turns in `turns`", 13),
        ("self_instruct_seed_tasks", 175, "text in `instruction` with its input", 1),
    ],
)
def test_whole_public_files_are_read(name: str, rows: int, shape: str, domains: int) -> None:
    """Each row a prompt, where the files are at hand."""
    path = PUBLIC / f"{name}.jsonl"
    if not path.exists():
        pytest.skip(f"{path} isn't there")
    file = PromptFile(path)
    prompts = list(file)
    assert (len(prompts), file.rows, str(file.shape)) == (rows, rows, shape)
    assert len({prompt.domain for prompt in prompts}) == domains


def test_ids_are_those_of_the_content(tmp_path: Path) -> None:
    """The same prompt has the same id in every format and shape, with or without a reply behind it."""
    message, turn = {"role": "user", "content": "hi"}, {"from": "human", "value": "hi"}
    replied = [message, {"role": "assistant", "content": "x"}]
    files = [
        jsonl(tmp_path / "a.jsonl", {"prompt": "hi"}),
        jsonl(tmp_path / "b.jsonl", {"messages": replied}),
        jsonl(tmp_path / "c.jsonl", {"conversations": [turn, {"from": "gpt", "value": "x"}]}),
        jsonl(tmp_path / "d.jsonl", {"conversations": replied}),
        jsonl(tmp_path / "e.jsonl", {"url": "/v1/chat/completions", "body": {"messages": [message]}}),
        tmp_path / "f.csv",
        tmp_path / "g.parquet",
    ]
    (tmp_path / "f.csv").write_text("question\nhi\n")
    pq.write_table(pa.Table.from_pylist([{"messages": replied, "tools": None}]), tmp_path / "g.parquet")
    assert [prompt.id for file in files for prompt in PromptFile(file)] == ["9c8fd1e15516c411"] * 7


def test_a_batch_line_brings_tools_and_sampling(tmp_path: Path) -> None:
    """The model it names is the run's to choose; the newer name of the token budget goes first."""
    body = {"model": "x", "messages": [HI], "tools": [TOOL], "temperature": 0, "max_tokens": 9}
    rows = [
        {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": body},
        {
            "custom_id": "2",
            "url": "/v1/chat/completions",
            "body": {**body, "max_completion_tokens": 7, "n": None},
        },
        {"custom_id": "3", "url": "/v1/chat/completions", "body": {"messages": [HI]}},
    ]
    first, second, third = PromptFile(jsonl(tmp_path / "p.jsonl", *rows))
    assert first.sampling == SamplingOverride(temperature=0.0, max_tokens=9)
    assert first.tools == (TOOL,)
    assert second.sampling == SamplingOverride(temperature=0.0, max_tokens=7)
    assert (third.sampling, third.tools) == (None, ())


def test_a_parquet_file_of_conversations_is_read(tmp_path: Path) -> None:
    """As open-perfectblend: `source` is the domain, the file's name stands in for a null."""
    table = pa.Table.from_pylist(
        [
            {
                "source": "math",
                "conversations": [{"from": "human", "value": "1"}, {"from": "gpt", "value": "2"}],
            },
            {
                "source": None,
                "conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "3"}],
            },
        ]
    )
    pq.write_table(table, tmp_path / "blend.parquet")
    file = PromptFile(tmp_path / "blend.parquet")
    assert [brief(prompt) for prompt in file] == [("math", "1"), ("blend", "3")]
    assert (file.format, str(file.shape)) == ("Parquet", "ShareGPT from/value in `conversations`")


def test_the_domain_is_the_first_that_is_named(tmp_path: Path) -> None:
    """`domain`, `category`, a `source` that is text, the file's name."""
    rows = (
        {"prompt": "1", "domain": "d", "category": "c", "source": "s"},
        {"prompt": "2", "domain": None, "category": "c", "source": "s"},
        {"prompt": "3", "source": "s"},
        {"prompt": "4", "source": {"url": "x"}},
    )
    assert [p.domain for p in PromptFile(jsonl(tmp_path / "f.jsonl", *rows))] == ["d", "c", "s", "f"]


def test_a_column_that_is_named_holds_the_prompt(tmp_path: Path) -> None:
    """In every format."""
    pq.write_table(pa.table({"prompt": ["x"], "text": ["a"], "source": ["s"]}), tmp_path / "p.parquet")
    (tmp_path / "p.csv").write_text("prompt,text,source\nx,a,s\n")
    jsonl(tmp_path / "p.jsonl", {"prompt": "x", "text": "a", "source": "s"})
    for name in ("p.parquet", "p.csv", "p.jsonl"):
        assert [brief(prompt) for prompt in PromptFile(tmp_path / name, field="text")] == [("s", "a")]


CHAT, EMBED = "/v1/chat/completions", "/v1/embeddings"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"messages": [{"role": "user", "content": 3}]},
            r"Expected `str \| null`, got `int` - at `\$\[0\]\.content`",
        ),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "a prompt ends with a user"),
        ({"messages": [HI, *[{"role": "assistant", "content": "x"}] * 2]}, "a prompt ends with a user"),
        ({"messages": [{"role": "user", "content": " \n"}]}, "the prompt is empty"),
        (
            {"prompt": "hi"},
            r"text in `prompt`, but row 1 has OpenAI messages in `messages`: one file has one shape",
        ),
        (
            {"text": "hi"},
            r"no prompt: has none of messages, .* keys: text; prompts\.field names another column",
        ),
        ({"messages": [HI], "tools": 5}, "Expected `array`, got `int`"),
        ({"messages": [HI], "sampling": {"top_k": 5}}, "unknown field `top_k`"),
        ('{"messages"', "not JSON: Input data was truncated"),
    ],
)
def test_a_bad_row_is_refused_or_left_out(tmp_path: Path, row: Any, message: str) -> None:
    """Refused it is named with its place; left out it is counted, with why."""
    path = jsonl(
        tmp_path / "p.jsonl", {"messages": [HI]}, "", row, {"messages": [{**HI, "content": "b"}]}, "[]"
    )
    with pytest.raises(InputError, match=rf"p\.jsonl:3:\d+: .*{message}"):
        list(PromptFile(path))
    file = PromptFile(path, on_bad_row="skip")
    assert [brief(prompt) for prompt in file] == [("p", "hi"), ("p", "b")]
    assert (file.rows, file.left_out) == (4, 2)
    assert file.note.startswith("p.jsonl: 2 of 4 rows left out, first at row 3: ")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"url": EMBED, "body": {"input": "x"}},
            r"asks for POST /v1/embeddings; only POST /v1/chat/completions is read",
        ),
        (
            {"url": CHAT, "method": "GET", "body": {"messages": [HI]}},
            "asks for GET /v1/chat/completions; only POST",
        ),
        (
            {"url": CHAT, "body": {"messages": [HI], "n": 4}},
            r"body\.n can't be honoured; what is read: messages, tools,",
        ),
        ({"url": CHAT, "body": {"model": "x"}}, "the body has no list of messages; keys: model"),
        ({"url": CHAT, "body": {"messages": []}}, "a prompt ends with a user"),
        (
            {"url": CHAT, "body": {"messages": [HI], "top_p": 2}},
            r"sampling\.top_p 2\.0 is not above 0 and at most 1",
        ),
        (
            {"url": CHAT, "body": {"messages": [HI, {"role": "assistant", "content": "x"}]}},
            "a prompt ends with a user",
        ),
    ],
)
def test_a_batch_line_that_cant_be_honoured_is_refused(tmp_path: Path, row: Any, message: str) -> None:
    """Another endpoint, another method, a parameter that would be lost, a reply begun."""
    with pytest.raises(InputError, match=rf"p\.jsonl:1:1: {message}"):
        list(PromptFile(jsonl(tmp_path / "p.jsonl", row)))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.csv", b"text,b\nx,y\n", r"p\.csv:1: no `chat`, which prompts\.field names; keys: text, b"),
        ("p.csv", b"chat,b\na,b\n,b\n", r"p\.csv:2: `chat`, which prompts\.field names, is empty"),
        ("p.csv", b"chat,b\ncaf\xe9,b\n", r"p\.csv:1:chat: not UTF-8: "),
        ("p.csv", b"chat,b\n", r"p\.csv: is empty: it has no row"),
        ("p.parquet", b"", r"p\.parquet: is empty: it has no row"),
        ("p.jsonl", b'{"text": "x"}\n', r"p\.jsonl:1:1: no `chat`, which prompts\.field names; keys: text"),
    ],
)
def test_a_named_column_that_isnt_there_is_refused(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    """With the file, the row and, where it is known, the column."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        list(PromptFile(tmp_path / name, field="chat"))


def test_an_empty_sampling_is_none(tmp_path: Path) -> None:
    """As a column of nulls gives it: the same prompt has the same id."""
    rows = [
        {"prompt": "hi"},
        {"prompt": "hi", "sampling": {}},
        {"prompt": "hi", "sampling": {"temperature": None}},
    ]
    prompts = list(PromptFile(jsonl(tmp_path / "p.jsonl", *rows)))
    assert len({prompt.id for prompt in prompts}) == 1
    assert prompts[1].sampling is None

"""Datasets in the form of the hub: as files give the same rows, and what can't be had is told in one line."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from synthgen.errors import ConfigError, InputError
from synthgen.sources.hub import HubDataset
from synthgen.sources.prompt_file import PromptFile

ROOT = Path(__file__).parent.parent.parent
BLEND: list[dict[str, Any]] = [
    {"source": "math", "conversations": [{"from": "human", "value": "1+1?"}, {"from": "gpt", "value": "2"}]},
    {"source": "code", "conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "f?"}]},
    {"source": None, "conversations": [{"from": "human", "value": "3"}]},
]
"""As rows of open-perfectblend are."""


def dataset(directory: Path, *rows: dict[str, Any]) -> Path:
    """A directory with a `train` split of one Parquet file."""
    directory.mkdir(parents=True)
    file = directory / "train-00000-of-00001.parquet"
    with file.open("wb") as out:
        pq.write_table(pa.Table.from_pylist(list(rows)), out)
    return file


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("hub:a/b:train", HubDataset("a/b", None, "train", None)),
        ("hub:gsm8k:main:test", HubDataset("gsm8k", "main", "test", None)),
        ("hub:a/b-c.d@v1.0:train", HubDataset("a/b-c.d", None, "train", "v1.0")),
        ("hub:a/b@refs/pr/1:c:train", HubDataset("a/b", "c", "train", "refs/pr/1")),
    ],
)
def test_a_source_names_dataset_config_split_and_revision(source: str, expected: HubDataset) -> None:
    """And reads back as it was written."""
    assert HubDataset.parse(source) == expected
    assert str(expected) == source


def test_a_directory_may_have_colons_in_its_name(tmp_path: Path) -> None:
    """What is there is taken, with or without a config."""
    place = tmp_path / "a:b@c" / "d"
    place.mkdir(parents=True)
    assert HubDataset.parse(f"hub:{place}:train") == HubDataset(str(place), None, "train", None)
    assert HubDataset.parse(f"hub:{place}:x:train") == HubDataset(str(place), "x", "train", None)


@pytest.mark.parametrize(
    "source", ["hub:a/b", "hub:", "hub::train", "hub:a/b:", "hub:a/b:train[:10]", "hub:/not/there:train"]
)
def test_another_form_is_refused_with_the_right_one(source: str) -> None:
    """Before anything is read."""
    with pytest.raises(ConfigError, match=r"write it as hub:ID:SPLIT or hub:ID:CONFIG:SPLIT"):
        PromptFile(source)


def test_a_dataset_gives_what_its_file_gives(tmp_path: Path) -> None:
    """Prompts, domains and shape of a blend, but for the source's name."""
    file = dataset(tmp_path / "open-perfectblend", *BLEND)
    hub, whole = PromptFile(f"hub:{file.parent}:train"), PromptFile(file)
    prompts, same = list(hub), list(whole)
    assert [(p.source, p.domain, p.messages[-1].content) for p in prompts] == [
        ("open-perfectblend", "math", "1+1?"),
        ("open-perfectblend", "code", "f?"),
        ("open-perfectblend", "open-perfectblend", "3"),
    ]
    assert [p.id for p in prompts] == [p.id for p in same]
    assert [p.domain for p in same] == ["math", "code", "train-00000-of-00001"]
    assert (hub.format, hub.rows, hub.shape) == ("hub", 3, whole.shape)


def test_bad_rows_of_a_dataset_are_numbered_and_refused_or_left_out(tmp_path: Path) -> None:
    """Nulls of structs are pruned, text that is no UTF-8 is a bad row, as in a Parquet file."""
    tools = [{"name": "f", "properties": {"a": 1, "b": None}}]
    file = dataset(
        tmp_path / "d",
        {"text": "1", "tools": tools},
        {"text": None, "tools": None},
        {"text": "3", "tools": [{"name": "g", "properties": {"a": None, "b": 2}}]},
    )
    source = f"hub:{file.parent}:train"
    with pytest.raises(InputError, match=r"/d:train:2: `text`, which prompts\.field names, is empty"):
        list(PromptFile(source, field="text"))
    read = PromptFile(source, field="text", on_bad_row="skip")
    assert [p.tools for p in read] == [
        ({"name": "f", "properties": {"a": 1}},),
        ({"name": "g", "properties": {"b": 2}},),
    ]
    assert read.note.startswith("d: 1 of 3 rows left out, first at row 2: ")


def test_text_of_a_dataset_that_is_no_utf8_is_a_bad_row(tmp_path: Path) -> None:
    """The rows beside it are read."""
    binary = pa.array([b"a", b"caf\xe9", b"c"], pa.binary())
    (tmp_path / "d").mkdir()
    table = pa.table({"prompt": pa.Array.from_buffers(pa.string(), 3, binary.buffers())})
    pq.write_table(table, tmp_path / "d/train.parquet")
    read = PromptFile(f"hub:{tmp_path / 'd'}:train", on_bad_row="skip")
    assert [p.messages[0].content for p in read] == ["a", "c"]
    assert read.note == "d: 1 of 3 rows left out, first at row 2: not UTF-8: unexpected end of data"


def test_what_is_wrong_with_a_dataset_is_one_line(tmp_path: Path) -> None:
    """A split that isn't there, files that don't fit together, a file that is broken, one without rows."""
    file = dataset(tmp_path / "d", {"prompt": "a"})
    with pytest.raises(InputError, match=r"d:test: can't be read: Bad split: test\. Available splits: \['tr"):
        list(PromptFile(f"hub:{file.parent}:test"))
    pq.write_table(pa.table({"other": ["x"]}), file.parent / "train-00001-of-00001.parquet")
    with pytest.raises(InputError, match=r"can't be read: Couldn't cast other: string to [^\n]*$"):
        list(PromptFile(f"hub:{file.parent}:train"))
    file.write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"d:train: can't be read: Parquet [^\n]*: check ID, split and netw"):
        list(PromptFile(f"hub:{file.parent}:train"))
    empty = dataset(tmp_path / "e", {"prompt": "a"}).parent
    pq.write_table(pa.table({"prompt": pa.array([], pa.string())}), empty / "train-00000-of-00001.parquet")
    with pytest.raises(
        InputError, match=r"hub:.*/e:train: can't be read: one of its Parquet files has no row"
    ):
        list(PromptFile(f"hub:{empty}:train"))


def test_without_datasets_the_extra_that_brings_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The harness installs without it."""
    file = dataset(tmp_path / "d", {"prompt": "a"})
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        InputError, match=r"datasets, which reads the hub, .* pip install 'synthgen\[train\]'"
    ):
        list(PromptFile(f"hub:{file.parent}:train"))


class Hub(BaseHTTPRequestHandler):
    """A hub with nothing but refusals, told by the dataset's name."""

    def do_GET(self) -> None:
        """Answer as the hub does: a status, and the kind of error in a header."""
        kinds = {"gated": (403, "GatedRepo"), "revision": (404, "RevisionNotFound")}
        status, code = next(
            (kind for name, kind in kinds.items() if f"/a/{name}" in self.path), (404, "RepoNotFound")
        )
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def hub() -> Iterator[str]:
    """The address of such a hub."""
    server = HTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


READ = """
import sys, time
from synthgen.errors import InputError
from synthgen.sources.prompt_file import PromptFile
for source in sys.argv[1:]:
    started = time.monotonic()
    try:
        list(PromptFile(source))
    except InputError as error:
        print(error)
        assert time.monotonic() - started < 15
"""


def refusals(environment: dict[str, str], *sources: str) -> list[str]:
    """What a process of its own says of these sources: the hub's address is read at import."""
    done = subprocess.run(
        [sys.executable, "-c", READ, *sources],
        env={"PATH": "/usr/bin", "PYTHONPATH": str(ROOT), "NO_PROXY": "127.0.0.1", **environment},
        capture_output=True,
        text=True,
        timeout=110,
        check=True,
    )
    return done.stdout.splitlines()


def test_a_hub_that_refuses_is_told_with_the_remedy(hub: str, tmp_path: Path) -> None:
    """No such dataset, terms to accept, another revision."""
    lines = refusals(
        {"HF_ENDPOINT": hub, "HF_HOME": str(tmp_path)},
        "hub:a/b:train",
        "hub:a/gated:train",
        "hub:a/revision@v2:train",
    )
    assert lines == [
        "hub:a/b:train: the hub has no such dataset, or it is private: check the ID, or set HF_TOKEN",
        "hub:a/gated:train: is gated: accept its terms on its page on the hub and set HF_TOKEN",
        "hub:a/revision@v2:train: the hub has no revision v2 of it",
    ]


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        (
            {"HF_HUB_OFFLINE": "1"},
            "can't be read: Couldn't reach 'a/b' on the Hub (OfflineModeIsEnabled): check ID, split and "
            "network (HF_HUB_OFFLINE), ",
        ),
        ({"HF_ENDPOINT": "http://127.0.0.1:9"}, "the hub can't be reached: "),
    ],
)
def test_a_hub_that_isnt_there_is_told_within_seconds(
    environment: dict[str, str], told: str, tmp_path: Path
) -> None:
    """Offline by choice, or because nothing answers."""
    (line,) = refusals({"HF_HOME": str(tmp_path), **environment}, "hub:a/b:train")
    assert line.startswith(f"hub:a/b:train: {told}")
    assert line.endswith("or download its Parquet files and name those in prompts.sources")

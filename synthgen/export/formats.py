"""The formats: how a row is written in each, and what its card says of columns, types and use."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from synthgen.corpus.samples import DatasetRow
from synthgen.export import jsonl, parquet
from synthgen.export.rows import Json


class Format(enum.StrEnum):
    """What a dataset can be written as."""

    PARQUET = "parquet"
    SPECULATORS = "speculators"
    SPECFORGE = "specforge"
    TORCHSPEC = "torchspec"
    SHAREGPT = "sharegpt"
    OPENAI = "openai"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How one format is written and described."""

    convert: Callable[[DatasetRow], Json] | None
    """A row as a line of JSON; None writes Parquet."""
    exact: bool
    """Whether it carries token ids, and so every row; otherwise rows that text can't carry are left out."""
    columns: dict[str, str]
    """Every column with what it holds."""
    features: tuple[Json, ...]
    """The columns' types as the card's YAML says them; () where the files say them."""
    usage: str
    """What a reader of the card does with it, beside load_dataset."""

    def pattern(self, split: str) -> str:
        """The files of a split, in the export's directory."""
        return f"data/{split}.jsonl" if self.convert else f"data/{split}-*.parquet"

    def write(self, data: Path, split: str, rows: Iterator[DatasetRow]) -> None:
        """Write a split into the directory `data`; one without rows has no file."""
        if self.convert is None:
            parquet.write_parquet(data, split, rows)
            return
        path = data / f"{split}.jsonl"
        jsonl.write_lines(path, map(self.convert, rows))
        if not path.stat().st_size:
            path.unlink()


def _texts(*names: str) -> list[Json]:
    return [{"name": name, "dtype": "string"} for name in names]


ID = {"name": "id", "dtype": "string"}
TOOLS = {"name": "tools", "dtype": "string"}
FUNCTION = {"name": "function", "struct": _texts("name", "arguments")}
TOOL_CALLS = {"name": "tool_calls", "list": [*_texts("id", "type"), FUNCTION]}
REPLY_LAST = "the reply is the last message"
TOOLS_TEXT = "function tools as JSON text"
DROPPED = (
    "Chat templates that know thinking read `reasoning_content`, but some, Kimi's among them, drop it from a "
    "reply that ends its turn, the last one included."
)
SPECFORGE_KEYS = ("role", "content", "reasoning_content", "tool_calls", "tool_call_id", "name")


LAYOUTS: dict[Format, Layout] = {
    Format.PARQUET: Layout(
        convert=None,
        exact=True,
        columns=parquet.COLUMNS,
        features=(),
        usage="Train on `token_ids` with `loss_mask`, or on one kind of `spans`; `messages` is for reading.",
    ),
    Format.SPECULATORS: Layout(
        convert=jsonl.speculators,
        exact=True,
        columns={
            "id": parquet.COLUMNS["id"],
            "input_ids": parquet.COLUMNS["token_ids"],
            "loss_mask": "1 for each supervised token of `input_ids`, else 0",
        },
        features=(ID, {"name": "input_ids", "list": "int32"}, {"name": "loss_mask", "list": "int8"}),
        usage=(
            "speculators takes the ids and the mask as they are, without a server, and cuts rows to its "
            "sequence length:\n\n"
            "    speculators prepare-data --model VERIFIER --data data/train.jsonl --seq-length 8192\n\n"
            "SpecForge reads the same file with `data.prompts_path: data/train.jsonl`."
        ),
    ),
    Format.SPECFORGE: Layout(
        convert=jsonl.specforge,
        exact=False,
        columns={
            "id": parquet.COLUMNS["id"],
            "conversations": f"{', '.join(SPECFORGE_KEYS)} (tool calls as JSON text); "
            f"{REPLY_LAST}; what a message hasn't got is empty text",
            "tools": f"{TOOLS_TEXT}, `[]` without",
        },
        features=(ID, {"name": "conversations", "list": _texts(*SPECFORGE_KEYS)}, TOOLS),
        usage=(
            "In a SpecForge config: `data.train_data_path: data/train.jsonl`, a `data.chat_template` whose "
            "parser is `thinking`, and `data.train_only_last_turn: true` (earlier replies have no thinking). "
            f"{DROPPED} With such a model export the format `speculators`, whose exact ids SpecForge reads "
            "with `data.prompts_path`."
        ),
    ),
    Format.TORCHSPEC: Layout(
        convert=jsonl.torchspec,
        exact=False,
        columns={
            "id": parquet.COLUMNS["id"],
            "conversations": f"role, content with `<think>…</think>` inline, and where there are some "
            f"tool_calls, tool_call_id, name; {REPLY_LAST}",
        },
        features=(
            ID,
            {
                "name": "conversations",
                "list": [*_texts("role", "content", "name", "tool_call_id"), TOOL_CALLS],
            },
        ),
        usage=(
            "In a TorchSpec config: `dataset.train_data_path: data/train.jsonl`, "
            "`dataset.prompt_key: conversations`, `last_turn_loss_only: true` (earlier replies have no "
            "thinking). TorchSpec has no place for the declaration of tools."
        ),
    ),
    Format.SHAREGPT: Layout(
        convert=jsonl.sharegpt,
        exact=False,
        columns={
            "id": parquet.COLUMNS["id"],
            "conversations": "from (human, gpt, system, tool) and value; thinking stands in `<think>` tags, "
            f"each tool call as JSON in `<tool_call>` tags; {REPLY_LAST}",
            "tools": f"{TOOLS_TEXT}, empty without",
        },
        features=(ID, {"name": "conversations", "list": _texts("from", "value")}, TOOLS),
        usage="The shape that LLaMA-Factory calls `sharegpt`.",
    ),
    Format.OPENAI: Layout(
        convert=jsonl.openai,
        exact=False,
        columns={
            "id": parquet.COLUMNS["id"],
            "messages": "role, content and, where there are some, reasoning_content (the thinking), "
            f"tool_calls, tool_call_id, name; {REPLY_LAST}",
            "tools": "function tools, absent without",
        },
        features=(
            ID,
            {
                "name": "messages",
                "list": [
                    *_texts("role", "content", "reasoning_content", "name", "tool_call_id"),
                    TOOL_CALLS,
                ],
            },
            {"name": "tools", "dtype": "json"},
        ),
        usage=(
            f"{DROPPED} Those who train on rendered text have to render the reply themselves, or take the "
            "exact ids of the formats `parquet` and `speculators`. Loading it with `datasets` needs a "
            "version that knows the type `json` (5.2 does)."
        ),
    ),
}

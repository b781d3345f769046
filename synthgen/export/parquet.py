"""Rows as Parquet with a fixed schema: everything a row holds, its exact ids included.

Tool calls keep their arguments as text, so they nest without fields that only some rows have; tools,
which are any JSON, are text as a whole.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from synthgen.corpus.samples import DatasetRow
from synthgen.errors import ConfigError
from synthgen.export.rows import Json, loss_mask, messages, tool_calls

GROUP_ROWS = 1000
GROUP_TOKENS = 1 << 18
"""A row group ends after this many rows or tokens: what is held in memory."""
FILE_BYTES = 256 << 20
"""A split goes on in a new file after this much."""


def require_pyarrow() -> Any:
    """pyarrow with its Parquet part. Raises ConfigError when it isn't installed."""
    try:
        importlib.import_module("pyarrow.parquet")
        return importlib.import_module("pyarrow")
    except ImportError as error:
        raise ConfigError(
            "--format parquet: pyarrow, which writes it, isn't installed: pip install 'synthgen[train]'"
        ) from error


def write_parquet(directory: Path, split: str, rows: Iterable[DatasetRow]) -> None:
    """Write `rows` as files `SPLIT-00000.parquet` and so on; no rows make no file."""
    arrow = require_pyarrow()
    groups = _groups(rows)
    for number, group in enumerate(groups):
        path = directory / f"{split}-{number:05d}.parquet"
        _write_file(arrow, path, itertools.chain((group,), groups))


def _write_file(arrow: Any, path: Path, groups: Iterator[list[DatasetRow]]) -> None:
    """Write row groups until the file is full, or there are no more."""
    schema = _schema(arrow)
    with path.open("wb") as file, arrow.parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for group in groups:
            writer.write_table(arrow.Table.from_pylist([_plain(row) for row in group], schema))
            if file.tell() >= FILE_BYTES:
                return


def _groups(rows: Iterable[DatasetRow]) -> Iterator[list[DatasetRow]]:
    group: list[DatasetRow] = []
    tokens = 0
    for row in rows:
        group.append(row)
        tokens += len(row.token_ids)
        if len(group) == GROUP_ROWS or tokens >= GROUP_TOKENS:
            yield group
            group, tokens = [], 0
    if group:
        yield group


def _plain(row: DatasetRow) -> Json:
    return {
        "id": row.id,
        "part": row.part,
        "source": row.source,
        "domain": row.domain,
        "origin": row.origin,
        "prompt_key": row.prompt,
        "messages": messages(row),
        "thinking": row.thinking,
        "response": row.response,
        "tool_calls": tool_calls(row.tool_calls) or None,
        "tools": msgspec.json.encode(row.tools).decode() if row.tools else None,
        "token_ids": row.token_ids,
        "loss_mask": loss_mask(row),
        "spans": [{"start": span.start, "end": span.end, "kind": span.kind} for span in row.spans],
        "finish": row.finish,
        "truncated_in": row.truncated_in,
        "sampling": None if row.sampling is None else msgspec.structs.asdict(row.sampling),
        "server": row.server,
    }


def _schema(arrow: Any) -> Any:
    text = arrow.string()
    function = arrow.struct([("name", text), ("arguments", text)])
    calls = arrow.list_(arrow.struct([("id", text), ("type", text), ("function", function)]))
    message = arrow.struct(
        [
            ("role", text),
            ("content", text),
            ("reasoning_content", text),
            ("name", text),
            ("tool_calls", calls),
            ("tool_call_id", text),
        ]
    )
    span = arrow.struct([("start", arrow.int32()), ("end", arrow.int32()), ("kind", text)])
    sampling = arrow.struct(
        [
            ("temperature", arrow.float64()),
            ("top_p", arrow.float64()),
            ("max_tokens", arrow.int32()),
            ("thinking", arrow.bool_()),
        ]
    )
    nested = {
        "messages": arrow.list_(message),
        "tool_calls": calls,
        "token_ids": arrow.list_(arrow.int32()),
        "loss_mask": arrow.list_(arrow.int8()),
        "spans": arrow.list_(span),
        "sampling": sampling,
    }
    return arrow.schema([(name, nested.get(name, text)) for name in COLUMNS])


COLUMNS = {
    "id": "the row: prompt, sample index and, after the first, number of the turn",
    "part": "part of the mix",
    "source": "where the prompt came from",
    "domain": "kind of prompt",
    "origin": "native: sampled by the verifier; verbatim: written by somebody else",
    "prompt_key": "digest of the first user message; all rows of one prompt are in one split",
    "messages": "the conversation with the reply last, its thinking as `reasoning_content`",
    "thinking": "text before `</think>`, null without",
    "response": "text after it, null without",
    "tool_calls": "of the reply, null without; arguments are JSON text",
    "tools": "function tools as JSON text, null without",
    "token_ids": "prompt and reply, the server's own ids; unit: tokens",
    "loss_mask": "1 for each supervised token of `token_ids`, else 0",
    "spans": "the same mask as spans [start, end) of tokens, each thinking, response or tool",
    "finish": "stop, length or tool_calls",
    "truncated_in": "thinking or response, where the budget ran out; else null",
    "sampling": "temperature, top_p, max_tokens (tokens) and whether thinking was on; null when verbatim",
    "server": "digest of the server's fingerprint",
}
"""Every column, in order, with what it holds; those that don't nest are text."""

"""A small mixed dataset with one row for each way a reply can end."""

from __future__ import annotations

from typing import Any

from synthgen.corpus.config import RunConfig
from synthgen.corpus.journal import write_journal
from synthgen.corpus.manifest import manifest_of, write_manifest
from synthgen.corpus.records import Finish, FunctionCall, Message, Sampling, ToolCall, TruncatedIn
from synthgen.corpus.samples import DatasetRow, Origin, Span, SpanKind

SAMPLING = Sampling(temperature=1.0, top_p=0.95, max_tokens=64, thinking=True)
PLAIN = Sampling(temperature=1.0, top_p=0.95, max_tokens=64, thinking=False)
CALL = ToolCall(id="functions.weather:0", function=FunctionCall(name="weather", arguments='{"city": "Ulm"}'))
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
T, R, C = SpanKind.THINKING, SpanKind.RESPONSE, SpanKind.TOOL


def spans(*bounds: tuple[int, int, SpanKind]) -> tuple[Span, ...]:
    """Spans from (start, end, kind)."""
    return tuple(Span(start=start, end=end, kind=kind) for start, end, kind in bounds)


def row(number: int, **changes: Any) -> DatasetRow:
    """A row of eight tokens whose reply is the last five, three of them thinking."""
    fields: dict[str, Any] = {
        "id": f"{number:016x}-0",
        "domain": "math",
        "token_ids": (1, 2, 3, 40 + number, 5, 90, 7, 8),
        "spans": spans((3, 6, T), (6, 8, R)),
        "part": "native",
        "source": "seeds.jsonl",
        "origin": Origin.NATIVE,
        "prompt": f"{number:016x}",
        "messages": (Message(role="user", content=f"What is {number} + 1?"),),
        "thinking": "One more.",
        "response": f"It is {number + 1}.",
        "sampling": SAMPLING,
        "server": "f00d",
    }
    return DatasetRow(**(fields | changes))


TRAIN = (
    row(1),
    row(2, thinking=None, sampling=PLAIN, spans=spans((3, 8, R))),
    row(
        3,
        response=None,
        spans=spans((3, 8, T)),
        finish=Finish.LENGTH,
        truncated_in=TruncatedIn.THINKING,
    ),
    row(
        4,
        messages=(Message(role="user", content="Weather in Ulm?"),),
        tools=(TOOL,),
        response=None,
        tool_calls=(CALL,),
        spans=spans((3, 6, T), (6, 8, C)),
        finish=Finish.TOOL_CALLS,
    ),
    row(
        5,
        messages=(
            Message(role="system", content="Be brief."),
            Message(role="user", content="Hi."),
            Message(role="assistant", content="Hello."),
            Message(role="user", content="What is 5 + 1?"),
        ),
    ),
    row(
        6,
        part="blend",
        source="blend.parquet",
        origin=Origin.VERBATIM,
        thinking=None,
        response="Six,\u2028then | seven.",
        spans=spans((3, 8, R)),
        sampling=None,
    ),
)
HELDOUT = (
    row(
        7,
        messages=(
            Message(role="user", content="Weather in Ulm?"),
            Message(role="assistant", tool_calls=(CALL,)),
            Message(role="tool", content="Rain.", tool_call_id="functions.weather:0"),
        ),
        tools=(TOOL,),
        response="It rains.",
    ),
)


def write_dataset(
    config: RunConfig, train: tuple[DatasetRow, ...] = TRAIN, heldout: tuple[DatasetRow, ...] = HELDOUT
) -> None:
    """Write the artifact of `synthgen mix`."""
    write_journal(config.train_path, train)
    write_journal(config.validation_path, heldout)
    figures = {
        "rows": len(train),
        "heldout_rows": len(heldout),
        "parts": {"native": {"asked": 1.0}},
        "content": [one.id for one in (*train, *heldout)],
    }
    manifest = manifest_of("mix", settings={}, inputs={}, figures=figures, seconds=0.0)
    write_manifest(config.dataset_path, manifest)

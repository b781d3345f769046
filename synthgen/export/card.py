"""The dataset card of an export: what it is, how it was made, what is in it, how to load it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from synthgen import __version__
from synthgen.corpus.cards import front_matter, markdown_table, percent, public_name, verifier_name
from synthgen.corpus.config import RunConfig
from synthgen.corpus.samples import Origin
from synthgen.export.counts import Count, Counts
from synthgen.export.formats import Format, Layout
from synthgen.export.rows import LeftOut

TAGS = ("synthetic", "reasoning", "speculative-decoding", "eagle-3")
SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
LARGEST = "1M<n<10M"
WHY = {
    LeftOut.TRUNCATED: "cut by their budget",
    LeftOut.UNANSWERED: "without an answer after the thinking",
    LeftOut.UNSPLIT: "whose thinking the server left in the response, having no reasoning parser",
    LeftOut.UNPARSED: "with tool-call tokens that the server made no tool call of",
}
WRITTEN_IDS = {
    Origin.NATIVE: "Token ids of native rows are those that the server sampled, never re-tokenized text, so "
    "rows that were cut by their budget are exact prefixes and are kept.",
    Origin.VERBATIM: "Token ids of verbatim rows are those that the server gives a text.",
}
BAR_WIDTH = 40
MOST_ROWS = 50
"""Of a table in the card; what is left is summed up."""


def card(
    config: RunConfig, kind: Format, layout: Layout, counts: Counts, server: dict[str, Any] | None
) -> str:
    """The card as Markdown with its YAML front matter; `server` is the corpus' fingerprint, if known."""
    sections = (
        _front(config, kind, layout, counts),
        f"# {config.export.title}\n",
        _about(config, kind, layout, counts),
        _generation(config, counts, server),
        _contents(counts),
        _lengths(counts),
        _columns(layout),
        _loading(layout),
        _license(config),
    )
    return "\n".join(sections)


def _front(config: RunConfig, kind: Format, layout: Layout, counts: Counts) -> str:
    front: dict[str, Any] = {
        "license": config.export.license or "unknown",
        "pretty_name": config.export.title,
        "task_categories": ["text-generation"],
        "tags": [*TAGS, str(kind)],
        "size_categories": [_size(counts.total.rows)],
        "configs": [
            {
                "config_name": "default",
                "data_files": [{"split": name, "path": layout.pattern(name)} for name in counts.splits],
            }
        ],
    }
    if layout.features:
        front["dataset_info"] = {"features": list(layout.features)}
    return front_matter(front)


def _size(rows: int) -> str:
    return next((name for most, name in SIZES if rows < most), LARGEST)


def _about(config: RunConfig, kind: Format, layout: Layout, counts: Counts) -> str:
    rows = " and ".join(f"{count.rows:,} {name}" for name, count in counts.splits.items())
    total = counts.total
    what = (
        f"{rows} rows with {total.tokens:,} tokens, {total.supervised_tokens:,} of them supervised: "
        f"{_written_by(config, counts)}, to train a draft model for speculative decoding (EAGLE-3)."
    )
    ids = (
        " ".join(WRITTEN_IDS[origin] for origin in Origin if counts.origins[origin])
        if layout.exact
        else "This format carries text, not the ids that were sampled: tokenized again it may give others."
    )
    return "\n".join((what, "", f"Format: `{kind}`. {ids}", *_left_out(counts), ""))


def _written_by(config: RunConfig, counts: Counts) -> str:
    """Whose replies the rows have, by their origin."""
    who = {Origin.NATIVE: f"by **{verifier_name(config)}**", Origin.VERBATIM: "by others"}
    told = (f"{counts.origins[one]:,} {who[one]} ({one})" for one in Origin if counts.origins[one])
    return f"replies {' and '.join(told)}"


def _left_out(counts: Counts) -> Iterable[str]:
    if counts.left_out:
        reasons = ", ".join(f"{rows:,} {WHY[why]}" for why, rows in sorted(counts.left_out.items()))
        yield f"Left out, because text can't represent them: {reasons}."


def _generation(config: RunConfig, counts: Counts, server: dict[str, Any] | None) -> str:
    verifier = [("verifier", verifier_name(config))]
    if config.verifier.revision:
        verifier.append(("revision", config.verifier.revision))
    names = {
        "model": "served as",
        "engine": "engine",
        "max_model_len": "longest sequence, tokens",
        "tokenizer": "tokenizer, digest of a probe's ids",
        "template": "chat template, digest of a probe's ids",
    }
    known = {key: value for key, value in (server or {}).items() if value is not None}
    told = [(name, public_name(str(known[key]))) for key, name in names.items() if key in known]
    digests = ", ".join(f"`{name}` ({rows:,} rows)" for name, rows in counts.servers.most_common(MOST_ROWS))
    lines = [
        "## How it was made",
        "",
        f"Made with synthgen {__version__} and a running server of the verifier: it sampled the native "
        f"rows' replies, and tokenized those that others wrote.",
        "",
        *markdown_table(("", ""), [*verifier, *told, ("server fingerprints", digests)]),
        "",
        "Sampling of the native rows:",
        "",
        *markdown_table(
            ("temperature", "top_p", "longest reply, tokens", "thinking", "rows"),
            [
                (f"{s.temperature:g}", f"{s.top_p:g}", f"{s.max_tokens:,}", _on(s.thinking), f"{rows:,}")
                for s, rows in counts.sampling.most_common(MOST_ROWS)
            ],
        ),
        "",
    ]
    return "\n".join(lines)


def _on(thinking: bool) -> str:
    return "on" if thinking else "off"


def _contents(counts: Counts) -> str:
    total = counts.total
    parts = [(part, split, *_figures(count, total)) for (part, split), count in counts.parts.items()]
    by_size = sorted(counts.sources.items(), key=lambda item: -item[1].supervised_tokens)
    sources = [(public_name(name), origin, *_figures(count, total)) for (name, origin), count in by_size]
    rest = len(sources) - MOST_ROWS
    cut = sum(counts.truncated.values())
    heads = ("rows", "tokens", "thinking", "response", "tool", "share")
    return "\n".join(
        (
            "## What is in it",
            "",
            "`tokens` counts prompt and reply; `thinking`, `response` and `tool` are the supervised tokens "
            "by kind; `share` is of all supervised tokens.",
            "",
            *markdown_table(("part", "split", *heads), parts),
            "",
            *markdown_table(("source", "origin", *heads), sources[:MOST_ROWS]),
            *([f"\n{rest:,} more sources."] if rest > 0 else []),
            "",
            f"{percent(counts.with_thinking, total.rows)} of the rows have thinking; "
            f"{percent(total.thinking_tokens, total.supervised_tokens)} of the supervised tokens are "
            f"thinking. {percent(cut, total.rows)} of the rows were cut by their budget: "
            f"{counts.truncated['thinking']:,} in the thinking, {counts.truncated['response']:,} in the "
            f"response.",
            "",
        )
    )


def _figures(count: Count, total: Count) -> tuple[str, ...]:
    counted = (count.rows, count.tokens, count.thinking_tokens, count.response_tokens, count.tool_tokens)
    share = percent(count.supervised_tokens, total.supervised_tokens)
    return (*(f"{number:,}" for number in counted), share)


def _lengths(counts: Counts) -> str:
    most = max(counts.lengths.values())
    lines = (
        f"{up_to:>9,}  {'█' * max(1, round(BAR_WIDTH * rows / most))} {rows:,}"
        for up_to, rows in sorted(counts.lengths.items())
    )
    return "\n".join(("Rows by length, up to this many tokens:", "", "```", *lines, "```", ""))


def _columns(layout: Layout) -> str:
    rows = [(f"`{name}`", meaning) for name, meaning in layout.columns.items()]
    return "\n".join(("## Columns", "", *markdown_table(("column", "what it holds"), rows), ""))


def _loading(layout: Layout) -> str:
    return "\n".join(
        (
            "## Loading it",
            "",
            "```python",
            "from datasets import load_dataset",
            "",
            'data = load_dataset("PATH_OR_REPOSITORY")',
            "```",
            "",
            layout.usage,
            "",
        )
    )


def _license(config: RunConfig) -> str:
    told = (
        f"The dataset is under `{config.export.license}`."
        if config.export.license
        else "No licence was set for this dataset (`export.license`): `unknown` above means just that."
    )
    return "\n".join(
        (
            "## Licence",
            "",
            f"{told} Prompts and verbatim replies stay under the licences of the sources named above, and "
            f"what a model wrote under the terms of that model.",
            "",
        )
    )

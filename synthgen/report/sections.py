"""The sections of a run's report: functions from the run's figures to HTML, empty where there is nothing."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

import msgspec

from synthgen.corpus.config import RunConfig
from synthgen.generate.panel import duration
from synthgen.report.census import Quantiles
from synthgen.report.charts import (
    Marker,
    columns,
    even_axis,
    height_axis,
    line,
    log_axis,
    number,
    share_axis,
    sparkline,
)
from synthgen.report.figures import PartFigures, RunFigures, ScreenFigures
from synthgen.report.histograms import Histogram
from synthgen.report.page import (
    bars,
    charts,
    facts,
    foldable,
    html_table,
    key_figures,
    note,
    quoted,
    table,
    text,
    whole,
)

ROWS = 20
"""Longest table or bars of domains or sources."""
TENTHS = tuple(f"{tenth * 10}%" for tenth in range(11))
UNITS = {"tokens": "supervised tokens", "rows": "rows"}
TIME_UNITS = (("h", 3600.0), ("min", 60.0), ("s", 1.0))


def head(figures: RunFigures) -> str:
    """What ran, on which server, how it was sampled and when."""
    pairs = [("Verifier", figures.verifier)]
    if figures.server:
        pairs.append(("Server", _named(figures.server)))
    if figures.sampling:
        pairs.append(("Sampling", _named(figures.sampling)))
    corpus = figures.corpus
    if corpus is not None and corpus.throughput is not None:
        pairs.append(("Generated", f"{_utc(corpus.throughput.started_at)} to {_utc(corpus.ended_at)}"))
    if figures.stages:
        pairs.append(("Last stage", f"{figures.stages[-1].name}, {_when(figures.stages[-1].written_at)}"))
        pairs.append(("Versions", _versions(figures)))
    empty = corpus is None and not figures.failures and not figures.stages
    return facts(pairs) + (note("Nothing is in this run directory yet.") if empty else "")


def key(figures: RunFigures) -> str:
    """The run in a dozen numbers."""
    corpus, screen = figures.corpus, figures.screen
    if corpus is None:
        return ""
    shown = [
        ("Traces", f"{corpus.traces:,}"),
        ("Failed rows", f"{sum(failure.rows for failure in figures.failures):,}"),
        ("Thinking tokens", f"{corpus.thinking_tokens:,}"),
        ("Response tokens", f"{corpus.response_tokens:,}"),
    ]
    if corpus.tool_tokens:
        shown.append(("Tool tokens", f"{corpus.tool_tokens:,}"))
    shown.append(("Cut by the budget", f"{sum(corpus.truncated.values()) / corpus.traces:.1%}"))
    if screen is not None and screen.kept + screen.dropped:
        shown.append(("Kept", f"{screen.kept / (screen.kept + screen.dropped):.1%}"))
    generated = next((s for s in figures.stages if s.name == "generate" and s.tokens_per_s is not None), None)
    if generated is not None and generated.tokens_per_s is not None:
        shown.append(("Output tokens/s", f"{generated.tokens_per_s:,.0f}"))
    if figures.generate_s is not None:
        shown.append(("Hours of generation", f"{figures.generate_s / 3600:,.2f}"))
    cut = ", ".join(f"{rows:,} in the {part}" for part, rows in sorted(corpus.truncated.items()))
    return key_figures(shown) + (note(f"Cut: {cut}.") if cut else "")


def lengths(figures: RunFigures) -> str:
    """How long replies are, and in which domains."""
    corpus = figures.corpus
    if corpus is None:
        return ""
    drawn = [_lengths("Output tokens", corpus.output_lengths, "plain")]
    names = ["output"]
    if corpus.thinking_shares:
        drawn.append(_lengths("Thinking tokens", corpus.thinking_lengths, "thinking"))
        names.append("thinking")
    if corpus.response_tokens < corpus.tokens:  # else it is all the output
        drawn.append(_lengths("Response tokens", corpus.response_lengths, "response"))
        names.append("response")
    rows = [
        [domain.name, *(_middle(getattr(domain, name)) for name in names)] for domain in corpus.domains[:ROWS]
    ]
    return (
        charts(pair for pair in drawn if pair is not None)
        + "<h3>By domain</h3>"
        + note("Tokens: median / 90th percentile.")
        + table(["Domain", *(name.capitalize() for name in names)], rows)
        + _left_out(corpus.domains)
    )


def thinking(figures: RunFigures) -> str:
    """How much of a reply is thinking."""
    corpus = figures.corpus
    if corpus is None or not corpus.thinking_shares:
        return ""
    drawn = columns(
        "Thinking share",
        corpus.thinking_shares,
        TENTHS,
        x_label="thinking, part of the output tokens",
        y_label="traces",
        kind="thinking",
    )
    rows = [
        [
            text(domain.name),
            f"{domain.traces:,}",
            sparkline(f"{domain.name}: traces by thinking share, in tenths", domain.thinking_shares),
        ]
        for domain in corpus.domains[:ROWS]
        if domain.thinking_shares
    ]
    by_domain = html_table(["Domain", "Traces", "0 to 100 %"], rows, words=(0, 2))
    return charts([("Thinking, part of the output tokens", drawn)]) + "<h3>By domain</h3>" + by_domain


def screening(figures: RunFigures) -> str:
    """What screening dropped and noted, with examples."""
    screen = figures.screen
    if screen is None:
        return ""
    total = max(screen.kept + screen.dropped, 1)
    parts = [note(f"{screen.kept:,} of {screen.kept + screen.dropped:,} traces were kept.")]
    for title, counts in (("Dropped, by reason", screen.by_reason), ("All that was found", screen.tags)):
        if counts:
            rows = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
            parts.append(f"<h3>{text(title)}</h3>" + _counted(rows, total))
    parts += _examples(screen)
    return "".join(parts)


def origins(figures: RunFigures) -> str:
    """Where the traces come from."""
    corpus = figures.corpus
    if corpus is None:
        return ""
    parts = []
    for title, groups in (("Sources", corpus.sources), ("Domains", corpus.domains)):
        rows = [(group.name, group.traces) for group in groups[:ROWS]]
        parts.append(f"<h3>{title}</h3>" + _counted(rows, corpus.traces) + _left_out(groups))
    return "".join(parts)


def mix(config: RunConfig, figures: RunFigures) -> str:
    """The dataset: the share asked of each part against the share it has."""
    if figures.mix is None:
        return ""
    unit = config.mix.unit
    sizes = {name: _size(part, unit) for name, part in figures.mix.parts.items()}
    total = max(sum(sizes.values()), 1)
    asked = {part.name: part.share for part in config.mix.parts}
    shown = []
    for name, size in sizes.items():
        want = f"asked {asked[name]:.1%}" if name in asked else "not in the config"
        shown.append((name, size / total, f"{size / total:.1%}, {want}"))
    rows = [
        [f"{name}, {side}", *map(number, msgspec.structs.astuple(held))]
        for name, part in figures.mix.parts.items()
        for side, held in (("train", part.train), ("heldout", part.heldout))
        if held.rows
    ]
    titles = ["Part", "Rows", "Tokens", "Thinking", "Response", "Tool"]
    return note(f"Shares of {UNITS[unit]}.") + bars(shown) + table(titles, rows)


def failures(figures: RunFigures) -> str:
    """The rows without a reply, by what went wrong."""
    if not figures.failures:
        return ""
    rows = [[failure.kind, f"{failure.rows:,}", failure.example[:300]] for failure in figures.failures]
    return table(["Kind", "Rows", "For instance"], rows, words=(0, 2)) + note(
        "synthgen generate CONFIG --retry-failed sends these rows again."
    )


def vocabulary(figures: RunFigures) -> str:
    """What a draft vocabulary of each size would cover."""
    covered = figures.corpus.coverage if figures.corpus else None
    if figures.corpus is None or covered is None:
        return ""
    at = min(covered.size, covered.distinct)
    mark = Marker(x=at, y=covered.share, text=f"{covered.size:,} ids: {covered.share:.2%}")
    drawn = line(
        "Vocabulary coverage",
        covered.points,
        log_axis("most frequent ids", 1, max(covered.distinct, 2)),
        share_axis("output tokens covered"),
        marker=mark,
    )
    whole = covered.traces == figures.corpus.traces
    drawn_by = "all" if whole else "drawn by chance, with the run's seed, from"
    said = (
        f"Counted over {covered.tokens:,} output tokens of {covered.traces:,} traces ({drawn_by} "
        f"{figures.corpus.traces:,}), which use {covered.distinct:,} different ids. vocab.size is "
        f"{covered.size:,}."
    )
    return charts([("Output tokens covered by the most frequent ids", drawn)]) + note(said)


def speed(figures: RunFigures) -> str:
    """Tokens a second and requests in flight, over time."""
    over_time = figures.corpus.throughput if figures.corpus else None
    if over_time is None:
        return ""
    span = len(over_time.tokens_per_s) * over_time.bin_s
    unit, unit_s = next((unit, s) for unit, s in TIME_UNITS if span >= 2 * s or s == 1)
    x = even_axis(f"{unit} since the first request", 0.0, span / unit_s)
    drawn = []
    for title, label, heights, kind in (
        ("Output tokens a second", "tokens/s", over_time.tokens_per_s, "response"),
        ("Requests in flight", "requests", over_time.in_flight, "plain"),
    ):
        points = [((i + 0.5) * over_time.bin_s / unit_s, height) for i, height in enumerate(heights)]
        y = height_axis(label, max(heights))
        drawn.append((title, line(title, points, x, y, kind=kind)))
    return charts(drawn) + note(
        f"Means over {over_time.bin_s:g} s. Each reply's tokens are spread evenly over its time; failed "
        f"requests are not in it."
    )


def stages(figures: RunFigures) -> str:
    """What each stage's manifest says."""
    if not figures.stages:
        return ""
    rows = [
        [
            text(stage.name if stage.complete else f"{stage.name} (not complete)"),
            text(stage.directory),
            whole(duration(stage.seconds)),
            "" if stage.tokens_per_s is None else f"{stage.tokens_per_s:,.0f}",
            whole(_when(stage.written_at)),
            whole(stage.git_revision or ""),
        ]
        for stage in figures.stages
    ]
    titles = ["Stage", "Directory", "Time", "Tokens/s", "Written", "Revision"]
    return html_table(titles, rows, words=(0, 1)) + note(
        f"All stages together: {duration(sum(stage.seconds for stage in figures.stages))}."
    )


def _lengths(title: str, counted: Histogram | None, kind: str) -> tuple[str, str] | None:
    if counted is None:
        return None
    edges = [number(edge) for edge in counted.edges]
    return title, columns(title, counted.counts, edges, x_label="tokens", y_label="traces", kind=kind)


def _middle(quantiles: Quantiles) -> str:
    return f"{quantiles.median:,} / {quantiles.p90:,}"


def _counted(rows: Sequence[tuple[str, int]], total: int) -> str:
    most = max(count for _, count in rows)
    return bars((name, count / max(most, 1), f"{count:,} · {count / total:.1%}") for name, count in rows)


def _left_out(groups: Sequence[object]) -> str:
    return note(f"{len(groups) - ROWS:,} more are left out here.") if len(groups) > ROWS else ""


def _examples(screen: ScreenFigures) -> list[str]:
    return [
        foldable(
            f"Examples of {tag}",
            "".join(f"<code>{text(example.trace)}</code>{quoted(example.excerpt)}" for example in examples),
        )
        for tag, examples in sorted(screen.examples.items())
        if examples
    ]


def _size(part: PartFigures, unit: str) -> int:
    sides = (part.train, part.heldout)
    return sum(side.supervised if unit == "tokens" else side.rows for side in sides)


def _named(values: dict[str, object]) -> str:
    words = {True: "on", False: "off"}
    return ", ".join(
        f"{name} {words[value] if isinstance(value, bool) else value}"
        for name, value in values.items()
        if value is not None
    )


def _versions(figures: RunFigures) -> str:
    """Each package with its version, or all of them with the stages when stages differ."""
    by_package: dict[str, dict[str, list[str]]] = {}
    for stage in figures.stages:
        for package, version in stage.versions.items():
            by_package.setdefault(package, {}).setdefault(version, []).append(stage.name)
    return ", ".join(
        f"{package} {version}" + (f" ({', '.join(dict.fromkeys(names))})" if len(versions) > 1 else "")
        for package, versions in by_package.items()
        for version, names in versions.items()
    )


def _utc(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")


def _when(written_at: str) -> str:
    return _utc(datetime.datetime.fromisoformat(written_at).timestamp())

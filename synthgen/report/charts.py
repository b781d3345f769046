"""Charts as SVG text: columns and lines, with axes that read well at the width of a phone.

A chart is 360 units wide, so at 330 pixels its text of 12 units is 11 pixels high. Colours are the
classes of the page's style sheet: `thinking`, `response`, `tool` and `plain`. Each chart has a title and a
description.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from synthgen.report.histograms import nice_step
from synthgen.report.page import text

WIDTH, HEIGHT = 360, 210
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 24, 40
"""Margins: numbers and the name of the y-axis, numbers and the name of the x-axis."""
PLOT_WIDTH, PLOT_HEIGHT = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
LETTER = 7
"""Width of a letter of a label, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """What lies between `low` and `high`, with the places that are named."""

    label: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    log: bool = False

    def at(self, value: float) -> float:
        """The place of a value, from 0 at `low` to 1 at `high`."""
        if self.log:
            value, low, high = math.log(value), math.log(self.low), math.log(self.high)
        else:
            low, high = self.low, self.high
        return (value - low) / (high - low) if high > low else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """A point of a line that is named."""

    x: float
    y: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One of several lines of a chart."""

    name: str
    kind: str
    points: Sequence[tuple[float, float]]


def number(value: float) -> str:
    """A number as people read it: 1,234; 120k; 1.5M; 0.25."""
    for unit, name in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= max(unit, 1e5):
            return f"{value / unit:.3g}{name}"
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.3g}"


def percent(value: float) -> str:
    """A share as people read it."""
    return f"{value:.0%}"


def height_axis(label: str, highest: float) -> Axis:
    """From 0 to the first named number that isn't below `highest`."""
    step = nice_step(highest or 1, 4)
    steps = math.ceil((highest or 1) / step - 1e-9)
    return Axis(
        label=label,
        low=0.0,
        high=steps * step,
        ticks=tuple((i * step, number(i * step)) for i in range(steps + 1)),
    )


def share_axis(label: str) -> Axis:
    """From 0 to 100 %."""
    return Axis(label=label, low=0.0, high=1.0, ticks=tuple((i / 4, percent(i / 4)) for i in range(5)))


def even_axis(label: str, low: float, high: float) -> Axis:
    """From `low` to `high`, with the multiples of a nice number between them named."""
    step = nice_step((high - low) or 1, 5)
    ticks = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    return Axis(label=label, low=low, high=high, ticks=tuple((i * step, number(i * step)) for i in ticks))


def count_axis(label: str, low: int, high: int) -> Axis:
    """From one whole number to another, with whole numbers named."""
    step = max(1, int(nice_step((high - low) or 1, 5)))
    ticks = tuple((float(value), number(value)) for value in range(low, high + 1, step))
    return Axis(label=label, low=float(low), high=float(high), ticks=ticks)


def log_axis(label: str, low: float, high: float) -> Axis:
    """From `low` (above 0) to `high`, powers of ten named; below two decades 2 and 5 times them too."""
    times = (1, 2, 5) if high < 100 * low else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    values = [factor * 10.0**power for power in powers for factor in times]
    ticks = tuple((value, number(value)) for value in values if low <= value <= high)
    return Axis(label=label, low=low, high=high, ticks=ticks, log=True)


def columns(
    title: str,
    counts: Sequence[int],
    edges: Sequence[str],
    *,
    x_label: str,
    y_label: str,
    kind: str = "plain",
) -> str:
    """A histogram: one column a count, all of one width, between named edges (one more than counts)."""
    y = height_axis(y_label, max(counts))
    width = PLOT_WIDTH / len(counts)
    every = math.ceil((max(map(len, edges)) + 1) * LETTER / width)
    x = Axis(
        label=x_label,
        low=0,
        high=len(counts),
        ticks=tuple((i, edges[i]) for i in range(0, len(edges), every)),
    )
    top = max(range(len(counts)), key=counts.__getitem__)
    description = (
        f"{len(counts)} columns from {edges[0]} to {edges[-1]} ({x_label}); the highest, from "
        f"{edges[top]} to {edges[top + 1]}, is {counts[top]:,} ({y_label})."
    )
    drawn = []
    for i, count in enumerate(counts):
        height = y.at(count) * PLOT_HEIGHT
        place = f'x="{_n(LEFT + i * width + 0.5)}" y="{_n(TOP + PLOT_HEIGHT - height)}"'
        size = f'width="{_n(max(width - 1, 0.5))}" height="{_n(height)}"'
        said = text(f"{edges[i]} to {edges[i + 1]}: {count:,}")
        drawn.append(f'<rect class="{kind}" {place} {size}><title>{said}</title></rect>')
    return _svg(title, description, _axes(x, y) + "".join(drawn))


def line(
    title: str,
    points: Sequence[tuple[float, float]],
    x: Axis,
    y: Axis,
    *,
    kind: str = "plain",
    marker: Marker | None = None,
) -> str:
    """A line through points, on axes that hold them."""
    lowest, highest = min(points, key=lambda p: p[1]), max(points, key=lambda p: p[1])
    description = (
        f"{y.label} from {number(lowest[1])} at {number(lowest[0])} to {number(highest[1])} at "
        f"{number(highest[0])} ({x.label})." + (f" {marker.text}." if marker else "")
    )
    path = " ".join(f"{_n(_x(x, px))},{_n(_y(y, py))}" for px, py in points)
    drawn = f'<polyline class="line {kind}" points="{path}"/>'
    return _svg(title, description, _axes(x, y) + drawn + (_mark(x, y, marker) if marker else ""))


def curves(title: str, shown: Sequence[Curve], x: Axis, y: Axis) -> str:
    """Several lines on the same axes, named above the plot."""
    description = " ".join(
        f"{curve.name}: {y.label} from {number(curve.points[0][1])} at {number(curve.points[0][0])} to "
        f"{number(curve.points[-1][1])} at {number(curve.points[-1][0])} ({x.label})."
        for curve in shown
    )
    drawn, right = "", WIDTH
    for curve in reversed(shown):
        right -= len(curve.name) * LETTER + 22
        drawn = (
            _curve(curve, x, y)
            + f'<rect class="{curve.kind}" x="{right}" y="6" width="10" height="4"/>'
            + _label(right + 14, 12, "start", curve.name)
            + drawn
        )
    return _svg(title, description, _axes(x, y) + drawn)


def _curve(curve: Curve, x: Axis, y: Axis) -> str:
    """A line; of a single point, which has none, a dot."""
    places = [(_n(_x(x, px)), _n(_y(y, py))) for px, py in curve.points]
    if len(places) == 1:
        return f'<circle class="{curve.kind}" cx="{places[0][0]}" cy="{places[0][1]}" r="3"/>'
    path = " ".join(",".join(place) for place in places)
    return f'<polyline class="line {curve.kind}" points="{path}"/>'


def sparkline(title: str, counts: Sequence[int]) -> str:
    """A histogram of the size of a word, without axes."""
    height, width, most = 22, 90, max(max(counts), 1)
    step = width / len(counts)
    drawn = "".join(
        f'<rect class="thinking" x="{_n(i * step)}" y="{_n(height - count / most * height)}" '
        f'width="{_n(step - 1)}" height="{_n(count / most * height)}"/>'
        for i, count in enumerate(counts)
    )
    base = f'<line class="grid" x1="0" y1="{height}" x2="{width}" y2="{height}"/>'
    box = f'viewBox="0 0 {width} {height + 1}" role="img" aria-label="{text(title)}"'
    return f'<svg class="spark" {box}><title>{text(title)}</title>{base}{drawn}</svg>'


def _axes(x: Axis, y: Axis) -> str:
    right, base = LEFT + PLOT_WIDTH, TOP + PLOT_HEIGHT
    parts = [_label(2, 12, "start", y.label), _label(right, HEIGHT - 4, "end", x.label)]
    for value, said in y.ticks:
        at = _y(y, value)
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{_n(at)}" x2="{right}" y2="{_n(at)}"/>')
        parts.append(_label(LEFT - 6, at + 4, "end", said))
    for value, said in x.ticks:
        at = _x(x, value)
        parts.append(f'<line class="tick" x1="{_n(at)}" y1="{base}" x2="{_n(at)}" y2="{base + 4}"/>')
        if at + len(said) * LETTER / 2 > WIDTH:
            parts.append(_label(WIDTH, base + 17, "end", said))
        else:
            parts.append(_label(at, base + 17, "middle", said))
    return "".join(parts)


def _label(x: float, y: float, anchor: str, said: str) -> str:
    return f'<text x="{_n(x)}" y="{_n(y)}" text-anchor="{anchor}">{text(said)}</text>'


def _mark(x: Axis, y: Axis, marker: Marker) -> str:
    at_x, at_y = _x(x, marker.x), _y(y, marker.y)
    right = at_x + len(marker.text) * LETTER > WIDTH
    away = TOP + PLOT_HEIGHT - 8 if at_y < TOP + PLOT_HEIGHT / 2 else TOP + 12  # where the line is not
    return (
        f'<line class="mark" x1="{_n(at_x)}" y1="{TOP}" x2="{_n(at_x)}" y2="{TOP + PLOT_HEIGHT}"/>'
        f'<circle class="mark" cx="{_n(at_x)}" cy="{_n(at_y)}" r="4"/>'
        f'<text class="said" x="{_n(at_x - 7 if right else at_x + 7)}" y="{_n(away)}" '
        f'text-anchor="{"end" if right else "start"}">{text(marker.text)}</text>'
    )


def _svg(title: str, description: str, drawn: str) -> str:
    name = re.sub(r"[^a-z0-9]+", "-", title.lower())
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-labelledby="{name}-title {name}-desc"><title id="{name}-title">{text(title)}</title>'
        f'<desc id="{name}-desc">{text(description)}</desc>{drawn}</svg>'
    )


def _x(axis: Axis, value: float) -> float:
    return LEFT + axis.at(value) * PLOT_WIDTH


def _y(axis: Axis, value: float) -> float:
    return TOP + (1 - axis.at(value)) * PLOT_HEIGHT


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")

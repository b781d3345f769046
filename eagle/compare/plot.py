"""The comparison as a plot: a point and its interval for each draft, of all replies and of each group.

SVG of its own, with its style inside, light and dark: it is shown as it is, or set into a page.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from eagle.compare.report import Compared, Comparison

WIDTH, LEFT, RIGHT = 640, 170, 70
"""Room for names on the left and for numbers on the right of the plot."""
TOP, ROW, HEAD, GAP, FOOT = 12, 20, 22, 10, 46
COLOURS = ("#4a6fa5", "#2f7d32", "#b3712d", "#0e7c86", "#b3261e", "#7a5fb3")
TICKS = 6
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1b1f24}text.soft{fill:#57606a}line.grid{stroke:#d8dee4}"
    "@media(prefers-color-scheme:dark){text{fill:#e6e9ed}text.soft{fill:#a2acb8}line.grid{stroke:#303842}}"
)


class Scale:
    """Tokens a step along the width, with the values that are named."""

    def __init__(self, shown: Sequence[Compared]) -> None:
        least = min((one.interval.low if one.interval else one.length for one in shown), default=1.0)
        most = max((one.interval.high if one.interval else one.length for one in shown), default=2.0)
        span = most - least or 1.0
        step = 10.0 ** math.floor(math.log10(span / TICKS))
        self.step = next(step * times for times in (1, 2, 5, 10) if span / (step * times) <= TICKS)
        self.low = math.floor(least / self.step) * self.step
        self.high = max(math.ceil(most / self.step) * self.step, self.low + self.step)

    @property
    def ticks(self) -> list[float]:
        """The values that are named."""
        count = round((self.high - self.low) / self.step)
        return [self.low + self.step * at for at in range(count + 1)]

    def at(self, value: float) -> float:
        """The place of a value."""
        return LEFT + (value - self.low) / (self.high - self.low) * (WIDTH - LEFT - RIGHT)


def forest(found: Comparison) -> str:
    """The plot of a comparison, as one SVG."""
    scale = Scale([one for draft in found.drafts for one in draft.groups.values()])
    drawn, y = [], TOP
    for group in dict.fromkeys(name for draft in found.drafts for name in draft.groups):
        drawn.append(_text(8, y + 15, group, "soft"))
        y += HEAD
        for number, draft in enumerate(found.drafts):
            if (one := draft.groups.get(group)) is not None:
                drawn.append(_text(LEFT - 12, y + 14, draft.name, "", "end"))
                drawn.append(_point(one, y + 10, COLOURS[number % len(COLOURS)], scale))
                y += ROW
        y += GAP
    title = f"Tokens a verify step, {found.num_draft_tokens} draft tokens, 95 % intervals over prompts"
    grid = "".join(_tick(value, y, scale) for value in scale.ticks)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + FOOT}" role="img">'
        f"<title>{html.escape(title)}</title><desc>{html.escape('; '.join(found.findings))}</desc>"
        f"<style>{STYLE}</style>{grid}{''.join(drawn)}"
        f"{_text(WIDTH - RIGHT, y + FOOT - 8, title, 'soft', 'end')}</svg>\n"
    )


def _point(one: Compared, y: float, colour: str, scale: Scale) -> str:
    at = scale.at(one.length)
    dot = f'<circle cx="{at:.1f}" cy="{y}" r="4.5" fill="{colour}"/>'
    value = _text(WIDTH - RIGHT + 12, y + 4, f"{one.length:.3f}")
    if one.interval is None:
        return dot + value
    ends = f'x1="{scale.at(one.interval.low):.1f}" x2="{scale.at(one.interval.high):.1f}"'
    return f'<line {ends} y1="{y}" y2="{y}" stroke="{colour}" stroke-width="2"/>{dot}{value}'


def _tick(value: float, base: float, scale: Scale) -> str:
    at = f"{scale.at(value):.1f}"
    line = f'<line class="grid" x1="{at}" x2="{at}" y1="{TOP}" y2="{base}"/>'
    return line + _text(scale.at(value), base + 16, f"{value:.10g}", "soft", "middle")


def _text(x: float, y: float, said: str, kind: str = "", anchor: str = "start") -> str:
    attributes = f'class="{kind}" ' if kind else ""
    return f'<text {attributes}x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(said)}</text>'

"""Conversations and replies on a terminal: each part under its label, in its colour.

What models and datasets write may hold control characters, escape sequences among them: none reaches the
terminal as it is.
"""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from synthgen.corpus.console import printable
from synthgen.corpus.samples import SpanKind

PROMPT_STYLE = "dim"
STYLES = {SpanKind.THINKING: "cyan", SpanKind.RESPONSE: "green", SpanKind.TOOL: "yellow"}


def print_part(out: Console, label: str, text: str, style: str) -> None:
    """Print one part: its label in brackets, so that it is known without colours, then what it says."""
    out.print(Text(f"[{printable(label)}]", style=f"bold {style}"))
    if text:
        out.print(Text(printable(text), style=style))

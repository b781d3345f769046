"""Conversations and replies on a terminal: each part under its label, in its colour.

What models and datasets write may hold control characters, escape sequences among them: none reaches the
terminal as it is.
"""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from synthgen.corpus.samples import SpanKind

PROMPT_STYLE = "dim"
STYLES = {SpanKind.THINKING: "cyan", SpanKind.RESPONSE: "green", SpanKind.TOOL: "yellow"}
_PICTURES = {code: 0x2400 + code for code in range(0x20) if code not in (0x09, 0x0A)}
_CONTROLS = _PICTURES | {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


def printable(text: str) -> str:
    """`text` with its control characters, newline and tab aside, as pictures of themselves: ESC is ␛."""
    return text.replace("\r\n", "\n").translate(_CONTROLS)


def print_part(out: Console, label: str, text: str, style: str) -> None:
    """Print one part: its label in brackets, so that it is known without colours, then what it says."""
    out.print(Text(f"[{printable(label)}]", style=f"bold {style}"))
    if text:
        out.print(Text(printable(text), style=style))

"""One HTML page of its own: style inside, no scripts, nothing fetched; light and dark, phone, desk and paper.

Functions take plain text and return HTML, escaped; what is HTML already is called `inner`, `cells` or `body`.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

from synthgen.corpus.console import printable

STYLE = """
:root{color-scheme:light dark;--paper:#fff;--ink:#1b1f24;--soft:#57606a;--rule:#d8dee4;--panel:#f6f8fa;
--plain:#4a6fa5;--thinking:#0e7c86;--response:#2f7d32;--tool:#9a6700;--mark:#b3261e}
@media (prefers-color-scheme:dark){:root{--paper:#10141a;--ink:#e6e9ed;--soft:#a2acb8;--rule:#303842;
--panel:#181e26;--plain:#7fa6dc;--thinking:#4fc3cf;--response:#7cc67f;--tool:#e0b040;--mark:#ff8a80}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Liberation Sans",sans-serif}
main{max-width:1120px;margin:0 auto;padding:1rem}
h1{font-size:1.5rem;line-height:1.25;margin:.5rem 0;overflow-wrap:anywhere}
h2{font-size:1.2rem;margin:2.25rem 0 .75rem;padding-top:.75rem;border-top:1px solid var(--rule)}
h3{font-size:1rem;margin:1.25rem 0 .5rem}
p{margin:.5rem 0;max-width:72ch}
p,li,summary,dd,.words{overflow-wrap:anywhere}
.note{color:var(--soft);font-size:.9rem}
nav{display:flex;flex-wrap:wrap;gap:.25rem 1rem;font-size:.9rem;margin:.75rem 0}
a{color:inherit;text-decoration-color:var(--soft);text-underline-offset:.2em}
.figures{display:grid;grid-template-columns:repeat(auto-fill,minmax(9.5rem,1fr));gap:.5rem;margin:0}
.figures div{background:var(--panel);border-radius:6px;padding:.6rem .75rem}
.figures dt{color:var(--soft);font-size:.85rem}
.figures dd{margin:0;font-size:1.25rem;font-variant-numeric:tabular-nums}
.facts{display:grid;grid-template-columns:minmax(6rem,max-content) 1fr;gap:.15rem 1rem;margin:.5rem 0;
font-size:.95rem}
.facts dt{color:var(--soft)}
.facts dd{margin:0;min-width:0}
.charts{display:grid;margin:1rem 0;
grid-template-columns:repeat(auto-fill,minmax(min(100%,20.5rem),1fr));gap:1rem 1.5rem}
figure{margin:0;min-width:0;break-inside:avoid}
figcaption{font-weight:600;font-size:.95rem}
svg{display:block;width:100%;height:auto;overflow:visible}
svg.chart{max-width:33rem}
svg.spark{width:5.6rem}
svg text{font-size:12px;fill:var(--soft);font-variant-numeric:tabular-nums}
svg text.said{fill:var(--ink)}
.grid{stroke:var(--rule)}.tick{stroke:var(--soft)}
rect.plain,circle.plain{fill:var(--plain)}rect.thinking,circle.thinking{fill:var(--thinking)}
rect.response,circle.response{fill:var(--response)}rect.tool,circle.tool{fill:var(--tool)}
.line{fill:none;stroke-width:2;stroke-linejoin:round}
.line.plain{stroke:var(--plain)}.line.thinking{stroke:var(--thinking)}
.line.response{stroke:var(--response)}.line.tool{stroke:var(--tool)}
line.mark{stroke:var(--mark);stroke-dasharray:4 3}circle.mark{fill:var(--mark)}
.whole{white-space:nowrap}
.scroll{overflow-x:auto;margin:.5rem 0}
table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:.3rem .6rem;border-bottom:1px solid var(--rule);vertical-align:top}
th:first-child,td:first-child{padding-left:0}
th.words,td.words{text-align:left}
.words{min-width:6rem}
thead th{color:var(--soft);font-weight:600;vertical-align:bottom}
tbody th{font-weight:400}
.bars{list-style:none;margin:.5rem 0;padding:0;max-width:46rem}
.bars li{display:grid;grid-template-columns:minmax(0,1fr) auto;gap:0 .75rem;margin:.45rem 0;font-size:.9rem;
break-inside:avoid}
.bars span{min-width:0}
.bars b{font-weight:400;font-variant-numeric:tabular-nums;text-align:right}
.bars i{grid-column:1/-1;height:.6rem;border-radius:2px;background:var(--panel);overflow:hidden}
.bars i u{display:block;height:100%;min-width:1px;background:var(--plain)}
@media (max-width:30rem){table{font-size:.82rem}th,td{padding:.3rem .3rem}}
details{margin:.5rem 0;border:1px solid var(--rule);border-radius:6px;padding:.4rem .75rem}
summary{cursor:pointer}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:var(--panel);border-radius:6px;
padding:.6rem .75rem;margin:.35rem 0 .75rem;font:.85rem/1.45 ui-monospace,"Liberation Mono",monospace}
code{font:.9em ui-monospace,"Liberation Mono",monospace;overflow-wrap:anywhere}
@media print{:root{color-scheme:light;--paper:#fff;--ink:#000;--soft:#444;--rule:#bbb;--panel:#f2f2f2;
--plain:#4a6fa5;--thinking:#0e7c86;--response:#2f7d32;--tool:#9a6700;--mark:#b3261e}
body{font-size:11pt}nav{display:none}main{max-width:none;padding:0}h2{break-after:avoid}
.charts{grid-template-columns:1fr 1fr}tr{break-inside:avoid}.whole{white-space:nowrap}
.scroll{overflow:visible}
rect,u,i,.figures div,pre{print-color-adjust:exact;-webkit-print-color-adjust:exact}
details::details-content{content-visibility:visible;height:auto}}
"""


def text(value: object) -> str:
    """Anything as HTML text: escaped, control characters as pictures of themselves."""
    return html.escape(printable(str(value)))


def page(title: str, sections: Iterable[tuple[str, str]]) -> str:
    """The whole page, from (heading, body) pairs, the page's head first; an empty body leaves its out."""
    (heading, head), *rest = sections
    shown = [(name, body) for name, body in rest if body]
    links = "".join(f'<a href="#{_anchor(name)}">{text(name)}</a>' for name, _ in shown)
    bodies = "".join(
        f'<section id="{_anchor(name)}"><h2>{text(name)}</h2>\n{body}</section>\n' for name, body in shown
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{text(title)}</title><style>{STYLE}</style></head>\n"
        f"<body><main><header><h1>{text(heading)}</h1>{head}</header>\n"
        + (f'<nav aria-label="Sections">{links}</nav>\n' if links else "")
        + f"{bodies}</main></body></html>\n"
    )


def whole(said: str) -> str:
    """Text that stays on one line."""
    return f'<span class="whole">{text(said)}</span>'


def note(said: str) -> str:
    """A remark in small print."""
    return f'<p class="note">{text(said)}</p>'


def key_figures(figures: Iterable[tuple[str, str]]) -> str:
    """Names and large numbers."""
    cells = "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in figures)
    return f'<dl class="figures">{cells}</dl>\n'


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Names and what is to say of them, one a line."""
    cells = "".join(f"<dt>{text(name)}</dt><dd>{text(value)}</dd>" for name, value in pairs)
    return f'<dl class="facts">{cells}</dl>\n'


def charts(drawn: Iterable[tuple[str, str]]) -> str:
    """Charts (caption, SVG) beside each other where there is room."""
    figures = "".join(f"<figure><figcaption>{text(name)}</figcaption>{svg}</figure>\n" for name, svg in drawn)
    return f'<div class="charts">{figures}</div>\n'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, words: Sequence[int] = (0,)) -> str:
    """A table; the columns `words` hold text, the others numbers."""
    return html_table(head, ([text(cell) for cell in row] for row in rows), words=words)


def html_table(head: Sequence[str], rows: Iterable[Sequence[str]], *, words: Sequence[int] = (0,)) -> str:
    """A table whose cells are HTML already."""

    def cell(tag: str, column: int, inner: str) -> str:
        kind = ' class="words"' if column in words else ""
        return f"<{tag}{kind}>{inner}</{tag}>"

    top = "".join(cell("th", i, text(name)) for i, name in enumerate(head))
    body = "".join("<tr>" + "".join(cell("td", i, c) for i, c in enumerate(row)) + "</tr>\n" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead>\n<tbody>{body}</tbody></table></div>\n'


def bars(rows: Iterable[tuple[str, float, str]]) -> str:
    """Horizontal bars: name, share of the full width from 0 to 1, and the number that is written."""
    items = "".join(
        f'<li><span>{text(name)}</span><b>{text(said)}</b><i><u style="width:{share:.2%}"></u></i></li>\n'
        for name, share, said in rows
    )
    return f'<ul class="bars">{items}</ul>\n'


def foldable(summary: str, body: str) -> str:
    """Something that opens at a click, and is open on paper."""
    return f"<details><summary>{text(summary)}</summary>{body}</details>\n"


def quoted(said: str) -> str:
    """A passage as it was written."""
    return f"<pre>{text(said)}</pre>"


def _anchor(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")

"""Time and disk of each stage, against the plan that was kept from before the first."""

from __future__ import annotations

from synthgen.corpus.files import in_units
from synthgen.generate.panel import duration
from synthgen.report.figures import RunFigures
from synthgen.report.page import note, table


def spent(figures: RunFigures) -> str:
    """Time and disk of each stage, against what was planned before the first."""
    if not figures.planned:
        return ""
    took = {stage.name: stage.seconds for stage in figures.stages if stage.complete}
    rows = []
    for name, planned in figures.planned.items():
        held = figures.held_bytes.get(name, 0)
        rows.append(
            [
                name,
                f"{planned.tokens:,}",
                duration(planned.load_s + planned.work_s),
                duration(took[name]) if name in took else "not yet",
                in_units(planned.disk_bytes) if planned.disk_bytes else "",
                in_units(held) if held else "",
            ]
        )
    titles = ["Stage", "Tokens, at most", "Time, planned", "Time, spent", "Disk, planned", "Disk, held"]
    return table(titles, rows) + note(
        "Planned before the first stage, by the assumed speeds, each reply as long as it may be. States that "
        "came with the replies are planned for the stage that generates, and held by the one that packs them."
    )

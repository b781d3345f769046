"""A run directory as one page to read: `report.html`, with what is there and without what isn't."""

from __future__ import annotations

from pathlib import Path

from synthgen.corpus.config import RunConfig
from synthgen.corpus.files import written_aside
from synthgen.report import sections
from synthgen.report.acceptance import acceptance
from synthgen.report.figures import RunFigures
from synthgen.report.page import page
from synthgen.report.spent import spent
from synthgen.report.training import training

FILE_NAME = "report.html"


def report_html(config: RunConfig, figures: RunFigures) -> str:
    """The page of a run's figures."""
    title = f"{figures.run_dir}: {figures.verifier}"
    return page(
        title,
        (
            (title, sections.head(figures)),
            ("Key figures", sections.key(figures)),
            ("Lengths", sections.lengths(figures)),
            ("Thinking share", sections.thinking(figures)),
            ("Screening", sections.screening(figures)),
            ("Sources and domains", sections.origins(figures)),
            ("Mix", sections.mix(config, figures)),
            ("Failures", sections.failures(figures)),
            ("Vocabulary coverage", sections.vocabulary(figures)),
            ("Throughput", sections.speed(figures)),
            ("Training", training(figures.training)),
            ("Acceptance", acceptance(figures.acceptance)),
            ("Against the plan", spent(figures)),
            ("What ran", sections.stages(figures)),
        ),
    )


def write_report(config: RunConfig, figures: RunFigures, out: Path | None = None) -> Path:
    """Write the page to `out`, else into the run directory; return where it is."""
    path = out or config.run_path / FILE_NAME
    with written_aside(path) as aside:
        aside.write_text(report_html(config, figures), encoding="utf-8")
    return path

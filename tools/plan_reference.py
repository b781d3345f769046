"""Write the plan of configs/kimi-k2.5.yaml into its runbook, docs/kimi-k2.5.md.

python -m tools.plan_reference
"""

from __future__ import annotations

import re
from pathlib import Path

from synthgen.corpus.files import in_units
from synthgen.corpus.settings import load_config
from synthgen.generate.panel import duration
from synthgen.plan.costs import Plan, StagePlan
from synthgen.plan.stages import plan

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/kimi-k2.5.md"
NEVER_RUN = "runs/planned-only"
CONFIG = ROOT / "configs/kimi-k2.5.yaml"
BEGIN = "<!-- Made by `python -m tools.plan_reference`. -->"
END = "<!-- The end of it. -->"
BLOCK = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)


def page() -> str:
    """The page's text, with the plan as it is now."""
    config = load_config(CONFIG, (f"run_dir={NEVER_RUN}",))  # so that nothing measured here counts
    block = f"{BEGIN}\n\n{plan_text(plan(config))}\n\n{END}"
    return BLOCK.sub(lambda _: block, PAGE.read_text(encoding="utf-8"))


def plan_text(made: Plan) -> str:
    """The plan as a table and a sentence."""
    whole = f"{duration(made.load_s + made.work_s)} with the starts"
    rows = [
        "| stage | rows | tokens | disk | starts of vLLM | work |",
        "| --- | --- | --- | --- | --- | --- |",
        *(_row(stage) for stage in made.stages),
        f"| all | | | {in_units(made.disk_bytes)} | {duration(made.load_s)} | {whole} |",
        "",
        f"The starts outlast the work below {made.rows_worth_the_load:,} rows: more cost little until then.",
    ]
    return "\n".join(rows)


def _row(stage: StagePlan) -> str:
    disk = in_units(stage.disk_bytes) if stage.disk_bytes else ""
    starts = f"{stage.starts} × {duration(stage.load_s / stage.starts)}" if stage.starts else ""
    work = duration(stage.work_s)
    return f"| {stage.name} | {stage.rows:,} | {stage.tokens:,} | {disk} | {starts} | {work} |"


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()

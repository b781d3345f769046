"""The report as it is printed."""

from __future__ import annotations

import msgspec
import pytest

from eagle.accept.bootstrap import Interval
from eagle.accept.report import AcceptanceReport, AtConcurrency, DraftTokens, Offline, Speed
from eagle.accept.steps import Breakdown, StepFigures
from eagle.accept.table import print_report

FIGURES = StepFigures(steps=12_345, length=2.725, rate_by_position=(0.754, 0.549, 0.422))
BREAKDOWN = Breakdown(
    prompts=64,
    whole=FIGURES,
    interval=Interval(low=2.622, high=2.823),
    by_domain={"a_domain_with_a_name_that_is_far_too_long_for_a_table": FIGURES, "math": FIGURES},
    by_span={"thinking": FIGURES, "response": FIGURES},
)
OFFLINE = Offline(walked=BREAKDOWN, every_slot=2.823, by_draft_tokens=(FIGURES,) * 3)
SPEED = Speed(tokens_per_s=12_345.6, seconds_mean=123.45, seconds_p95=234.56, first_token_s=0.1)
REPORT = AcceptanceReport(
    acceptance_length=2.764,
    rate_by_position=(0.757, 0.577, 0.429),
    length_by_domain={"math": 2.8, "[red]odd": 2.5},
    length_by_draft_tokens=tuple(
        DraftTokens(num_draft_tokens=tokens, length=1.0 + tokens / 2, served=tokens == 3)
        for tokens in (1, 2, 3)
    ),
    acceptance_length_untrained=1.013,
    prompts=64,
    num_draft_tokens=3,
    live=BREAKDOWN,
    offline=OFFLINE,
    heldout=OFFLINE,
    lossless=True,
    same_replies=24,
    compared_replies=24,
    tokens_per_s=12_345.6,
    tokens_per_s_undrafted=12_345.6,
    speedup=1.51,
    speedup_by_round=(1.45, 1.57),
    by_concurrency=(
        AtConcurrency(
            concurrency=128,
            drafted=SPEED,
            undrafted=SPEED,
            speedup=1.51,
            speedup_by_round=(1.45, 1.57),
            same_replies=198,
            compared_replies=200,
            same_undrafted=199,
            compared_undrafted=200,
        ),
    ),
    warnings=("base: prefix caching is on",),
    not_measured=("by span: merged",),
)


def test_tables_fit_and_say_everything(capsys: pytest.CaptureFixture[str]) -> None:
    """100 columns at most, long names and speeds included."""
    print_report(REPORT)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    text = " ".join(" ".join(lines).split())
    for said in (
        "acceptance length 2.764 with 3 draft tokens",
        "95 % interval over prompts: 2.622 to 2.823",
        "untrained 1.013",
        "thinking",
        "[red]odd",
        "1.51 (1.45-1.57)",
        "198/200",
        "199/200",
        "24 of 24 replies",
        "warning: base: prefix caching is on",
        "not measured: by span: merged",
    ):
        assert said in text
    (row,) = (line.split() for line in lines if line.startswith(" all"))
    assert row == ["all", "2.764", "2.725", "2.725", "2.725"]


def test_what_was_not_measured_has_no_column(capsys: pytest.CaptureFixture[str]) -> None:
    """No offline figures, no undrafted server."""
    alone = msgspec.structs.replace(
        REPORT.by_concurrency[0], undrafted=None, speedup=None, compared_replies=0
    )
    report = msgspec.structs.replace(
        REPORT, live=None, offline=None, heldout=None, lossless=None, by_concurrency=(alone,)
    )
    print_report(report)
    out = capsys.readouterr().out
    (row,) = (line.split() for line in out.splitlines() if line.startswith(" all"))
    assert row == ["all", "2.764"]
    assert "offline" not in out
    assert "token for token" not in out


def test_the_gap_is_of_the_same_replies() -> None:
    """Offline against the steps of the live replies, not against the counters."""
    assert REPORT.gap == 0.0
    assert msgspec.structs.replace(REPORT, offline=None).gap is None
    assert msgspec.convert(msgspec.to_builtins(REPORT), AcceptanceReport) == REPORT

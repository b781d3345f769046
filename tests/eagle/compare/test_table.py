"""The comparison as it is printed and drawn."""

from __future__ import annotations

from xml.etree import ElementTree

import msgspec
import pytest

from eagle.accept.bootstrap import Interval
from eagle.compare.plot import Scale, forest
from eagle.compare.report import Compared, Comparison, Draft, TrainedOn
from eagle.compare.table import print_comparison

TRAINED = TrainedOn(
    rows=123_456,
    supervised_tokens=1_048_576,
    by_part={"generic": 524_288, "native": 524_288},
    batch_tokens=16_384,
    updates=12_345,
    loss_last=3.4217,
    seconds=98_765.4,
)


def compared(length: float, ratio: float | None) -> Compared:
    """A group of replies."""
    return Compared(
        prompts=1_000,
        steps=1_234_567,
        length=length,
        interval=Interval(low=length - 0.05, high=length + 0.06),
        ratio=ratio,
        ratio_interval=None if ratio is None else Interval(low=ratio - 0.02, high=ratio + 0.03),
    )


def draft(name: str, length: float, ratio: float | None, trained_on: TrainedOn | None) -> Draft:
    """A draft with three groups."""
    groups = {"all": length, "domain [red]an_odd_and_rather_long_name": length + 0.4, "span thinking": 2.5}
    return Draft(
        name=name,
        path=f"runs/x/{name}",
        trained_on=trained_on,
        counted_length=length + 0.01,
        rate_by_position=(0.754, 0.549, 0.422),
        groups={group: compared(value, ratio) for group, value in groups.items()},
    )


FOUND = Comparison(
    num_draft_tokens=3,
    prompts=1_000,
    supervised_tokens=1_048_576,
    drafts=(
        draft("generic", 1.512, None, TRAINED),
        draft("native", 1.734, 1.147, msgspec.structs.replace(TRAINED, updates=12_344)),
        draft("a_published_draft_with_a_long_name", 1.9, 1.257, None),
    ),
    warnings=("drafted: [b]others use it",),
)


def test_the_table_says_what_the_json_holds(capsys: pytest.CaptureFixture[str]) -> None:
    """Every figure of every group; 100 columns at most, sentences too."""
    print_comparison(FOUND)
    text = capsys.readouterr().out
    words = " ".join(text.split())
    assert max(len(line) for line in text.splitlines()) <= 100
    held = msgspec.json.decode(msgspec.json.encode(FOUND))
    for one in held["drafts"]:
        assert f"{one['counted_length']:.3f}" in text
        for group in one["groups"].values():
            at, ratio = group["interval"], group["ratio_interval"]
            assert f"{group['length']:.3f} {at['low']:.3f} to {at['high']:.3f}" in words
            if ratio is not None:
                assert f"{group['ratio']:.3f} {ratio['low']:.3f} to {ratio['high']:.3f}" in words
    for said in ("1,048,576", "16,384", "12,345", "12,344", "3.422", "[red]an_odd", "75.4%", "[b]others"):
        assert said in text
    assert "native against generic: +14.7% tokens a step (95 % interval +12.7% to +17.7%)" in words


def test_the_plot_is_whole_svg_with_every_draft() -> None:
    """Well-formed whatever names there are; a point for each draft of each group; the finding for readers."""
    root = ElementTree.fromstring(forest(FOUND))
    name = "{http://www.w3.org/2000/svg}"
    assert len(root.findall(f"{name}circle")) == 9
    texts = [element.text for element in root.findall(f"{name}text")]
    assert texts.count("native") == 3
    assert "domain [red]an_odd_and_rather_long_name" in texts
    assert "1.734" in texts
    assert "native against generic: +14.7%" in (root.findtext(f"{name}desc") or "")


def test_the_scale_names_round_values_around_all_intervals() -> None:
    """From 1.5 - 0.05 to 1.7 + 0.06."""
    scale = Scale([compared(1.5, None), compared(1.7, None)])
    assert [round(tick, 6) for tick in scale.ticks] == [1.4, 1.5, 1.6, 1.7, 1.8]
    assert [scale.at(1.4), scale.at(1.8)] == pytest.approx([170, 570])


def test_a_single_value_has_a_scale_too() -> None:
    """So has a comparison whose replies show no steps."""
    one = msgspec.structs.replace(compared(2.0, None), interval=None)
    assert Scale([one]).ticks == [2.0, 2.2]
    assert Scale([]).ticks == [1.0, 1.2, 1.4, 1.6, 1.8, 2.0]

"""Charts: literal ticks, places and texts, and SVG that an XML parser takes."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synthgen.report.charts import (
    Curve,
    Marker,
    columns,
    count_axis,
    curves,
    even_axis,
    height_axis,
    line,
    log_axis,
    number,
    share_axis,
    sparkline,
)


def texts(svg: str) -> list[str]:
    """What can be read on a chart, its title and description aside."""
    return [element.text or "" for element in ET.fromstring(svg).iter("text")]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0, "0"),
        (0.25, "0.25"),
        (7.5, "7.5"),
        (1234, "1,234"),
        (16384, "16,384"),
        (120_000, "120k"),
        (163_840, "164k"),
        (1_500_000, "1.5M"),
        (2e9, "2B"),
    ],
)
def test_a_number_is_written_as_people_read_it(value: float, said: str) -> None:
    """With commas up to a hundred thousand, then with k, M and B."""
    assert number(value) == said


def test_heights_start_at_zero_and_end_at_a_nice_number() -> None:
    """The axis ends at the first multiple of 1, 2 or 5 that nothing exceeds."""
    axis = height_axis("traces", 437)
    assert (axis.low, axis.high) == (0.0, 600.0)
    assert [said for _, said in axis.ticks] == ["0", "200", "400", "600"]
    assert [said for _, said in height_axis("traces", 1.0).ticks] == ["0", "0.5", "1"]
    assert height_axis("traces", 0).high == 1.0


def test_places_on_an_even_axis() -> None:
    """Ticks are the nice multiples inside; the axis ends where the values do."""
    axis = even_axis("min", 0.0, 23.5)
    assert [said for _, said in axis.ticks] == ["0", "5", "10", "15", "20"]
    assert axis.at(0) == 0.0
    assert axis.at(11.75) == 0.5
    assert axis.at(23.5) == 1.0


def test_places_on_a_logarithmic_axis() -> None:
    """A power of ten is as far from the one before as from the one after."""
    axis = log_axis("ids", 1, 10_000)
    assert [said for _, said in axis.ticks] == ["1", "10", "100", "1,000", "10,000"]
    assert [round(axis.at(value), 6) for value in (1, 10, 100, 10_000)] == [0.0, 0.25, 0.5, 1.0]
    assert [said for _, said in log_axis("ids", 1, 40).ticks] == ["1", "2", "5", "10", "20"]


def test_columns_are_as_high_as_their_counts() -> None:
    """A column of half the axis is half as high as the plot, which is 146 units."""
    svg = columns("Lengths", [1, 2, 0], ["0", "10", "20", "30"], x_label="tokens", y_label="traces")
    root = ET.fromstring(svg)
    rects = list(root.iter("rect"))
    assert [rect.get("height") for rect in rects] == ["73", "146", "0"]
    assert [rect.findtext("title") for rect in rects] == [
        "0 to 10: 1",
        "10 to 20: 2",
        "20 to 30: 0",
    ]
    assert root.findtext("desc") == (
        "3 columns from 0 to 30 (tokens); the highest, from 10 to 20, is 2 (traces)."
    )
    assert texts(svg) == ["traces", "tokens", "0", "0.5", "1", "1.5", "2", "0", "10", "20", "30"]


def test_of_many_edges_as_many_are_named_as_have_room() -> None:
    """A column of forty is 7.35 units wide; six letters and a space are 49: every seventh edge is named."""
    edges = [f"{i * 1000:,}" for i in range(41)]
    said = texts(columns("Many", [1] * 40, edges, x_label="x", y_label="y"))
    assert said[-6:] == ["0", "7,000", "14,000", "21,000", "28,000", "35,000"]


def test_a_line_goes_through_its_points_and_names_its_marker() -> None:
    """From the lower left corner of the plot to the upper right."""
    svg = line(
        "Coverage",
        [(1, 0.0), (10, 0.5), (100, 1.0)],
        log_axis("ids", 1, 100),
        share_axis("covered"),
        marker=Marker(x=10, y=0.5, text="10 ids: 50%"),
    )
    root = ET.fromstring(svg)
    assert [drawn.get("points") for drawn in root.iter("polyline")] == ["52,170 199,97 346,24"]
    assert [(mark.get("cx"), mark.get("cy")) for mark in root.iter("circle")] == [("199", "97")]
    assert "10 ids: 50%" in texts(svg)
    assert root.findtext("desc") == "covered from 0 at 1 to 1 at 100 (ids). 10 ids: 50%."


def test_titles_are_escaped_and_name_the_chart() -> None:
    """A chart is announced by its title and its description, whatever they say."""
    svg = columns("<a> & b", [1], ["0", "1"], x_label="</svg>", y_label="y")
    root = ET.fromstring(svg)
    assert root.findtext("title") == "<a> & b"
    assert root.get("role") == "img"
    assert root.get("aria-labelledby") == "-a-b-title -a-b-desc"
    assert ET.fromstring(sparkline("<b>", [0, 0])).get("aria-label") == "<b>"


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=60), st.integers(0, 10**7))
def test_nothing_is_drawn_outside(counts: list[int], first: int) -> None:
    """Columns and names stay in the 360 × 210 units of a chart, at seven units a letter."""
    edges = [number(first + i) for i in range(len(counts) + 1)]
    root = ET.fromstring(columns("Any", counts, edges, x_label="tokens", y_label="traces"))
    for rect in root.iter("rect"):
        x, y, width, height = (float(rect.get(name) or 0) for name in ("x", "y", "width", "height"))
        assert 52 <= x <= x + width <= 346.1
        assert 24 <= y <= y + height <= 170.1
    for text in root.iter("text"):
        x, width = float(text.get("x") or 0), 7 * len(text.text or "")
        left = {"start": x, "middle": x - width / 2, "end": x - width}[text.get("text-anchor") or ""]
        assert left >= -7
        assert left + width <= 360


def test_a_curve_of_one_point_is_a_dot() -> None:
    """A line through one point isn't seen."""
    shown = [Curve(name="held out", kind="response", points=[(5, 2)])]
    root = ET.fromstring(curves("Loss", shown, even_axis("updates", 0, 10), height_axis("loss", 4)))
    (dot,) = root.iter("circle")
    assert (dot.get("class"), dot.get("cx"), dot.get("cy")) == ("response", "199", "97")
    assert list(root.iter("polyline")) == []


def test_curves_share_axes_and_are_named() -> None:
    """One across the whole plot, one that ends in its middle; names stand above, from the right."""
    shown = [
        Curve(name="training", kind="plain", points=[(0, 0), (10, 4)]),
        Curve(name="held out", kind="response", points=[(0, 4), (5, 2)]),
    ]
    svg = curves("Loss", shown, even_axis("updates", 0, 10), height_axis("loss", 4))
    root = ET.fromstring(svg)
    lines = [(found.get("class"), found.get("points")) for found in root.iter("polyline")]
    assert lines == [("line plain", "52,170 346,24"), ("line response", "52,24 199,97")]
    assert [(rect.get("class"), rect.get("x")) for rect in root.iter("rect")] == [
        ("plain", "204"),
        ("response", "282"),
    ]
    assert texts(svg)[-2:] == ["training", "held out"]
    assert root.findtext("desc") == (
        "training: loss from 0 at 0 to 4 at 10 (updates). held out: loss from 4 at 0 to 2 at 5 (updates)."
    )


def test_a_count_axis_names_whole_numbers() -> None:
    """However few there are, and not all of many."""
    assert [said for _, said in count_axis("n", 1, 3).ticks] == ["1", "2", "3"]
    assert [said for _, said in count_axis("n", 0, 32).ticks] == ["0", "10", "20", "30"]
    assert [said for _, said in count_axis("n", 1, 1).ticks] == ["1"]

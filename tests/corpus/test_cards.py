"""The parts of which cards are made."""

from __future__ import annotations

import yaml

from synthgen.corpus.cards import front_matter, markdown_table, percent, public_name


def test_front_matter_is_yaml_in_its_own_order_without_anchors() -> None:
    """The hub's parser resolves none."""
    tags = ["eagle3", "ünïcode"]
    text = front_matter({"z": tags, "a": tags})
    assert text == "---\nz:\n- eagle3\n- ünïcode\na:\n- eagle3\n- ünïcode\n---\n"
    assert yaml.safe_load(text.split("---\n")[1]) == {"z": tags, "a": tags}


def test_a_table_keeps_its_rows_on_their_lines() -> None:
    """Whatever a source is called; without rows it says so."""
    assert markdown_table(("a", "b"), [("x|y", "1\n2"), ("\x1b[0m", "")]) == [
        "| a | b |",
        "| --- | --- |",
        "| x\\|y | 1 2 |",
        "| ␛[0m |  |",
    ]
    assert markdown_table(("a",), []) == ["none"]


def test_names_of_this_machine_are_shortened() -> None:
    """Ids of the hub stay as they are."""
    assert [public_name(name) for name in ("/home/me/model", "./a/b", "~/c", "org/model")] == [
        "model",
        "b",
        "c",
        "org/model",
    ]


def test_a_share_of_nothing_is_none() -> None:
    """One decimal."""
    assert (percent(1, 3), percent(0.5, 1), percent(0, 0)) == ("33.3%", "50.0%", "0.0%")

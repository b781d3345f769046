"""The curves of a training."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synthgen.corpus.settings import load_config
from synthgen.report.training import POINTS, Point, thinned, training, training_figures

ROOT = Path(__file__).parent.parent.parent


def at(step: float) -> Point:
    return Point(step=step, loss=2 * step, length=step / 2)


def test_a_long_log_is_shown_in_means() -> None:
    """Of 300 points each two become one; a short log stays as it is."""
    found = thinned(map(at, range(300)))
    assert len(found) == 150
    assert (found[0], found[-1]) == (at(0.5), at(298.5))
    assert thinned(map(at, range(3))) == (at(0), at(1), at(2))
    assert thinned([]) == ()


@given(st.integers(1, 2000))
def test_never_more_than_have_room(count: int) -> None:
    """However long the log is, and never none of it."""
    assert 0 < len(thinned(map(at, range(count)))) <= POINTS


@pytest.mark.parametrize(
    ("stream", "held_out", "said"),
    [
        ("true", b"{}", "Not validated: a training whose states are streamed isn"),
        ("false", b"", "Not validated: no samples were held out (mix.heldout_fraction)."),
        ("false", b"{}", "Not validated yet: that comes every 30 updates and after the last."),
    ],
)
def test_why_there_is_no_validation_is_said(tmp_path: Path, stream: str, held_out: bytes, said: str) -> None:
    """A run that is streamed, one without held-out samples, and one before its first validation."""
    settings = (f"run_dir={tmp_path}", f"train.stream={stream}", "train.validate_steps=30")
    config = load_config(ROOT / "configs/demo.yaml", settings)
    for path, content in (
        (config.training_log_path, b'{"step":1,"loss":2.0,"acceptance_predicted":1.5}\n'),
        (config.validation_path, held_out),
    ):
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
    assert said in training(training_figures(config))

"""Manifests: what doesn't fit is refused with the field, both values and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from synthgen.corpus.manifest import (
    digest,
    manifest_of,
    read_manifest,
    require_fit,
    require_manifest,
    write_manifest,
)
from synthgen.errors import ArtifactError


def test_a_manifest_reads_back_as_written(tmp_path: Path) -> None:
    """Settings, inputs, figures and versions survive the disk; tuples become lists."""
    made = manifest_of("s", settings={"a": (1, 2)}, inputs={"x": "1"}, figures={"n": 3}, seconds=1.25)
    write_manifest(tmp_path, made)
    found = read_manifest(tmp_path)
    assert found == made
    assert made.settings == {"a": [1, 2]}
    assert made.versions["synthgen"] == "0.1.0"


def test_a_directory_without_manifest_has_none(tmp_path: Path) -> None:
    """Absence isn't an error by itself."""
    assert read_manifest(tmp_path) is None


@pytest.mark.parametrize("complete", [None, False])
def test_an_artifact_that_is_not_complete_names_the_command_that_makes_it(
    tmp_path: Path, complete: bool | None
) -> None:
    """Missing and half-made artifacts are told apart."""
    if complete is not None:
        write_manifest(
            tmp_path, manifest_of("s", settings={}, inputs={}, figures={}, seconds=0, complete=complete)
        )
    state = "is missing" if complete is None else "is not complete"
    with pytest.raises(ArtifactError, match=rf"{state}: run `eagle vocab` first"):
        require_manifest(tmp_path, "eagle vocab")


def test_the_first_setting_that_differs_is_named_with_both_values(tmp_path: Path) -> None:
    """The message leads to the key."""
    made = manifest_of("s", settings={"taps": {"ids": [2, 4, 5]}}, inputs={}, figures={}, seconds=0)
    require_fit(tmp_path, made, settings={"taps": {"ids": (2, 4, 5)}}, inputs={})
    with pytest.raises(
        ArtifactError,
        match=r"was made with settings\.taps\.ids = \[2, 4, 5\], this run has \[1, 3, 4\]: set it back",
    ):
        require_fit(tmp_path, made, settings={"taps": {"ids": [1, 3, 4]}}, inputs={})


def test_a_changed_input_is_named(tmp_path: Path) -> None:
    """The digest of what it was made from counts too."""
    made = manifest_of("s", settings={}, inputs={"corpus": "aa"}, figures={}, seconds=0)
    with pytest.raises(ArtifactError, match=r"inputs\.corpus = 'aa', this run has 'bb'"):
        require_fit(tmp_path, made, settings={}, inputs={"corpus": "bb"})


def test_a_damaged_manifest_says_what_to_remove(tmp_path: Path) -> None:
    """A torn or foreign file isn't taken for a manifest."""
    (tmp_path / "manifest.json").write_text('{"stage": 1}')
    with pytest.raises(ArtifactError, match="not a manifest"):
        read_manifest(tmp_path)


def test_a_digest_does_not_depend_on_the_order_of_keys() -> None:
    """Equal content, equal digest."""
    assert digest({"a": 1, "b": [2]}) == digest({"b": [2], "a": 1})
    assert digest({"a": 1}) != digest({"a": 2})

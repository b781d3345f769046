"""The compare stage: what the parts of a mix are worth as text to learn from, each alone and mixed.

Every arm has the same supervised tokens, seed, updates and vocabulary; every draft is measured on the same
held-out prompts. What is complete is not done again.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eagle.accept.traps import default_layers
from eagle.compare.arms import Arm, arm_path, arms_of
from eagle.compare.choice import MIX, require_parts
from eagle.compare.live import Measured, heldout_prompts, measured
from eagle.compare.plot import forest
from eagle.compare.report import Comparison, Draft, TrainedOn, groups_of
from eagle.compare.trained import trained
from eagle.draft_files import known_tokens, read_draft
from synthgen.corpus.config import RunConfig
from synthgen.corpus.files import written_aside
from synthgen.corpus.lock import claimed
from synthgen.corpus.manifest import Manifest, as_json, digest_of, manifest_of, write_manifest
from synthgen.corpus.verifier_config import VerifierShape
from synthgen.corpus.verifier_files import shape_of
from synthgen.errors import ArtifactError, ConfigError

PLOT_NAME = "compare.svg"
FUSION = "fc.weight"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def given_drafts(config: RunConfig, asked: Sequence[str]) -> dict[str, Path]:
    """The drafts of `--draft NAME=PATH`, by name.

    Raises ConfigError for a name that is none or is taken, ArtifactError for a draft that isn't there or
    doesn't fit the verifier.
    """
    taken = {part.name for part in config.mix.parts} | {MIX}
    found: dict[str, Path] = {}
    for one in asked:
        name, equals, path = one.partition("=")
        if not equals or not path or not NAME.fullmatch(name):
            raise ConfigError(
                f"--draft {one}: write it as NAME=PATH, the name of letters, digits, dots and dashes"
            )
        if name in taken or name in found:
            raise ConfigError(
                f"--draft {one}: there is an arm or a draft {name!r} already: name it otherwise"
            )
        require_draft(Path(path), shape_of(config.verifier))
        found[name] = Path(path)
    return found


def require_draft(path: Path, shape: VerifierShape) -> None:
    """Raise ArtifactError unless a draft of a verifier of this shape is there, as vLLM loads it."""
    draft = read_draft(str(path))
    if not draft.config or not (path / "config.json").is_file():
        raise ArtifactError(f"{path} has no config.json, which vLLM needs: name a run's draft/export")
    known_tokens(draft, shape.vocab_size)
    found = draft.places[FUSION].shape if FUSION in draft.places else "missing"
    if found != (expected := [shape.hidden_size, 3 * shape.hidden_size]):
        raise ArtifactError(f"{path}: `{FUSION}` is {found}; expected {expected} for this verifier")


def compare(config: RunConfig, drafts: dict[str, Path], tokens: int | None = None) -> Manifest:
    """Train the arms, measure them and the given drafts; the manifest's figures are the Comparison.

    tokens: supervised ones of each arm; None for the most that all can have. Raises ConfigError,
    ArtifactError and TrainingError as its parts do, before a server is started; ServerError as `eagle accept`
    does.
    """
    began = time.monotonic()
    require_parts([part.name for part in config.mix.parts])
    prompts, shape = heldout_prompts(config), shape_of(config.verifier)
    layers = [said for path in drafts.values() for said in default_layers(path, shape.num_layers)]
    directory = arm_path(config, MIX).parent
    with claimed(directory, parts=1):
        arms = arms_of(config, tokens)
        on = {arm.name: _trained_on(arm, trained(arm)) for arm in arms}
        paths = {arm.name: arm.config.export_path for arm in arms} | drafts
        found = {
            name: measured(config, name, path, arm_path(config, name) / "accept")
            for name, path in paths.items()
        }
        comparison = Comparison(
            num_draft_tokens=config.accept.num_draft_tokens[0],
            prompts=len(prompts),
            supervised_tokens=on[MIX].supervised_tokens,
            drafts=tuple(_draft(config, name, paths, on.get(name), found) for name in paths),
            warnings=(*layers, *_warnings(found, on)),
        )
        return _write(config, directory, comparison, found, time.monotonic() - began)


def _trained_on(arm: Arm, made: Manifest) -> TrainedOn:
    return TrainedOn(
        rows=arm.figures["rows"],
        supervised_tokens=arm.figures["supervised_tokens"],
        by_part=arm.figures["by_part"],
        batch_tokens=arm.config.train.batch_tokens,
        updates=made.figures["steps"],
        loss_last=made.figures["loss_last"],
        seconds=made.figures["seconds"],
    )


def _draft(
    config: RunConfig, name: str, paths: dict[str, Path], on: TrainedOn | None, found: dict[str, Measured]
) -> Draft:
    first, figures = next(iter(paths)), found[name].manifest.figures
    base = None if name == first else found[first].steps
    return Draft(
        name=name,
        path=str(paths[name]),
        trained_on=on,
        counted_length=figures["acceptance_length"],
        rate_by_position=tuple(figures["rate_by_position"]),
        groups=groups_of(found[name].steps, base, config.seed),
    )


def _warnings(found: dict[str, Measured], on: dict[str, TrainedOn]) -> list[str]:
    said = [warning for one in found.values() for warning in one.manifest.figures["warnings"]]
    for name, one in found.items():
        if not one.steps:
            figures = one.manifest.figures
            said.append(
                f"{name}: its replies came in {figures['steps_seen']:,} events, the server counted "
                f"{figures['drafts']:,.0f} drafts: no intervals; accept.concurrency 1 may help"
            )
    updates = {one.updates for one in on.values()}
    if max(updates) > 1.01 * min(updates):
        said.append(
            f"the arms made {min(updates):,} to {max(updates):,} updates: their batches differ too much"
        )
    return said


def _write(
    config: RunConfig, directory: Path, comparison: Comparison, found: dict[str, Measured], seconds: float
) -> Manifest:
    with written_aside(directory / PLOT_NAME) as aside:
        aside.write_text(forest(comparison), encoding="utf-8")
    settings: dict[str, Any] = as_json({"accept": config.accept, "seed": config.seed})
    inputs = {name: digest_of(one.manifest) for name, one in found.items()}
    manifest = manifest_of(
        "compare", settings=settings, inputs=inputs, figures=as_json(comparison), seconds=seconds
    )
    write_manifest(directory, manifest)
    return manifest

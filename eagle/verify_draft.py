"""Whether a draft is what a server and its verifier take it for; everything that isn't is one line.

Names, shapes, dtypes and config are held against a shipped manifest of published drafts, against another
draft (of which only headers and config are read, here or on the hub), against a run, or at least against its
own config.json. Served, its proposals are compared with the trainer's: see eagle/load_gate.py.
"""

from __future__ import annotations

from pathlib import Path

from eagle.draft_check import Mismatch, mismatches, notes, weight_lines
from eagle.draft_config import make_of
from eagle.draft_standard import (
    Standard,
    own_standard,
    published,
    published_names,
    run_standard,
    standard_of,
)
from eagle.draft_view import DraftView, view_of
from eagle.load_gate import LoadReport, gate_notes, load_gate
from synthgen.corpus.config import RunConfig
from synthgen.corpus.records import Record
from synthgen.errors import ConfigError


class DraftReport(Record, frozen=True, kw_only=True):
    """What a draft was held against, and everything that is wrong with it."""

    draft: str
    against: tuple[str, ...]
    tensors: int
    mismatches: tuple[Mismatch, ...]
    notes: tuple[str, ...]
    served: LoadReport | None


def verify_draft(
    source: str, *, like: str | None = None, config: RunConfig | None = None, serve: bool = False
) -> DraftReport:
    """Look at a draft; with `serve`, load it when nothing is wrong with it so far.

    Raises ConfigError for arguments that don't go together, and what `view_of` and `load_gate` raise.
    """
    _require_serveable(source, config, serve=serve)
    view = view_of(source, "DRAFT")
    standards = [*_given(like, config)] or [own_standard(view)]
    found = list(dict.fromkeys(one for standard in standards for one in mismatches(view, standard)))
    said = [note for standard in standards for note in notes(view, standard)]
    if like is None and config is None:
        said.append("nothing says which layers' states it needs: --like or --config would")
    if not view.here:
        said.append("its weights weren't read: of a hub's draft only headers and maps are")
    elif not found:
        found.extend(weight_lines(view))
    served = None
    if serve and config is not None and not found:
        served, wrong = load_gate(config, source)
        found += wrong
        said += gate_notes(served)
    return DraftReport(
        draft=source,
        against=tuple(standard.name for standard in standards),
        tensors=len(view.tensors),
        mismatches=tuple(found),
        notes=tuple(said),
        served=served,
    )


def _require_serveable(source: str, config: RunConfig | None, *, serve: bool) -> None:
    if serve and config is None:
        raise ConfigError("--serve needs a verifier, its server and prompts: name the run with --config")
    if serve and not Path(source).is_dir():
        raise ConfigError(f"--serve: {source} is no directory here: download the draft first")


def _given(like: str | None, config: RunConfig | None) -> list[Standard]:
    standards = []
    if like is not None:
        standards.append(published(like) if like in published_names() else standard_of(_like(like)))
    if config is not None:
        standards.append(run_standard(make_of(config, config.vocab.size), f"the run of {config.run_dir}"))
    return standards


def _like(like: str) -> DraftView:
    if "/" not in like and not Path(like).exists():
        raise ConfigError(
            f"--like {like}: neither a shipped manifest ({', '.join(published_names())}) nor a path "
            f"here nor a hub id: mend it"
        )
    return view_of(like, "--like")

"""The model card of an export: what the draft is, how to serve it, what it learned from, what it is worth.

It says what the manifests of the run say when it is written. `eagle accept` comes after the export, and
writes the cards of its run anew when it is done; so does another `eagle export`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from eagle.draft_config import FORMS, Form, Target
from eagle.train import train_settings
from eagle.validate import Acceptance, Validation
from synthgen.corpus.cards import front_matter, markdown_table, percent, public_name, verifier_name
from synthgen.corpus.config import RunConfig
from synthgen.corpus.files import written_aside
from synthgen.corpus.manifest import FILE_NAME, Manifest, as_json, digest_of, read_manifest
from synthgen.corpus.verifier_files import HUB_ID, local_directory, shape_of
from synthgen.errors import ArtifactError

CARD = "README.md"
TAGS = ("eagle3", "speculative-decoding")
MOST_ROWS = 50
"""Of a table; what is left is summed up."""
S = TypeVar("S", bound=msgspec.Struct)


class _Side(msgspec.Struct, frozen=True, kw_only=True):
    rows: int = 0
    tokens: int = 0
    thinking_tokens: int = 0
    response_tokens: int = 0
    tool_tokens: int = 0

    def cells(self) -> tuple[str, ...]:
        counts = (self.rows, self.tokens, self.thinking_tokens, self.response_tokens, self.tool_tokens)
        return tuple(f"{count:,}" for count in counts)


class _Part(msgspec.Struct, frozen=True, kw_only=True):
    train: _Side = _Side()
    heldout: _Side = _Side()


class _Dataset(msgspec.Struct, frozen=True, kw_only=True):
    parts: dict[str, _Part] = {}
    sources: dict[str, _Side] = {}


class _Domain(msgspec.Struct, frozen=True, kw_only=True):
    corpus: int = 0


class _Rows(msgspec.Struct, frozen=True, kw_only=True):
    domains: dict[str, _Domain] = {}


class _Prompts(msgspec.Struct, frozen=True, kw_only=True):
    rows: _Rows = _Rows()


class _Best(msgspec.Struct, frozen=True, kw_only=True):
    count: int
    best: Validation


class _Training(msgspec.Struct, frozen=True, kw_only=True):
    steps: int
    loss_first: float
    loss_last: float
    acceptance_predicted: float
    parameters: int = 0
    seconds: float = 0.0
    validation: _Best | None = None


class _Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """Of an acceptance report, what a card tells; a report may lack any of it."""

    acceptance_length: float | None = None
    rate_by_position: tuple[float, ...] = ()
    length_by_domain: dict[str, float] = {}
    speedup: float | None = None
    tokens_per_s: float | None = None
    tokens_per_s_undrafted: float | None = None
    num_draft_tokens: int | None = None
    prompts: int | None = None
    same_replies: int | None = None
    compared_replies: int | None = None


def write_card(config: RunConfig, directory: Path, manifest: Manifest, form: Form) -> None:
    """Write the card of the export in `directory`, unless it says the same already.

    Raises ArtifactError for a manifest of the run that is damaged.
    """
    text = card(config, manifest, form)
    path = directory / CARD
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        with written_aside(path) as aside:
            aside.write_text(text, encoding="utf-8")


def refresh_cards(config: RunConfig) -> None:
    """Write the cards of a run's exports anew: they tell of an acceptance that came after them.

    One of another training, or of a config that was changed since, keeps the card that it has.
    """
    current, settings = read_manifest(config.export_path), as_json(train_settings(config))
    for form in FORMS:
        directory = form.place(config.export_path)
        manifest = read_manifest(directory)
        if manifest is None or (current is not None and manifest.inputs != current.inputs):
            continue
        if settings == {name: manifest.settings.get(name) for name in settings}:
            write_card(config, directory, manifest, form)


def card(config: RunConfig, manifest: Manifest, form: Form) -> str:
    """The card as Markdown with its YAML front matter."""
    sections = (
        _front(config, form),
        f"# EAGLE-3 draft of {verifier_name(config)}\n",
        _about(config, manifest),
        _serving(config, form),
        _corpus(config),
        _training(config, manifest),
        _acceptance(config, manifest),
    )
    return "\n".join(sections)


def _front(config: RunConfig, form: Form) -> str:
    front: dict[str, Any] = {
        "library_name": str(form.target),
        "pipeline_tag": "text-generation",
        "tags": [*TAGS],
    }
    if local_directory(config.verifier) is None and HUB_ID.fullmatch(config.verifier.model):
        front |= {"base_model": config.verifier.model}
    return front_matter(front)


def _about(config: RunConfig, manifest: Manifest) -> str:
    shape, draft = shape_of(config.verifier), config.draft
    version = manifest.versions.get("synthgen", "of an unknown version")
    low, middle, high = config.extract.aux_layers
    norms = [n for n in ("norm_before_residual", "fc_norm", "norm_output") if getattr(draft, n)]
    trained = "" if manifest.figures.get("step") else " It is untrained: what training begins with."
    return "\n".join(
        (
            f"A draft model for speculative decoding: one Llama layer over the hidden states before layers "
            f"{low}, {middle} and {high} of **{verifier_name(config)}** ({shape.num_layers} layers), that "
            f"proposes {config.vocab.size:,} of its {shape.vocab_size:,} tokens.{trained} It has no "
            f"embedding of its own: servers share the verifier's. Made with synthgen {version}.",
            "",
            f"Norms beyond EAGLE-3's: {', '.join(norms) or 'none'}.",
            "",
        )
    )


def _serving(config: RunConfig, form: Form) -> str:
    model, draft, tokens = verifier_name(config), "PATH_OR_REPOSITORY", config.accept.num_draft_tokens[0]
    note = []
    if form.target is Target.SPECULATORS:
        command = f"vllm serve {draft}"
        if local_directory(config.verifier) is not None:
            note = [
                "",
                "Its `config.json` names the verifier by a path: serve it where that leads to "
                f"{model}, or set `speculators_config.verifier.name_or_path` to the hub id.",
            ]
    elif form.target is Target.SGLANG:
        command = (
            f"python -m sglang.launch_server --model-path {model} --speculative-algorithm EAGLE3 \\\n"
            f"    --speculative-draft-model-path {draft} --speculative-num-steps {tokens} \\\n"
            f"    --speculative-eagle-topk 1 --speculative-num-draft-tokens {tokens + 1}"
        )
        if config.draft.fc_norm or config.draft.norm_output:
            note = [
                "",
                "It takes an SGLang that reads `fc_norm` and `norm_output`: older ones ignore them.",
            ]
    else:
        said = f'{{"method": "eagle3", "model": "{draft}", "num_speculative_tokens": {tokens}}}'
        command = f"vllm serve {model} \\\n    --speculative-config '{said}'"
    return "\n".join(("## Serving it", "", "```bash", command, "```", *note, ""))


def _corpus(config: RunConfig) -> str:
    heads = ("rows", "supervised tokens", "thinking", "response", "tool")
    lines = ["## What it learned from", ""]
    dataset = _figures(config.dataset_path, _Dataset)
    if dataset is None:
        return "\n".join((*lines, "The dataset isn't in the run any more.", ""))
    parts = [
        (name, side, *counts.cells())
        for name, part in dataset.parts.items()
        for side, counts in (("train", part.train), ("held out", part.heldout))
    ]
    by_size = sorted(dataset.sources.items(), key=lambda item: -item[1].tokens)
    sources = [(public_name(name), *counts.cells()) for name, counts in by_size]
    lines += [*markdown_table(("part", "side", *heads), parts), ""]
    lines += [*_cut(("source", *heads), sources), ""]
    prompts = _figures(config.prompts_path, _Prompts)
    if prompts is not None and prompts.rows.domains:
        domains = [(name, f"{one.corpus:,}") for name, one in prompts.rows.domains.items()]
        lines += [*_cut(("domain", "prompts"), domains), ""]
    return "\n".join((*lines, *_generation(config)))


def _generation(config: RunConfig) -> Iterator[str]:
    """The server and the sampling of the replies that the verifier gave."""
    made = read_manifest(config.corpus_path)
    if made is None:
        return
    server, sampling = made.figures.get("server") or {}, made.settings.get("sampling") or {}
    said = [f"{name} {value}" for name, value in sampling.items()]
    engine = f" by {server['engine']}" if server.get("engine") else ""
    yield f"Native replies were sampled{engine}" + (f" with {', '.join(said)}." if said else ".")
    yield ""


def _training(config: RunConfig, manifest: Manifest) -> str:
    lines = ["## How it was trained", ""]
    if "trained" not in manifest.figures:
        return "\n".join((*lines, "Not at all.", ""))
    done = _convert(config.checkpoints_path, manifest.figures["trained"], _Training)
    train = config.train
    rows = [
        ("updates", f"{done.steps:,}, of which update {manifest.figures['step']:,} is exported"),
        ("chosen because it is", str(manifest.figures.get("chosen", "the newest"))),
        ("epochs", f"{train.epochs}"),
        ("test-time steps, decay", f"{train.ttt_steps}, {train.ttt_decay:g}"),
        ("optimizer, learning rate", f"{train.optimizer}, {train.learning_rate:g}"),
        ("tokens in an update, at most", f"{train.batch_tokens * train.batches_per_step:,}"),
        ("longest sample, tokens", f"{train.max_seq_tokens:,}"),
        ("began with", "another draft" if train.init_from else "a fresh draft"),
        ("seed", f"{config.seed}"),
        ("parameters", f"{done.parameters:,}"),
        ("loss, first to last", f"{done.loss_first:.3f} to {done.loss_last:.3f}"),
        ("acceptance length on the training text", f"{done.acceptance_predicted:.2f}, predicted"),
    ]
    lines += [*markdown_table(("", ""), rows), ""]
    return "\n".join((*lines, *_validated(done.validation)))


def _validated(validation: _Best | None) -> Iterator[str]:
    if validation is None:
        yield from ("It wasn't validated.", "")
        return
    best = validation.best
    yield f"Held out, best of {validation.count} validations, after update {best.step:,} (predicted):"
    yield ""
    heads = ("drafted in", "slots", "acceptance length", *(f"token {n + 1}" for n in range(len(best.losses))))
    groups = {"all": best.whole, **best.by_kind, **best.by_domain}
    yield from markdown_table(heads, [_validated_row(name, group) for name, group in groups.items()])
    yield ""


def _validated_row(name: str, group: Acceptance) -> tuple[str, ...]:
    return (name, f"{group.slots:,}", f"{group.length:.2f}", *(percent(share, 1) for share in group.accuracy))


def _acceptance(config: RunConfig, manifest: Manifest) -> str:
    lines = ["## What it is worth", ""]
    found = _accepted(config, manifest)
    if found is None or found.acceptance_length is None:
        return "\n".join((*lines, "Not measured on a server yet: `eagle accept` does it.", ""))
    rates = (percent(rate, 1) for rate in found.rate_by_position)
    told = [
        ("acceptance length", f"{found.acceptance_length:.2f} tokens a verifier step"),
        ("accepted at each position", ", ".join(rates)),
        ("draft tokens", _known(found.num_draft_tokens)),
        ("held-out prompts", _known(found.prompts)),
    ]
    if found.speedup is not None:
        told.append(("output tokens/s, one request at a time", f"{found.speedup:.2f} times as many"))
    if found.tokens_per_s is not None and found.tokens_per_s_undrafted is not None:
        with_and_without = f"{found.tokens_per_s:,.1f}, without {found.tokens_per_s_undrafted:,.1f}"
        told.append(("with the draft", with_and_without))
    if found.compared_replies:
        told.append(("greedy replies the same", f"{found.same_replies} of {found.compared_replies}"))
    lines += ["Greedy, by the server's own counters.", "", *markdown_table(("", ""), told), ""]
    if found.length_by_domain:
        rows = [(name, f"{length:.2f}") for name, length in found.length_by_domain.items()]
        lines += [*_cut(("domain", "acceptance length"), rows), ""]
    return "\n".join(lines)


def _known(value: int | None) -> str:
    return "not told" if value is None else f"{value:,}"


def _accepted(config: RunConfig, manifest: Manifest) -> _Accepted | None:
    """The acceptance of this draft: another form of it holds the same weights."""
    measured, default = read_manifest(config.accept_path), read_manifest(config.export_path)
    if measured is None or not measured.complete or manifest.inputs.get("checkpoints") is None:
        return None
    served = default or manifest
    if digest_of(served) not in measured.inputs.values() or served.inputs != manifest.inputs:
        return None
    return _convert(config.accept_path, measured.figures, _Accepted)


def _figures(directory: Path, kind: type[S]) -> S | None:
    """The figures of a complete artifact; None when it isn't there."""
    manifest = read_manifest(directory)
    return None if manifest is None or not manifest.complete else _convert(directory, manifest.figures, kind)


def _convert(directory: Path, figures: Any, kind: type[S]) -> S:
    try:
        return msgspec.convert(figures, kind)
    except msgspec.ValidationError as error:
        raise ArtifactError(
            f"{directory / FILE_NAME}: its figures are not as this release writes them: {error}. Remove "
            f"{directory} to make it anew"
        ) from error


def _cut(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    rest = len(rows) - MOST_ROWS
    return [*markdown_table(heads, rows[:MOST_ROWS]), *([f"\n{rest:,} more."] if rest > 0 else [])]

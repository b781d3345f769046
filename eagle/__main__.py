"""`eagle`: hidden states, draft vocabulary, training, export and live acceptance."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from eagle.accept.measure import Given
from eagle.accept.report import AcceptanceReport
from eagle.accept.stage import accept as measure_acceptance
from eagle.accept.stage import accept_given as measure_given_servers
from eagle.accept.stage import given_path
from eagle.accept.table import print_report
from eagle.card import refresh_cards
from eagle.compare.command import compare_command
from eagle.draft_config import Form, LayerNames, Target
from eagle.dry_run import dry_run, print_dry_run
from eagle.export import export as export_draft
from eagle.extract import extract as extract_states
from eagle.train import train as train_draft
from eagle.validation_table import print_validation
from eagle.verify_commands import verify
from eagle.vocab import make_vocab
from synthgen.corpus.config import RunConfig
from synthgen.corpus.console import console, exits
from synthgen.corpus.files import in_units
from synthgen.corpus.settings import load_config, save_config
from synthgen.errors import ConfigError

app = typer.Typer(
    help="EAGLE-3 drafts from a corpus of traces: states, vocabulary, training, export, acceptance.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
Config = Annotated[Path, typer.Argument(help="The run's YAML, for instance configs/demo.yaml.")]
Overrides = Annotated[
    list[str], typer.Option("--set", help="Lay a value over the YAML: --set train.epochs=2")
]


@app.command()
def extract(
    config: Config,
    set_: Overrides = [],  # noqa: B006 -- typer makes a new list each time
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Ask again for samples whose states could not be had.")
    ] = False,
) -> None:
    """Get the verifier's hidden states of every sample; goes on where it stopped.

    A live vLLM computes them, or this process itself: `extract.backend: transformers`, for small verifiers.

    Exit code 1: some samples failed, see failures.jsonl beside the states; the others are there.

    Examples: `eagle extract configs/demo.yaml`,
    `eagle extract my.yaml --set extract.backend=transformers`
    """
    with exits():
        loaded = load_config(config, tuple(set_))
        figures = extract_states(loaded, retry_failed=retry_failed).figures
        save_config(loaded, loaded.states_path / "run.yaml")
        console.print(
            f"{figures['tokens']:,} tokens of {figures['samples']:,} samples: "
            f"{in_units(figures['bytes'])} in {loaded.states_path}"
        )
        if figures["failed"]:
            console.print(
                f"{figures['failed']:,} samples failed, see {loaded.states_path}/failures.jsonl; with "
                f"--retry-failed they are asked for again",
                soft_wrap=True,
            )
            raise typer.Exit(1)


@app.command()
def vocab(config: Config, set_: Overrides = []) -> None:  # noqa: B006
    """Choose the draft's vocabulary: the tokens that the supervised text uses most, or another draft's.

    Example: `eagle vocab configs/demo.yaml --set vocab.size=1024`
    """
    with exits():
        loaded = load_config(config, tuple(set_))
        figures = make_vocab(loaded).figures
        save_config(loaded, loaded.vocab_path / "run.yaml")
        console.print(f"{figures['size']:,} tokens cover {figures['coverage']:.2%} of the supervised text")


@app.command()
def train(
    config: Config,
    set_: Overrides = [],  # noqa: B006
    stream: Annotated[
        bool,
        typer.Option(
            "--stream",
            help="A live capturing server makes the states as they are needed, anew in each epoch; the disk "
            "holds train.stream_spool_mib of them. The same as --set train.stream=true.",
        ),
    ] = False,
    init_from: Annotated[
        str | None,
        typer.Option(
            "--init-from",
            help="Begin with this draft: a directory or .safetensors file. As --set train.init_from=…",
        ),
    ] = None,
    only_sized: Annotated[
        bool,
        typer.Option("--dry-run", help="Print what one step takes: nothing is loaded, nothing written."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --dry-run: one JSON object instead of tables.")
    ] = False,
) -> None:
    """Train the draft; goes on from the newest checkpoint, on as many processes as torchrun starts.

    A draft to begin with is a setting of the run: give it to `eagle export` too, or write it in the YAML.

    Exit code 1: states of some samples could not be streamed, see failures*.jsonl beside the checkpoints; it
    was trained on the others. Under torchrun, which ends with 1 for every error, the code is 0 then.

    Examples: `eagle train configs/demo.yaml --set train.epochs=3`, `eagle train my.yaml --stream`,
    `eagle train my.yaml --init-from runs/first/draft/export`, `eagle train my.yaml --dry-run`,
    `torchrun --standalone --nproc-per-node 8 -m eagle train my.yaml --set train.batches_per_step=8`
    """
    with exits():
        flags = ["train.stream=true"] if stream else []
        if init_from is not None:
            flags.append(f"train.init_from={msgspec.json.encode(init_from).decode()}")
        loaded = load_config(config, (*set_, *flags))
        if only_sized:
            _print_sizes(loaded, as_json)
            return
        if as_json:
            raise ConfigError("--json goes with --dry-run: training's figures are in its manifest.json")
        manifest = train_draft(loaded)
        if manifest is None:  # of many processes the first one speaks
            return
        save_config(loaded, loaded.checkpoints_path / "run.yaml")
        _print_training(loaded, manifest.figures)


def _print_training(config: RunConfig, figures: dict[str, Any]) -> None:
    """What came out; ends with code 1 when samples were left out."""
    console.print(
        f"loss {figures['loss_first']:.3f} -> {figures['loss_last']:.3f} in {figures['steps']:,} steps, "
        f"predicted acceptance length {figures['acceptance_predicted']:.2f} on the training text"
    )
    if figures["validation"] is not None:
        print_validation(figures["validation"])
    if left_out := figures.get("samples_left_out"):
        console.print(f"{left_out:,} samples left out, see {config.checkpoints_path}/failures*.jsonl")
        raise typer.Exit(0 if "TORCHELASTIC_RUN_ID" in os.environ else 1)


def _print_sizes(config: RunConfig, as_json: bool) -> None:
    sized = dry_run(config)
    if as_json:
        print(msgspec.json.encode(sized).decode())
    else:
        print_dry_run(sized)


@app.command()
def export(
    config: Config,
    set_: Overrides = [],  # noqa: B006
    untrained: Annotated[
        bool, typer.Option("--untrained", help="The draft as it was before its first step, to compare with.")
    ] = False,
    target: Annotated[
        Target,
        typer.Option(help="Who is to load it: another than vllm gets a directory beside draft/export."),
    ] = Target.VLLM,
    layer_names: Annotated[
        LayerNames | None,
        typer.Option(help="Names of the layer's tensors: midlayer, or layers.0, which vLLM reads as well."),
    ] = None,
) -> None:
    """Write the draft as servers load it: the checkpoint that validated best, or the newest without any.

    Its model card says what the run's manifests say by now; `eagle accept` brings it up to date.

    Examples: `eagle export configs/demo.yaml`, `eagle export my.yaml --target speculators`
    """
    with exits():
        loaded = load_config(config, tuple(set_))
        form = Form.of(target, layer_names)
        path = form.place(loaded.untrained_path if untrained else loaded.export_path)
        export_draft(loaded, untrained=untrained, form=form)
        save_config(loaded, path / "run.yaml")
        console.print(f"the draft is in {path}", soft_wrap=True)


@app.command()
def accept(
    config: Config,
    set_: Overrides = [],  # noqa: B006
    url: Annotated[
        str | None,
        typer.Option("--url", help="Measure the drafted vLLM that runs there, ending in /v1; start none."),
    ] = None,
    base_url: Annotated[
        str | None,
        typer.Option("--base-url", help="With --url: the same verifier without a draft, to compare with."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of tables.")] = False,
) -> None:
    """Measure acceptance, speed and sameness of output on held-out prompts, on live servers.

    The verifier is served alone and with the draft; the draft is also judged offline, on hidden states. With
    --url nothing is started: what can't be known then is left out and said.

    Examples: `eagle accept configs/demo.yaml --set accept.rounds=5`,
    `eagle accept my.yaml --url http://127.0.0.1:8001/v1 --base-url http://127.0.0.1:8000/v1 --json`
    """
    with exits():
        loaded = load_config(config, tuple(set_))
        if base_url is not None and url is None:
            raise ConfigError("--base-url goes with --url: it is the undrafted server beside that one")
        if url is None:
            directory, manifest = loaded.accept_path, measure_acceptance(loaded)
            refresh_cards(loaded)
        else:
            given = Given(url=url, base_url=base_url)
            directory, manifest = given_path(loaded), measure_given_servers(loaded, given)
        save_config(loaded, directory / "run.yaml")
        report = msgspec.convert(manifest.figures, AcceptanceReport)
        if as_json:
            print(msgspec.json.encode(report).decode())
        else:
            print_report(report)


app.command("compare")(compare_command)
app.add_typer(verify, name="verify")


def main() -> None:
    """The console script."""
    app()


if __name__ == "__main__":
    main()

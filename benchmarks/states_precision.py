"""What fp8 states cost: the same states in bfloat16 and in fp8, and the same training on both.

The states of `benchmarks.ablation`'s run are packed a second time as `extract.states_dtype: float8_e4m3fn`
would store them. Compared are each tap's error, the verifier's most likely next token from the final state,
and the acceptance length that held-out states (always bfloat16) predict for a draft trained on each.

    python -m benchmarks.states_precision --traces DIR
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import torch
import typer

from benchmarks.ablation import BASE, CACHE, judged, ready, trained
from benchmarks.fixed_traces import smollm2_config
from eagle.shards import read_all, read_index, write_shard
from eagle.states import SampleStates
from eagle.verifier import weights_of
from eagle.verify_states import likeliest
from synthgen.corpus.config import RunConfig
from synthgen.corpus.manifest import read_manifest, write_manifest
from synthgen.corpus.verifier_files import shape_of

FP8 = "float8_e4m3fn"
SAMPLES_A_SHARD = 200
TAPS = ("aux 0", "aux 1", "aux 2", "final")


def stored_as_fp8(states: SampleStates) -> SampleStates:
    """The same states as extraction stores them in fp8; all final ones must be there."""
    states_T4H = torch.cat((states.aux.read(), states.final.read()[:, None]), dim=1)
    return SampleStates.captured(states.sample_id, states.token_ids_T, states_T4H, states_dtype=FP8)


def pack_again(config: RunConfig, into: RunConfig) -> None:
    """The states of `config` in fp8, with dataset and vocabulary beside them."""
    if read_manifest(into.states_path) is not None:
        return
    into.run_path.mkdir(parents=True, exist_ok=True)
    for name in ("dataset", "vocab"):
        (into.run_path / name).symlink_to((config.run_path / name).absolute())
    batch: list[SampleStates] = []
    for states in read_all(config.states_path):
        batch.append(stored_as_fp8(states))
        if len(batch) == SAMPLES_A_SHARD:
            write_shard(into.states_path, batch)
            batch = []
    if batch:
        write_shard(into.states_path, batch)
    found = read_manifest(config.states_path)
    assert found is not None
    settings = found.settings | {"stored": {"dtype": FP8, "final": "all"}}
    write_manifest(into.states_path, msgspec.structs.replace(found, settings=settings))


def errors(config: RunConfig, into: RunConfig) -> dict[str, Any]:
    """Relative error of each tap per token, and how often the likeliest token is the same."""
    weights, eps = weights_of(config.verifier), shape_of(config.verifier).rms_norm_eps
    exact = {states.sample_id: states for states in read_all(config.states_path)}
    found: list[list[torch.Tensor]] = [[], [], [], []]
    same: list[torch.Tensor] = []
    for states in read_all(into.states_path):
        want = exact[states.sample_id]
        pairs = [
            *zip(states.aux.read().unbind(1), want.aux.read().unbind(1), strict=True),
            (states.final.read(), want.final.read()),
        ]
        for tap, (have, wanted) in enumerate(pairs):
            found[tap].append((have.float() - wanted.float()).norm(dim=-1) / wanted.float().norm(dim=-1))
        if len(same) < len(exact) // 10:
            same.append(likeliest(pairs[3][0], weights, eps) == likeliest(pairs[3][1], weights, eps))
    joined = [torch.cat(parts) for parts in found]
    return {
        "median_error": {name: float(e.median()) for name, e in zip(TAPS, joined, strict=True)},
        "worst_error": {name: float(e.max()) for name, e in zip(TAPS, joined, strict=True)},
        "argmax_agreement": float(torch.cat(same).float().mean()),
        "bytes": sum(e.num_bytes for e in read_index(into.states_path))
        / sum(e.num_bytes for e in read_index(config.states_path)),
    }


def main(
    traces: Annotated[Path, typer.Option(help="Directory of the fixed traces.")],
    run_dir: Annotated[Path, typer.Option(help="Kept from run to run.")] = CACHE,
) -> None:
    """Compare the two; the last line is JSON."""
    torch.set_num_threads(2)
    config = ready(run_dir, traces)
    into = smollm2_config(run_dir / "fp8", *BASE, f"extract.states_dtype={FP8}")
    pack_again(config, into)
    figures = errors(config, into)
    print(msgspec.json.encode(figures).decode(), flush=True)
    for name, one in (("bfloat16", config), ("fp8", into)):
        trainee, _ = trained(one)
        figures[f"acceptance_{name}"] = judged(trainee, config, 3).length
    figures["acceptance_ratio"] = figures["acceptance_fp8"] / figures["acceptance_bfloat16"]
    print(msgspec.json.encode(figures).decode())


if __name__ == "__main__":
    typer.run(main)

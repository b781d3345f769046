"""A run small enough for a test: a verifier of 24 tokens that counts, its replies and its states.

The verifier's next token is always the current one plus 3 (modulo 24): its final state points at that
token's row of the head, its aux states are fixed random projections of the current token.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch
from safetensors.torch import save_file

from eagle.shards import write_shard
from eagle.states import SampleStates
from eagle.taps import CONVENTION, TapPoints
from eagle.verifier import VerifierWeights
from eagle.vocab import make_vocab
from synthgen.corpus.config import RunConfig
from synthgen.corpus.journal import write_journal
from synthgen.corpus.manifest import digest_of, manifest_of, require_manifest, write_manifest
from synthgen.corpus.records import Finish, Message, Sampling, Timing, Trace
from synthgen.corpus.samples import sample_of
from synthgen.corpus.settings import load_config
from synthgen.corpus.token_ids import encode_ids
from tests.rows import row_of

ROOT = Path(__file__).parent.parent.parent
HIDDEN, VOCAB, LAYERS, STRIDE = 32, 24, 8, 3

SETTINGS = {
    "extract.aux_layers": "[2, 4, 5]",
    "extract.max_seq_tokens": "64",
    "vocab.size": "20",
    "draft.intermediate_size": "48",
    "draft.num_attention_heads": "4",
    "draft.num_key_value_heads": "2",
    "draft.head_dim": "8",
    "draft.rms_norm_eps": "1.0e-6",
    "draft.max_position_embeddings": "256",
    "draft.norm_before_residual": "true",
    "draft.fc_norm": "true",
    "draft.norm_output": "true",
    "train.device": "cpu",
    "train.compute_dtype": "float32",
    "train.epochs": "2",
    "train.batch_tokens": "64",
    "train.batches_per_step": "1",
    "train.max_seq_tokens": "48",
    "train.ttt_steps": "3",
    "train.ttt_decay": "1.0",
    "train.optimizer": "muon",
    "train.learning_rate": "0.01",
    "train.adamw_learning_rate": "0.003",
    "train.weight_decay": "0.01",
    "train.warmup_fraction": "0.1",
    "train.grad_clip_norm": "1.0",
    "train.head": "trained",
    "train.checkpoint_steps": "4",
    "train.keep_checkpoints": "2",
    "train.validate_steps": "3",
    "train.patience": "null",
    "train.log_steps": "2",
    "train.stream": "false",
    "train.stream_spool_mib": "1",
    "train.trackers": "[]",
}


def tiny_config(directory: Path, **settings: str) -> RunConfig:
    """The demo's config with everything that matters here laid over; `train__epochs="3"` overrides."""
    values = {"run_dir": str(directory / "run"), "verifier.model": str(directory / "verifier"), **SETTINGS}
    values |= {name.replace("__", "."): value for name, value in settings.items()}
    return load_config(ROOT / "configs/demo.yaml", tuple(f"{k}={v}" for k, v in values.items()))


def verifier_tensors() -> dict[str, torch.Tensor]:
    """Embedding, final norm and head of the counting verifier."""
    generator = torch.Generator().manual_seed(1)
    return {
        "model.embed_tokens.weight": torch.randn(VOCAB, HIDDEN, generator=generator),
        "model.norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": torch.randn(VOCAB, HIDDEN, generator=generator),
    }


def counting_weights() -> VerifierWeights:
    """The same as training reads them."""
    tensors = verifier_tensors()
    return VerifierWeights(
        embedding_VH=tensors["model.embed_tokens.weight"],
        norm_H=tensors["model.norm.weight"],
        head_VH=tensors["lm_head.weight"],
    )


def counting_states(token_ids: tuple[int, ...]) -> torch.Tensor:
    """`[T, 4, H]`: three projections of each token, and a final state that points at the next."""
    projections = torch.randn(3, VOCAB, HIDDEN, generator=torch.Generator().manual_seed(2))
    ids_T = torch.tensor(token_ids)
    final_TH = verifier_tensors()["lm_head.weight"][(ids_T + STRIDE) % VOCAB]
    return torch.cat((projections[:, ids_T].transpose(0, 1), final_TH[:, None]), dim=1)


def trace(number: int, prompt: int = 3, output: int = 14) -> Trace:
    """The reply to prompt `number`: `output` tokens that go on counting, the first four of them thinking."""
    ids = tuple((number + STRIDE * i) % VOCAB for i in range(prompt + output))
    return Trace(
        seed_id=f"seed{number:02d}",
        sample_index=0,
        source="test",
        domain="count",
        messages=(Message(role="user", content="count"),),
        prompt_token_ids=ids[:prompt],
        output=encode_ids(ids[prompt:]),
        think_end=3,
        tool_start=None,
        thinking="…",
        response="…",
        finish=Finish.STOP,
        truncated_in=None,
        sampling=Sampling(temperature=0.0, top_p=1.0, max_tokens=64, thinking=True),
        server="0" * 16,
        timing=Timing(started_at=0.0, seconds=1.0),
    )


def write_verifier(directory: Path) -> None:
    """The counting verifier as a checkpoint directory; only what training reads of it."""
    directory.mkdir(parents=True, exist_ok=True)
    save_file(verifier_tensors(), directory / "model.safetensors")
    shape = {
        "hidden_size": HIDDEN,
        "vocab_size": VOCAB,
        "num_hidden_layers": LAYERS,
        "rms_norm_eps": 1e-6,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    (directory / "config.json").write_bytes(msgspec.json.encode(shape))


def write_run(config: RunConfig, samples: int = 12, heldout: int = 0) -> None:
    """Everything that training reads: verifier, traces, states and vocabulary, with their manifests.

    `heldout` samples more are held out of training.
    """
    write_verifier(Path(config.verifier.model))
    traces = [
        trace(number, prompt=3 + number % 3, output=8 + number % 12) for number in range(samples + heldout)
    ]
    write_dataset(config, traces[:samples], traces[samples:])
    write_states(config, traces)
    make_vocab(config)


def write_dataset(config: RunConfig, traces: list[Trace], heldout: Sequence[Trace] = ()) -> None:
    """A dataset of all these traces, as `synthgen mix` leaves it."""
    config.dataset_path.mkdir(parents=True)
    write_journal(config.train_path, [row_of(one) for one in traces])
    write_journal(config.validation_path, [row_of(one) for one in heldout])
    write_manifest(config.dataset_path, manifest_of("mix", settings={}, inputs={}, figures={}, seconds=1.0))


def write_states(config: RunConfig, traces: list[Trace]) -> None:
    """The shards of `traces` and their manifest, as `eagle extract` leaves them."""
    for one in traces:
        sample = sample_of(one).cut(config.extract.max_seq_tokens)
        states = SampleStates.captured(
            sample.id,
            torch.tensor(sample.token_ids),
            counting_states(sample.token_ids),
            states_dtype=config.extract.states_dtype,
        )
        write_shard(config.states_path, [states])
    taps = TapPoints(aux=config.extract.aux_layers, num_layers=LAYERS)
    settings = {
        "verifier": {"model": config.verifier.model, "revision": config.verifier.revision},
        "taps": {"ids": taps.captured, "convention": CONVENTION, "final": "before the norm"},
        "max_seq_tokens": config.extract.max_seq_tokens,
        "dtype": config.server.dtype,
    }
    figures = {"samples": len(traces)}
    inputs = {"dataset": digest_of(require_manifest(config.dataset_path, "synthgen mix CONFIG"))}
    write_manifest(
        config.states_path,
        manifest_of("extract", settings=settings, inputs=inputs, figures=figures, seconds=1.0),
    )

"""The verifier loaded into this process by transformers: states of a small one without a server.

They are also what the states of a server are compared with. transformers is imported when a model is loaded:
that takes seconds, and most commands do without.
"""

from __future__ import annotations

import asyncio
import importlib
from dataclasses import dataclass
from typing import Any

import msgspec
import torch

from eagle.prefill import checked, wanted_layers
from eagle.spool import Captured
from eagle.states import SampleStates
from eagle.verifier_tensors import INDEX_FILE
from synthgen.client.control import TOKENIZER_PROBE
from synthgen.corpus.config import RunConfig
from synthgen.corpus.files import SPARE, in_units
from synthgen.corpus.machine import memory_bytes
from synthgen.corpus.manifest import digest
from synthgen.corpus.samples import Sample
from synthgen.corpus.sections import VerifierConfig
from synthgen.corpus.verifier_config import VerifierShape
from synthgen.corpus.verifier_files import fetched, hub_model, local_directory
from synthgen.errors import ArtifactError, ConfigError


@dataclass(frozen=True, slots=True)
class TransformersBackend:
    """A verifier in this process, asked for one sample at a time."""

    config: RunConfig
    shape: VerifierShape
    model: Any
    turn: asyncio.Lock

    @classmethod
    def loaded(cls, config: RunConfig, shape: VerifierShape) -> TransformersBackend:
        """In the dtype and on the device that a server of this run would have.

        Raises ConfigError when it is too large for the memory that is there, else as `load_verifier` does.
        """
        require_room(config.verifier, config.server.device)
        model = load_verifier(config.verifier, config.server.dtype).to(config.server.device)
        return cls(config, shape, model, asyncio.Lock())

    @property
    def seconds_down(self) -> float:
        """It never goes away."""
        return 0.0

    async def states_of(self, sample: Sample) -> SampleStates:
        """The states of a sample's tokens. Raises ArtifactError when they are not finite."""
        layers = wanted_layers(self.config.extract, self.shape)
        async with self.turn:
            token_ids_T = torch.tensor(sample.token_ids)
            states_T4H = await asyncio.to_thread(states_from, self.model, token_ids_T, layers[:3])
        captured = Captured(
            token_ids_T=token_ids_T,
            states_T4H=states_T4H.cpu(),
            layer_ids=layers,
            dtype=str(states_T4H.dtype).removeprefix("torch."),
        )
        return checked(sample, captured, self.shape, self.config.extract)


def require_room(verifier: VerifierConfig, device: str) -> None:
    """Raise ConfigError unless a checkpoint and a tenth fit into the memory that can be had on a device."""
    needed = checkpoint_bytes(verifier)
    free = torch.cuda.mem_get_info()[0] if device == "cuda" else memory_bytes()
    if needed * SPARE > free:
        raise ConfigError(
            f"extract.backend: transformers loads all of {verifier.model}, {in_units(needed)} of weights, "
            f"and {in_units(free)} of memory are available ({device}): set it to vllm"
        )


def checkpoint_bytes(verifier: VerifierConfig) -> int:
    """Bytes of a checkpoint's weights; 0 for one of the hub that has but one file."""
    directory = local_directory(verifier)
    if directory is not None:
        return sum(file.stat().st_size for file in directory.glob("*.safetensors"))
    index = fetched(hub_model(verifier), INDEX_FILE)
    said = msgspec.json.decode(index.read_bytes()) if index else {}
    return int(said.get("metadata", {}).get("total_size", 0))


def tokenizer_digest(verifier: VerifierConfig) -> str:
    """The digest by which a server's fingerprint names this verifier's tokenizer.

    Raises ArtifactError when transformers can't load it.
    """
    transformers = importlib.import_module("transformers")
    tokenizer = _loaded(transformers.AutoTokenizer, verifier)
    return digest(list(tokenizer.encode(TOKENIZER_PROBE, add_special_tokens=False)))


def load_verifier(verifier: VerifierConfig, dtype: str = "float32") -> Any:
    """A directory's or hub's model in `dtype` on the CPU.

    Raises ArtifactError when transformers can't load it.
    """
    transformers = importlib.import_module("transformers")
    transformers.utils.logging.disable_progress_bar()
    return _loaded(transformers.AutoModelForCausalLM, verifier, dtype=dtype).eval()


def _loaded(kind: Any, verifier: VerifierConfig, **options: Any) -> Any:
    name = local_directory(verifier) or hub_model(verifier).id
    options |= {"revision": verifier.revision, "trust_remote_code": verifier.trust_remote_code}
    try:
        return kind.from_pretrained(name, **options)
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{name}: transformers can't load it: {error}") from error


def states_from(model: Any, token_ids_T: torch.Tensor, aux: tuple[int, ...]) -> torch.Tensor:
    """`[T, 4, H]`: the states before the aux layers, and the final one before the norm.

    transformers' last hidden state is after the norm, so the final one is taken where the norm reads it.
    Raises ArtifactError for a model that has no such norm.
    """
    decoder = model.get_decoder()
    if not hasattr(decoder, "norm"):
        raise ArtifactError(f"{type(model).__name__} has no final `norm` to take states at: only vLLM can")
    finals: list[torch.Tensor] = []
    hook = decoder.norm.register_forward_pre_hook(lambda _, inputs: finals.append(inputs[0]))
    try:
        with torch.no_grad():
            ids = token_ids_T[None].to(model.device)
            hidden = decoder(ids, output_hidden_states=True, use_cache=False).hidden_states
    finally:
        hook.remove()
    return torch.stack([*(hidden[k][0] for k in aux), finals[0][0]], dim=1)

"""The run's validation samples, whose states lie in shards."""

from __future__ import annotations

from eagle.batches import Document
from eagle.feed import read_documents
from synthgen.corpus.config import RunConfig
from synthgen.corpus.manifest import read_manifest
from synthgen.corpus.samples import each_sample
from synthgen.errors import ArtifactError


def heldout_documents(config: RunConfig) -> list[tuple[Document, str]]:
    """Each with its domain. Raises ArtifactError when there is none, or its states are of another model."""
    states = read_manifest(config.states_path)
    if states is None or not states.complete:
        raise ArtifactError(f"{config.states_path} has no states: run `eagle extract CONFIG` first")
    longest = config.extract.max_seq_tokens
    domains = {sample.id: sample.domain for sample in each_sample(config.validation_path, longest)}
    if not domains:
        raise ArtifactError(f"{config.validation_path} has no samples: set mix.heldout_fraction above 0")
    documents = read_documents(config, config.validation_path)
    return [(document, domains[document.sample_id]) for document in documents]

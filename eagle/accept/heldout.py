"""The draft on the run's validation samples, whose states lie in shards."""

from __future__ import annotations

from eagle.accept.offline import Judge, Judged
from eagle.feed import read_documents
from synthgen.corpus.config import RunConfig
from synthgen.corpus.manifest import read_manifest
from synthgen.corpus.samples import each_sample


def judge_heldout(config: RunConfig, judge: Judge) -> tuple[list[Judged], tuple[str, ...]]:
    """What the draft gets right in them; without any, why.

    Raises ArtifactError when the states are of other tokens or of another model.
    """
    states = read_manifest(config.states_path)
    if states is None or not states.complete:
        return [], (f"the draft on validation samples: {config.states_path} has no states",)
    longest = config.extract.max_seq_tokens
    domains = {sample.id: sample.domain for sample in each_sample(config.validation_path, longest)}
    if not domains:
        return [], ("the draft on validation samples: mix.heldout_fraction left none",)
    documents = read_documents(config, config.validation_path)
    return [judge.judge(document, domains[document.sample_id]) for document in documents], ()

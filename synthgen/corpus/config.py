"""A whole run: one complete, strict YAML, and where its artifacts are.

Sections that can't go together are refused here, before anything is loaded or sent.
"""

from __future__ import annotations

from pathlib import Path

from synthgen.corpus.draft_sections import (
    AcceptConfig,
    DraftConfig,
    ExtractConfig,
    TrainConfig,
    VocabConfig,
)
from synthgen.corpus.sections import (
    ExportConfig,
    GenerateConfig,
    MixConfig,
    PlanConfig,
    PromptsConfig,
    ScreenConfig,
    Section,
    ServerConfig,
    VerifierConfig,
)


class RunConfig(Section, frozen=True, kw_only=True):
    """A whole run."""

    run_dir: str
    seed: int
    verifier: VerifierConfig
    prompts: PromptsConfig
    server: ServerConfig
    generate: GenerateConfig
    screen: ScreenConfig
    mix: MixConfig
    export: ExportConfig
    extract: ExtractConfig
    vocab: VocabConfig
    draft: DraftConfig
    train: TrainConfig
    accept: AcceptConfig
    plan: PlanConfig

    def __post_init__(self) -> None:
        if self.generate.thinking and self.verifier.think_end is None:
            raise ValueError(
                "generate.thinking is true, but verifier.think_end names no token that closes it"
            )
        room = self.server.max_model_len_tokens
        for name, tokens in (
            ("generate.max_tokens", self.generate.max_tokens),
            ("accept.max_tokens", self.accept.max_tokens),
            ("extract.max_seq_tokens", self.extract.max_seq_tokens),
        ):
            if tokens >= room:
                raise ValueError(f"{name} {tokens} leaves no room in server.max_model_len_tokens {room}")
        servers = 2 + self.accept.untrained
        on_gpu = self.server.device == "cuda"
        if on_gpu and self.accept.servers_at_once and servers * self.server.gpu_memory_fraction > 1:
            raise ValueError(
                f"accept.servers_at_once would start {servers} servers with server.gpu_memory_fraction "
                f"{self.server.gpu_memory_fraction} each: set it to false, or the fraction below 1/{servers}"
            )
        if self.train.stream and self.generate.capture:
            raise ValueError(
                "train.stream and generate.capture can't go together: captured states lie on the disk until "
                "`eagle extract` packs them, which streaming does without: set one of them to false"
            )
        if self.train.stream and self.train.processes > 1 and not self.server.base_urls:
            raise ValueError(
                f"train.stream with train.processes {self.train.processes} needs servers that run: set "
                f"server.base_urls to where `synthgen serve CONFIG --role capture` serves"
            )
        if self.train.max_seq_tokens > self.draft.max_position_embeddings:
            raise ValueError(
                f"train.max_seq_tokens {self.train.max_seq_tokens} is more than "
                f"draft.max_position_embeddings {self.draft.max_position_embeddings}"
            )
        if self.accept.prompts > self.prompts.heldout or self.accept.single_prompts > self.prompts.heldout:
            raise ValueError(
                f"accept.prompts {self.accept.prompts} and accept.single_prompts "
                f"{self.accept.single_prompts} can't be more than prompts.heldout {self.prompts.heldout}"
            )

    @property
    def run_path(self) -> Path:
        """The run directory."""
        return Path(self.run_dir)

    @property
    def plan_path(self) -> Path:
        """What the run was planned to take, before its first stage."""
        return self.run_path / "plan.json"

    @property
    def corpus_path(self) -> Path:
        """The journals of traces and failures."""
        return self.run_path / "corpus"

    @property
    def traces_path(self) -> Path:
        """The journal of replies."""
        return self.corpus_path / "traces.jsonl"

    @property
    def failures_path(self) -> Path:
        """The journal of prompts that got no reply."""
        return self.corpus_path / "failures.jsonl"

    @property
    def heldout_path(self) -> Path:
        """The prompts that are kept from the corpus."""
        return self.corpus_path / "heldout.jsonl"

    @property
    def prompts_path(self) -> Path:
        """The prompts that were chosen from the sources."""
        return self.run_path / "prompts"

    @property
    def screen_path(self) -> Path:
        """The verdicts on the traces."""
        return self.run_path / "screen"

    @property
    def verdicts_path(self) -> Path:
        """One verdict a trace, in the order of the traces."""
        return self.screen_path / "verdicts.jsonl"

    @property
    def rendered_path(self) -> Path:
        """Replies that others wrote, with the ids the verifier's server gives them."""
        return self.run_path / "rendered"

    @property
    def audit_path(self) -> Path:
        """What a pipeline of texts would have made of the traces."""
        return self.run_path / "audit"

    @property
    def dataset_path(self) -> Path:
        """The mixed samples."""
        return self.run_path / "dataset"

    @property
    def train_path(self) -> Path:
        """The samples that a draft is trained on."""
        return self.dataset_path / "train.jsonl"

    @property
    def validation_path(self) -> Path:
        """The samples that are held out of them."""
        return self.dataset_path / "heldout.jsonl"

    @property
    def exports_path(self) -> Path:
        """The dataset in the formats of others, one directory each."""
        return self.run_path / "exports"

    @property
    def spool_path(self) -> Path:
        """Where a capturing server writes hidden states, one file a request, until they are packed."""
        return self.run_path / "spool"

    @property
    def states_path(self) -> Path:
        """The shards of hidden states."""
        return self.run_path / "states"

    @property
    def vocab_path(self) -> Path:
        """The draft vocabulary."""
        return self.run_path / "vocab"

    @property
    def checkpoints_path(self) -> Path:
        """The training checkpoints."""
        return self.run_path / "draft" / "checkpoints"

    @property
    def training_log_path(self) -> Path:
        """One line every `train.log_steps`."""
        return self.run_path / "draft" / "train_log.jsonl"

    @property
    def validation_log_path(self) -> Path:
        """One line every validation."""
        return self.run_path / "draft" / "validation_log.jsonl"

    @property
    def tensorboard_path(self) -> Path:
        """The same for TensorBoard."""
        return self.run_path / "draft" / "tensorboard"

    @property
    def export_path(self) -> Path:
        """The draft as a server loads it."""
        return self.run_path / "draft" / "export"

    @property
    def untrained_path(self) -> Path:
        """The same draft before its first step, as a server loads it."""
        return self.run_path / "draft" / "untrained"

    @property
    def accept_path(self) -> Path:
        """The live acceptance report."""
        return self.run_path / "accept"

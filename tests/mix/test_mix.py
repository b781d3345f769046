"""Mixing: shares, sides, and rows that read back as they were sampled."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from synthgen.corpus.config import RunConfig
from synthgen.corpus.journal import read_journal, write_journal
from synthgen.corpus.manifest import digest_of, manifest_of, require_manifest, write_manifest
from synthgen.corpus.records import (
    Finish,
    FunctionCall,
    Message,
    Sampling,
    SeedPrompt,
    Timing,
    ToolCall,
    Trace,
    TruncatedIn,
    prompt_key,
)
from synthgen.corpus.samples import DatasetRow, Origin, Span, SpanKind, read_samples, sample_of
from synthgen.corpus.settings import load_config
from synthgen.corpus.token_ids import encode_ids
from synthgen.corpus.verdicts import DropReason, Verdict
from synthgen.errors import ArtifactError, ConfigError
from synthgen.mix.stage import mix
from synthgen.render.stage import inputs_of, settings_of
from synthgen.screen.stage import settings_of as verdict_settings
from tests.rows import row_of

NATIVE = {"name": "native", "share": 0.7, "traces": [], "replies": None}
BLEND = {"name": "perfectblend", "share": 0.3, "traces": None, "replies": "blend.parquet"}


def trace(number: int, *, source: str = "seeds.jsonl", tokens: int = 20, **changes: Any) -> Trace:
    """A trace of its own prompt, half thinking."""
    fields: dict[str, Any] = {
        "seed_id": f"{number:016x}",
        "sample_index": 0,
        "source": source,
        "domain": "math",
        "messages": (Message(role="user", content=f"question {number}"),),
        "prompt_token_ids": (1, 2, 3),
        "output": encode_ids(range(100, 100 + tokens)),
        "think_end": tokens // 2 - 1,
        "tool_start": None,
        "thinking": "hm “\u2028",
        "response": "so",
        "finish": Finish.STOP,
        "truncated_in": None,
        "sampling": Sampling(temperature=1.0, top_p=1.0, max_tokens=8, thinking=True),
        "server": "feed",
        "timing": Timing(started_at=0.0, seconds=1.0),
    }
    return Trace(**{**fields, **changes})


def verbatim(number: int, tokens: int = 10) -> DatasetRow:
    """A rendered row of the second part."""
    messages = (Message(role="user", content=f"other question {number}"),)
    return DatasetRow(
        id=f"v-{number}",
        domain="meta-math",
        token_ids=tuple(range(4 + tokens)),
        spans=(Span(start=4, end=4 + tokens, kind=SpanKind.RESPONSE),),
        part="perfectblend",
        source="open-perfectblend",
        origin=Origin.VERBATIM,
        prompt=prompt_key(messages),
        messages=messages,
        response="an answer",
        server="feed",
    )


@dataclass
class Run:
    """A run directory as generate, screen and render leave it."""

    config: RunConfig
    traces: list[Trace]
    dropped: dict[str, DropReason] = field(default_factory=dict)
    rendered: list[DatasetRow] = field(default_factory=list)
    heldout: list[SeedPrompt] = field(default_factory=list)

    def write(self) -> RunConfig:
        """Put it on disk."""
        config = self.config
        config.corpus_path.mkdir(parents=True)
        write_journal(config.traces_path, self.traces)
        write_journal(config.heldout_path, self.heldout)
        self._manifest(config.corpus_path, "generate", {"server": "feed"})
        verdicts = [self._verdict(one) for one in self.traces]
        config.screen_path.mkdir()
        write_journal(config.verdicts_path, verdicts)
        corpus = digest_of(require_manifest(config.corpus_path, ""))
        self._manifest(config.screen_path, "screen", {"corpus": corpus}, verdict_settings(config))
        if self.rendered:
            config.rendered_path.mkdir()
            write_journal(config.rendered_path / "rows.jsonl", self.rendered)
            self._manifest(config.rendered_path, "render", inputs_of(config), settings_of(config))
        return config

    def _verdict(self, one: Trace) -> Verdict:
        reason = self.dropped.get(one.id)
        return Verdict(
            trace=one.id,
            source=one.source,
            domain=one.domain,
            prompt=prompt_key(one.messages),
            tokens=one.output_length,
            reason=reason,
            tags=(reason,) if reason else (),
        )

    def _manifest(
        self, directory: Path, stage: str, inputs: dict[str, str], settings: dict[str, Any] | None = None
    ) -> None:
        made = manifest_of(
            stage,
            settings=settings or {},
            inputs=inputs,
            figures={"traces": len(self.traces)},
            seconds=1.0,
        )
        write_manifest(directory, made)


@pytest.fixture
def configured(
    demo_values: dict[str, Any], write_config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """A function that gives the demo's config with a section `mix` of these values, by default none held out.

    The replies of the second part lie where the test runs.
    """
    monkeypatch.chdir(tmp_path)
    for name in ("blend.parquet", "other.parquet"):
        Path(name).write_text(name)

    def config(**changes: Any) -> RunConfig:
        demo_values["mix"] |= {"heldout_fraction": 0.0} | changes
        return load_config(write_config(demo_values))

    return config


def rows(path: Path) -> list[DatasetRow]:
    """A side of a dataset."""
    return list(read_journal(path, DatasetRow))


CALL = ToolCall(id="functions.f:0", function=FunctionCall(name="f", arguments="{}"))


def test_rows_hold_what_the_traces_held(configured: Any) -> None:
    """Copied without being decoded, they read back the same: ids, spans, texts, tools."""
    traces = [
        trace(1),
        trace(2, think_end=None, finish=Finish.LENGTH, truncated_in=TruncatedIn.THINKING, response=None),
        trace(3, think_end=None, tool_start=5, tool_calls=(CALL,), finish=Finish.TOOL_CALLS,
              tools=({"type": "function", "function": {"name": "f"}},)),
        trace(4, think_end=None, thinking=None,
              sampling=Sampling(temperature=0.0, top_p=1.0, max_tokens=8, thinking=False)),
        trace(5, turn=1, messages=(Message(role="system", content="be brief"),
                                   Message(role="user", content="one"),
                                   Message(role="assistant", content="1"),
                                   Message(role="user", content="two"))),
    ]  # fmt: skip
    config = Run(configured(), traces).write()
    mix(config)
    assert rows(config.train_path) == [row_of(one) for one in traces]
    assert read_samples(config.train_path, 1000) == [sample_of(one) for one in traces]


def test_shares_hold_to_within_one_percent_and_no_prompt_is_on_both_sides(configured: Any) -> None:
    """70/30 by supervised tokens, on each side of the split."""
    config = Run(
        configured(parts=[NATIVE, BLEND], heldout_fraction=0.2),
        [trace(number, tokens=20 + number % 30) for number in range(1000)],
        rendered=[verbatim(number, 5 + number % 20) for number in range(1000)],
    ).write()
    figures = mix(config).figures
    assert figures["parts"]["native"]["got"] == pytest.approx(0.7, abs=0.01)
    assert figures["parts"]["perfectblend"]["got"] == pytest.approx(0.3, abs=0.01)
    train, heldout = rows(config.train_path), rows(config.validation_path)
    assert (len(train), len(heldout)) == (figures["rows"], figures["heldout_rows"])
    for side in (train, heldout):
        native = sum(s.end - s.start for row in side if row.part == "native" for s in row.spans)
        everything = sum(s.end - s.start for row in side for s in row.spans)
        assert native / everything == pytest.approx(0.7, abs=0.01)
    assert not {row.prompt for row in train} & {row.prompt for row in heldout}
    assert 0.1 < len(heldout) / (len(train) + len(heldout)) < 0.3


def test_shares_may_be_of_rows(configured: Any) -> None:
    """300 rows of the second part allow 700 of the first."""
    config = Run(
        configured(parts=[NATIVE, BLEND], unit="rows"),
        [trace(number, tokens=400) for number in range(1000)],
        rendered=[verbatim(number) for number in range(300)],
    ).write()
    mix(config)
    found = rows(config.train_path)
    assert [sum(row.part == name for row in found) for name in ("native", "perfectblend")] == [700, 300]


def test_counts_are_by_part_source_and_span_kind(configured: Any) -> None:
    """Ten of thinking and ten of response in each trace."""
    config = Run(
        configured(parts=[NATIVE | {"share": 0.5}, BLEND | {"share": 0.5}]),
        [trace(1), trace(2)],
        rendered=[verbatim(number) for number in range(4)],
    ).write()
    figures = mix(config).figures
    assert figures["parts"]["native"]["train"] == {
        "rows": 2, "tokens": 40, "thinking_tokens": 20, "response_tokens": 20,
    }  # fmt: skip
    assert figures["sources"] == {
        "open-perfectblend": {"rows": 4, "tokens": 40, "response_tokens": 40},
        "seeds.jsonl": {"rows": 2, "tokens": 40, "response_tokens": 20, "thinking_tokens": 20},
    }


def test_parts_may_be_traces_of_other_prompts(configured: Any) -> None:
    """Regenerated prompts of open-perfectblend are traces of that source; [] takes the rest."""
    regenerated = {"name": "regenerated", "share": 0.5, "traces": ["open-perfectblend"], "replies": None}
    config = Run(
        configured(parts=[NATIVE | {"share": 0.5}, regenerated]),
        [trace(n, source="open-perfectblend" if n % 2 else "seeds.jsonl") for n in range(10)],
    ).write()
    mix(config)
    assert {(row.part, row.source) for row in rows(config.train_path)} == {
        ("native", "seeds.jsonl"),
        ("regenerated", "open-perfectblend"),
    }


def test_dropped_traces_and_held_out_prompts_stay_out(configured: Any) -> None:
    """A prompt kept for the acceptance is not trained on, not even under another system prompt."""
    asked = (Message(role="system", content="Be brief."), Message(role="user", content="Question  3"))
    kept_back = SeedPrompt(id="0" * 16, source="s", domain="d", messages=asked)
    traces = [trace(number) for number in range(5)]
    config = Run(
        configured(), traces, dropped={traces[1].id: DropReason.REPETITION}, heldout=[kept_back]
    ).write()
    mix(config)
    assert [row.messages[0].content for row in rows(config.train_path)] == [
        "question 0", "question 2", "question 4",
    ]  # fmt: skip


def test_the_same_mix_is_made_once(configured: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Other shares, or another corpus, make it anew."""
    config = Run(configured(), [trace(number) for number in range(9)]).write()
    first = mix(config)
    assert mix(config) == first
    assert "nothing to do" in capsys.readouterr().err
    half = msgspec.structs.replace(config.mix, heldout_fraction=0.5)
    assert mix(msgspec.structs.replace(config, mix=half)).figures["heldout_rows"] > 0


def test_verdicts_of_another_corpus_are_refused(configured: Any) -> None:
    """By their manifest, and one by one where that was not enough."""
    run = Run(configured(), [trace(1), trace(2)])
    config = run.write()
    for traces in ([trace(1)], [trace(1), trace(2), trace(3)]):
        write_journal(config.traces_path, traces)
        with pytest.raises(ArtifactError, match="another number of verdicts than there are traces"):
            mix(config)
    write_journal(config.traces_path, [trace(2), trace(1)])
    with pytest.raises(ArtifactError, match="has a verdict on 0000000000000001-0 where the corpus has"):
        mix(config)
    assert not config.dataset_path.exists()
    grown = manifest_of("generate", settings={}, inputs={}, figures={"traces": 3}, seconds=1.0)
    write_manifest(config.corpus_path, grown)
    with pytest.raises(ArtifactError, match="run `synthgen screen CONFIG` to bring it up to the corpus"):
        mix(config)


def test_verdicts_by_other_rules_are_refused(configured: Any) -> None:
    """What the config drops now is what has to have been judged."""
    config = Run(configured(), [trace(1)]).write()
    milder = msgspec.structs.replace(config.screen, drop=())
    with pytest.raises(ArtifactError, match=r"settings\.screen\.drop = .*run `synthgen screen CONFIG`"):
        mix(msgspec.structs.replace(config, screen=milder))


def test_a_part_with_nothing_to_give_is_refused(configured: Any) -> None:
    """And one that takes traces of a source that isn't there, with those that are."""
    everything = [trace(1), trace(2)]
    config = Run(
        configured(), everything, dropped=dict.fromkeys((t.id for t in everything), DropReason.REFUSAL)
    ).write()
    with pytest.raises(ConfigError, match="part 'native' has no rows to give"):
        mix(config)
    named = msgspec.structs.replace(config.mix.parts[0], traces=("blend",))
    with pytest.raises(ConfigError, match=r"takes traces of 'blend', but the corpus has only .*seeds\.jsonl"):
        mix(msgspec.structs.replace(config, mix=msgspec.structs.replace(config.mix, parts=(named,))))


def test_rendered_rows_that_are_older_than_the_config_or_the_corpus_are_refused(configured: Any) -> None:
    """Ids of another tokenizer, another source of replies or another exclusion don't slip in."""
    config = Run(
        configured(parts=[NATIVE, BLEND]), [trace(1), trace(2)], rendered=[verbatim(1), verbatim(2)]
    ).write()
    mix(config)
    parts = tuple(
        part if part.replies is None else msgspec.structs.replace(part, replies="other.parquet")
        for part in config.mix.parts
    )
    other = msgspec.structs.replace(config, mix=msgspec.structs.replace(config.mix, parts=parts))
    with pytest.raises(ArtifactError, match="run `synthgen render CONFIG` to make it anew"):
        mix(other)


def test_what_is_held_out_is_there_though_a_part_has_none_of_it(configured: Any) -> None:
    """Eight rows of the second part are all trained on; the traces held out still validate."""
    config = Run(
        configured(parts=[NATIVE, BLEND], heldout_fraction=0.05),
        [trace(number) for number in range(1000)],
        rendered=[verbatim(number) for number in range(8)],
    ).write()
    figures = mix(config).figures
    assert figures["parts"]["perfectblend"]["heldout"]["rows"] == 0
    assert 20 < figures["heldout_rows"] < 90


def test_a_corpus_without_its_held_out_prompts_is_refused(configured: Any) -> None:
    """Without them nothing would keep the prompts of the acceptance out of training."""
    config = Run(configured(), [trace(1)]).write()
    config.heldout_path.unlink()
    with pytest.raises(ArtifactError, match=r"heldout\.jsonl"):
        mix(config)


def test_a_dataset_that_lost_a_file_is_made_anew(configured: Any) -> None:
    """Its manifest alone doesn't make it complete."""
    config = Run(configured(), [trace(1), trace(2)]).write()
    mix(config)
    config.validation_path.unlink()
    mix(config)
    assert config.validation_path.exists()

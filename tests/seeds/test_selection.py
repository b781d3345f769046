"""Which prompts are chosen, and that the choice is made once."""

from __future__ import annotations

import os
import random
import shutil
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from synthgen.corpus.config import RunConfig
from synthgen.corpus.journal import write_journal
from synthgen.corpus.manifest import read_manifest
from synthgen.corpus.settings import load_config
from synthgen.errors import ArtifactError, ConfigError, InputError
from synthgen.plan.stages import plan
from synthgen.seeds import selection
from synthgen.seeds.choose import PromptSplit, select, split_prompts
from synthgen.seeds.selection import chosen, heldout_of, kept
from tests.conftest import prompts_config

LONG = " ".join(f"word{i}" for i in range(60))


def file_of(path: Path, *rows: Any) -> str:
    """A JSONL file; text is a prompt, a pair a domain and a prompt, None a bad row."""
    lines = []
    for row in rows:
        if row is None:
            lines.append(b"[]")
        elif isinstance(row, str):
            lines.append(msgspec.json.encode({"prompt": row}))
        else:
            lines.append(msgspec.json.encode({"domain": row[0], "prompt": row[1]}))
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return str(path)


def texts(split: PromptSplit) -> list[str]:
    """The corpus as texts."""
    return [prompt.messages[-1].content or "" for prompt in split.corpus]


def test_every_row_comes_to_one_end(tmp_path: Path) -> None:
    """One of each kind; case doesn't matter to what is excluded."""
    near, excluded_near = LONG.replace("word30", "other"), LONG.replace("word", "term").replace("term30", "x")
    rows = [*(("a", f"question {i}") for i in range(30)), *(("b", f"thing {i}") for i in range(10))]
    source = file_of(
        tmp_path / "p.jsonl", *rows, None, ("a", "question 1"), LONG, near, "2+2?", excluded_near
    )
    config = prompts_config(
        sources=(source,),
        on_bad_row="skip",
        near_duplicates=0.8,
        exclude=(file_of(tmp_path / "x.jsonl", "2+2?", LONG.replace("word", "TERM")),),
        caps={"a": 12},
        limit=15,
        heldout=4,
    )
    figures = split_prompts(config, seed=1).figures
    assert figures.ends == {
        "left_out": 1,
        "duplicate": 1,
        "near_duplicate": 1,
        "excluded": 1,
        "near_excluded": 1,
        "over_cap": 18,
        "not_drawn": 4,
        "heldout": 4,
        "corpus": 15,
    }
    assert (figures.rows, figures.distinct) == (46, 44)
    assert sum(figures.ends.values()) == figures.rows
    assert {name: domain.read for name, domain in figures.domains.items()} == {"a": 31, "b": 10, "p": 4}
    assert [file.corpus for file in figures.sources] == [15]


WORDS = st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=8).map(" ".join)
ROWS = st.lists(
    st.tuples(st.sampled_from(["x", "y", "z"]), WORDS), min_size=1, max_size=40, unique_by=lambda r: r[1]
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=ROWS,
    twice=st.integers(0, 5),
    cap=st.none() | st.integers(0, 10),
    limit=st.none() | st.integers(1, 20),
    near=st.sampled_from([None, 0.5, 1.0]),
    strata=st.sampled_from(["proportional", "even"]),
    shuffler=st.randoms(use_true_random=False),
)
def test_the_choice_adds_up_and_is_the_same_in_any_order(
    tmp_path: Path,
    rows: list[tuple[str, str]],
    twice: int,
    cap: int | None,
    limit: int | None,
    near: float | None,
    strata: str,
    shuffler: random.Random,
) -> None:
    """Rows that are bad or double included; a choice around the same held-out set is the first again."""
    whole: list[tuple[str, str] | None] = [*rows, *rows[:twice], None]
    config = prompts_config(
        sources=(file_of(tmp_path / "p.jsonl", *whole),),
        on_bad_row="skip",
        near_duplicates=near,
        exclude=(file_of(tmp_path / "x.jsonl", "a b c", "d"),),
        caps={} if cap is None else {rows[0][0]: cap},
        strata=strata,
        limit=limit,
        heldout=3,
    )
    first = select(config, 7)
    figures = first.figures
    assert sum(figures.ends.values()) == figures.rows == len(whole)
    assert figures.ends["corpus"] == len(first.corpus) == sum(d.corpus for d in figures.domains.values())
    assert sum(domain.read for domain in figures.domains.values()) == figures.rows - 1
    assert len(first.heldout) == figures.ends["heldout"] <= 3
    assert len(first.corpus) <= (limit or 40)

    shuffler.shuffle(whole)
    again = msgspec.structs.replace(
        config,
        sources=(
            file_of(tmp_path / "q.jsonl", *whole[: len(whole) // 2], ("x", "only here")),
            file_of(tmp_path / "p.jsonl", *whole[len(whole) // 2 :], ("x", "only here")),
        ),
    )
    one = select(again, 7)
    other = select(msgspec.structs.replace(again, sources=again.sources[::-1]), 7)
    assert [p.id for p in one.corpus] == [p.id for p in other.corpus]
    assert [p.id for p in one.heldout] == [p.id for p in other.heldout]
    assert one.figures.ends == other.figures.ends
    if one.heldout:
        assert [p.id for p in select(again, 7, one.heldout).corpus] == [p.id for p in one.corpus]


def test_which_of_two_near_prompts_stays_depends_on_the_seed_alone(tmp_path: Path) -> None:
    """Not on the order of the file."""
    pair = (LONG, LONG.replace("word30", "other"))
    stayed: set[str | None] = set()
    for seed in range(8):
        config = prompts_config(sources=("p",), near_duplicates=0.8, heldout=1)
        both = [
            select(
                msgspec.structs.replace(config, sources=(file_of(tmp_path / "p.jsonl", *rows, "x"),)), seed
            )
            for rows in (pair, pair[::-1])
        ]
        assert texts(both[0]) == texts(both[1])
        stayed.update(
            text for split in both for text in (*texts(split), split.heldout[0].messages[0].content)
        )
    assert stayed == {*pair, "x"}


def test_a_limit_is_shared_among_domains_and_a_larger_one_has_the_smaller(tmp_path: Path) -> None:
    """Even shares as far as domains last; the corpus mixes them in the order of the hash."""
    rows = [*(("big", f"b{i}") for i in range(60)), *(("small", f"s{i}") for i in range(6))]
    config = prompts_config(sources=(file_of(tmp_path / "p.jsonl", *rows),), strata="even", heldout=1)
    sizes = {}
    before: set[str] = set()
    order = texts(select(config, 3))
    for limit in (4, 10, 30):
        chosen_texts = texts(select(msgspec.structs.replace(config, limit=limit), 3))
        sizes[limit] = Counter(text[0] for text in chosen_texts)
        assert before <= set(chosen_texts)
        assert chosen_texts == [text for text in order if text in set(chosen_texts)]
        before = set(chosen_texts)
    assert sizes[4] == {"b": 2, "s": 2}
    assert sizes[10] == {"b": 5, "s": 5}
    assert sizes[30]["b"] >= 24
    proportional = msgspec.structs.replace(config, strata="proportional", limit=11)
    assert Counter(text[0] for text in texts(select(proportional, 3))) == {"b": 10, "s": 1}


def test_nothing_near_a_held_out_prompt_gets_into_the_corpus(tmp_path: Path) -> None:
    """Also when it comes later than the held-out set was drawn."""
    config = prompts_config(
        sources=(file_of(tmp_path / "p.jsonl", LONG, "x", "y"),), near_duplicates=0.8, heldout=2
    )
    heldout = select(config, 1).heldout
    (held,) = [
        p for p in select(msgspec.structs.replace(config, heldout=3), 1).heldout if "word1 " in texts_of(p)
    ]
    more = msgspec.structs.replace(
        config, sources=(file_of(tmp_path / "q.jsonl", LONG.replace("word30", "other"), "z", LONG),)
    )
    split = select(more, 1, (held,))
    assert (texts(split), split.heldout) == (["z"], (held,))
    assert (split.figures.ends["near_duplicate"], split.figures.ends["heldout"]) == (1, 1)
    assert len(heldout) == 2


def texts_of(prompt: Any) -> str:
    """A prompt's text."""
    return str(prompt.messages[-1].content)


def test_a_cap_on_a_domain_that_isnt_there_is_refused(tmp_path: Path) -> None:
    """It would cap nothing."""
    config = prompts_config(
        sources=(file_of(tmp_path / "p.jsonl", ("math", "1"), ("code", "2")),), caps={"m": 1}
    )
    with pytest.raises(
        ConfigError, match=r"prompts\.caps\.m: no prompt is of that domain; there are code, math"
    ):
        select(config, 1)


def test_what_is_left_for_the_corpus_is_told_when_it_is_nothing(tmp_path: Path) -> None:
    """With what was dropped before."""
    source = file_of(tmp_path / "p.jsonl", "a", "b", "c")
    config = prompts_config(sources=(source,), exclude=(file_of(tmp_path / "x.jsonl", "A"),), heldout=2)
    with pytest.raises(
        InputError, match=r"3 different prompts, of which 2 may be used, but prompts\.heldout a"
    ):
        split_prompts(config, seed=1)


def test_an_excluded_set_need_not_have_the_column_that_prompts_field_names(tmp_path: Path) -> None:
    """It is read by that column where it has it, else as it would be without."""
    pq.write_table(pa.table({"text": ["a", "b", "c", "d"]}), tmp_path / "p.parquet")
    pq.write_table(pa.table({"question": ["a"], "answer": ["1"]}), tmp_path / "x.parquet")
    pq.write_table(pa.table({"prompt": ["d"], "text": ["b"]}), tmp_path / "y.parquet")
    exclude = tuple(str(tmp_path / name) for name in ("x.parquet", "y.parquet"))
    config = prompts_config(sources=(str(tmp_path / "p.parquet"),), field="text", exclude=exclude)
    split = select(config, 1)
    assert {*texts(split), texts_of(split.heldout[0])} == {"c", "d"}


def test_a_blend_is_capped_by_its_source(tmp_path: Path) -> None:
    """As a file and as a dataset of the hub: the same prompts."""
    (tmp_path / "blend").mkdir()
    rows = [
        {"source": source, "conversations": [{"from": "human", "value": f"{source} {i}"}]}
        for source, count in (("meta-math/MetaMathQA", 50), ("HuggingFaceH4/ultrachat", 20))
        for i in range(count)
    ]
    file = tmp_path / "blend/train-00000-of-00001.parquet"
    pq.write_table(pa.Table.from_pylist(rows), file)
    config = prompts_config(sources=("p",), caps={"meta-math/MetaMathQA": 30}, heldout=5)
    one, other = (
        select(msgspec.structs.replace(config, sources=(source,)), 1)
        for source in (str(file), f"hub:{tmp_path / 'blend'}:train")
    )
    assert one.figures.domains == other.figures.domains
    assert [p.id for p in one.corpus] == [p.id for p in other.corpus]
    capped = one.figures.domains["meta-math/MetaMathQA"]
    assert (capped.read, capped.heldout + capped.corpus, capped.dropped) == (50, 30, 20)


@pytest.fixture
def run_config(demo_values: dict[str, Any], write_config: Any, tmp_path: Path) -> RunConfig:
    """A run of thirty prompts, two held out."""
    source = file_of(tmp_path / "p.jsonl", *(f"q{i}" for i in range(30)))
    demo_values["prompts"] |= {"sources": [source], "limit": 20, "heldout": 2}
    demo_values["accept"] |= {"prompts": 2, "single_prompts": 2}
    return load_config(write_config(demo_values))


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one each time that prompts are chosen."""
    calls: list[int] = []

    def counting(choose: Any) -> Any:
        def count(*arguments: Any) -> PromptSplit:
            calls.append(1)
            split: PromptSplit = choose(*arguments)
            return split

        return count

    monkeypatch.setattr(selection, "select", counting(select))
    monkeypatch.setattr(selection, "split_prompts", counting(split_prompts))
    return calls


def test_prompts_are_chosen_once(run_config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """And read by all: the same prompts with the same figures; the manifest says what from."""
    calls = counted(monkeypatch)
    first = kept(run_config)
    assert (kept(run_config), chosen(run_config)) == (first, first)
    assert plan(run_config).stage("generate").rows == 20
    assert len(calls) == 1
    manifest = read_manifest(run_config.prompts_path)
    assert manifest is not None
    assert manifest.inputs == {
        run_config.prompts.sources[0]: "500 bytes, sha256 "
        "b43b6deb2c3b5f6a65dea6309662fbb92a15dc71019efa58021def30ca0677bd"
    }
    assert manifest.figures["rows"]["ends"]["corpus"] == 20


@pytest.mark.parametrize("change", ["settings", "source", "file", "manifest"])
def test_another_setting_or_source_chooses_anew(
    run_config: RunConfig, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """As does a choice that was changed by hand; without that, never."""
    kept(run_config)
    calls = counted(monkeypatch)
    if change == "settings":
        run_config = msgspec.structs.replace(run_config, seed=8)
    elif change == "source":
        with Path(run_config.prompts.sources[0]).open("a") as file:
            file.write('{"prompt": "more"}\n')
    elif change == "file":
        path = run_config.prompts_path / "prompts.jsonl"
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[1:]))
    else:
        (run_config.prompts_path / "manifest.json").unlink()
    kept(run_config)
    kept(run_config)
    assert len(calls) == 1


def test_a_choice_follows_the_prompts_that_were_held_out(
    run_config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The corpus's own list is the truth once it is there."""
    first = kept(run_config)
    write_journal(run_config.heldout_path, first.corpus[:2])
    calls = counted(monkeypatch)
    second = kept(run_config)
    assert second.heldout == first.corpus[:2]
    assert not {p.id for p in second.heldout} & {p.id for p in second.corpus}
    assert kept(run_config) == second
    assert len(calls) == 1


def test_a_corpus_without_its_held_out_prompts_is_refused(run_config: RunConfig) -> None:
    """They would be trained on without a word."""
    first = kept(run_config)
    with pytest.raises(ArtifactError, match=r"corpus/heldout\.jsonl is missing: .* would be trained on"):
        heldout_of(run_config)
    write_journal(run_config.heldout_path, first.heldout)
    assert heldout_of(run_config) == first.heldout


def test_only_generate_writes(run_config: RunConfig) -> None:
    """plan, preview and prompts look, in a directory they may not write too."""
    chosen(run_config)
    plan(run_config)
    assert not run_config.run_path.exists()


def test_a_pipe_is_read_each_time(run_config: RunConfig, tmp_path: Path) -> None:
    """What comes out of it can't be compared beforehand."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    prompts = msgspec.structs.replace(run_config.prompts, sources=(str(pipe),))
    config = msgspec.structs.replace(run_config, prompts=prompts)
    for count in (9, 5):
        rows = "".join(f'{{"prompt": "q{i}"}}\n' for i in range(count))
        writer = threading.Thread(target=pipe.write_text, args=(rows,))
        writer.start()
        assert len(kept(config).corpus) == count - 2
        writer.join()


def test_a_source_that_is_gone_is_named(run_config: RunConfig) -> None:
    """What it was can't be told any more."""
    kept(run_config)
    Path(run_config.prompts.sources[0]).unlink()
    with pytest.raises(InputError, match=r"p\.jsonl: No such file or directory"):
        kept(run_config)


def test_a_hub_dataset_that_was_chosen_from_isnt_asked_again(
    run_config: RunConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A node without internet goes on with what was streamed; a directory is compared by its content."""
    (tmp_path / "d").mkdir()
    pq.write_table(pa.table({"prompt": [f"h{i}" for i in range(9)]}), tmp_path / "d/train.parquet")
    prompts = msgspec.structs.replace(run_config.prompts, sources=(f"hub:{tmp_path / 'd'}:train",))
    config = msgspec.structs.replace(run_config, prompts=prompts)
    first = kept(config)
    calls = counted(monkeypatch)
    assert kept(config) == first
    assert not calls
    pq.write_table(pa.table({"prompt": [f"h{i}" for i in range(8)]}), tmp_path / "d/train.parquet")
    assert len(kept(config).corpus) == 6
    assert len(calls) == 1


def test_a_damaged_choice_is_named_with_its_row(run_config: RunConfig) -> None:
    """It is never half used."""
    kept(run_config)
    with (run_config.prompts_path / "prompts.jsonl").open("a") as file:
        file.write("{}\n")
    with pytest.raises(ArtifactError, match=r"prompts\.jsonl:21: not a SeedPrompt"):
        kept(run_config)
    shutil.rmtree(run_config.prompts_path)
    assert len(kept(run_config).corpus) == 20


def test_rows_of_an_excluded_set_that_were_left_out_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What isn't read excludes nothing."""
    excluded = file_of(tmp_path / "x.jsonl", "a", None)
    source = file_of(tmp_path / "p.jsonl", "a", "b", "c")
    split_prompts(prompts_config(sources=(source,), exclude=(excluded,), on_bad_row="skip"), 1)
    expected = "x.jsonl: 1 of 2 rows left out, first at row 2: a line is a JSON object, this is list\n"
    assert capsys.readouterr().err == expected

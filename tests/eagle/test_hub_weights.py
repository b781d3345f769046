"""A verifier by hub id, fetched by huggingface_hub's own client from a hub on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from eagle.verifier import read_weights
from synthgen.corpus.sections import VerifierConfig
from synthgen.corpus.verifier_files import hub_model
from synthgen.errors import ConfigError
from tests.eagle.model_hub import COMMIT, Asked, ModelHub, model_hub
from tests.eagle.test_verifier import checkpoint, weights

ROOT = Path(__file__).parents[2]
READ = """
import sys
from eagle.hub_weights import checkpoint_directory
from synthgen.corpus.console import exits
from synthgen.corpus.sections import VerifierConfig
from synthgen.corpus.verifier_files import revision_of, shape_of

model, revision = sys.argv[1], sys.argv[2] or None
verifier = VerifierConfig(model=model, revision=revision, served_name="m", think_end=None, tool_section=None,
                          trust_remote_code=False)
with exits():
    if sys.argv[3:] == ["revision"]:
        print(revision_of(verifier))
        sys.exit()
    print(shape_of(verifier).vocab_size)
    if sys.argv[3:] != ["shape"]:
        print(checkpoint_directory(verifier))
"""
NOTHING_HERE = "error: verifier.model {}: no directory here ({}), and as a hub id "


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[ModelHub]:
    """A hub whose model has Kimi-K2.5's nested names, in four shards with an index."""
    with model_hub(checkpoint(tmp_path / "m", weights("language_model."), files=4, nested=True)) as server:
        yield server


def read(
    tmp_path: Path, hub: ModelHub | None, model: str, revision: str = "", *what: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """What a process of its own makes of a verifier: the hub's address is read at import."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    place = {"HF_HOME": str(tmp_path / "hf"), "PYTHONPATH": str(ROOT), "NO_PROXY": "127.0.0.1"}
    if hub is not None:
        place["HF_ENDPOINT"] = hub.url
    (tmp_path / "cwd").mkdir(exist_ok=True, parents=True)
    return subprocess.run(
        [sys.executable, "-c", READ, model, revision, *what],
        cwd=tmp_path / "cwd",
        env=clean | place | environment,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def require_weights(done: subprocess.CompletedProcess[str], directory: Path = Path()) -> None:
    """The sizes and the three tensors of the model are where the process says."""
    assert done.returncode == 0, done.stderr
    rows, place = done.stdout.splitlines()
    found = read_weights(directory / place)
    assert rows == "6"
    assert found.embedding_VH.tolist() == [[1.0] * 4] * 6
    assert found.norm_H.tolist() == [2.0] * 4
    assert found.head_VH.tolist() == [[3.0] * 4] * 6
    assert found.head_VH.dtype == torch.bfloat16


def test_of_a_hub_model_three_tensors_are_fetched_and_no_shard(tmp_path: Path, hub: ModelHub) -> None:
    """config.json and the index whole, the shards by header and tensor; the packed expert's never."""
    done = read(tmp_path, hub, "org/model")
    require_weights(done)
    assert (
        f"verifier.model org/model: no directory here; taken from the hub at commit {COMMIT}" in done.stderr
    )
    whole = {one.file for one in hub.asked if one.method == "GET" and one.span is None}
    assert whole == {"config.json", "model.safetensors.index.json"}
    shards = [one for one in hub.asked if one.file.endswith(".safetensors")]
    assert {one.file for one in shards} == {f"model-0000{n}.safetensors" for n in (0, 1, 3)}
    assert sorted(one.span[1] - one.span[0] for one in shards if one.span and one.span[0] > 8) == [8, 48, 48]


def test_what_is_cached_is_read_offline(tmp_path: Path, hub: ModelHub) -> None:
    """The second time nothing but the commit is asked, and without a hub nothing at all."""
    assert read(tmp_path, hub, "org/model").returncode == 0
    hub.asked.clear()
    require_weights(read(tmp_path, hub, "org/model"))
    assert hub.asked == [Asked("HEAD", "config.json", None)]
    hub.asked.clear()
    require_weights(read(tmp_path, hub, "org/model", HF_HUB_OFFLINE="1"))
    require_weights(read(tmp_path, hub, "org/model", COMMIT, HF_HUB_OFFLINE="1"))
    assert hub.asked == []


def test_processes_that_start_together_fetch_once(tmp_path: Path, hub: ModelHub) -> None:
    """One fetches, the others wait for it; what a killed one left is removed."""
    require_weights(read(tmp_path, hub, "org/model"))
    (fetched,) = (tmp_path / "hf").rglob("assets/**/model.safetensors")
    fetched.rename(left := fetched.with_name(".model.safetensors.0123456789ab.tmp"))
    hub.asked.clear()
    with ThreadPoolExecutor(2) as both:
        found = [both.submit(read, tmp_path, hub, "org/model") for _ in range(2)]
    for one in found:
        require_weights(one.result())
    assert sum(one.span is not None and one.span[0] > 8 for one in hub.asked) == 3
    assert not left.exists()


def test_the_commit_of_a_branch_is_what_artifacts_keep(tmp_path: Path, hub: ModelHub) -> None:
    """So that a branch that moves is another verifier; a directory has what the config says."""
    for named in ("", "main", COMMIT):
        assert read(tmp_path, hub, "org/model", named, "revision").stdout == f"{COMMIT}\n"
    (tmp_path / "cwd/here").mkdir()
    checkpoint(tmp_path / "cwd/here/model", weights())
    assert read(tmp_path, hub, "here/model", "", "revision").stdout == "None\n"


def test_sizes_alone_take_config_json_alone(tmp_path: Path, hub: ModelHub) -> None:
    """Stages that need no weight fetch none."""
    assert read(tmp_path, hub, "org/model", "", "shape").stdout == "6\n"
    assert {one.file for one in hub.asked} == {"config.json"}


def test_a_whole_copy_in_the_hubs_cache_is_read_where_it_is(tmp_path: Path, hub: ModelHub) -> None:
    """As vLLM leaves it: no range is asked for."""
    fetch = (
        "import huggingface_hub, sys; [huggingface_hub.hf_hub_download('org/model', f) for f in sys.argv[1:]]"
    )
    names = sorted(path.name for path in hub.directory.iterdir())
    place = {"HF_HOME": str(tmp_path / "hf"), "HF_ENDPOINT": hub.url, "NO_PROXY": "127.0.0.1"}
    subprocess.run(
        [sys.executable, "-c", fetch, *names], env=os.environ | place, check=True, capture_output=True
    )
    hub.asked.clear()
    require_weights(read(tmp_path, hub, "org/model"))
    assert hub.asked == [Asked("HEAD", "config.json", None)]


def test_a_directory_here_is_never_taken_as_an_id(tmp_path: Path, hub: ModelHub) -> None:
    """Even when its name is one that the hub has."""
    (tmp_path / "cwd/org").mkdir(parents=True)
    checkpoint(tmp_path / "cwd/org/model", weights())
    require_weights(read(tmp_path, hub, "org/model"), tmp_path / "cwd")
    assert hub.asked == []


def test_a_path_that_may_be_an_id_is_asked_for_only_with_a_revision(tmp_path: Path, hub: ModelHub) -> None:
    """`org/` is a directory here, so a model that isn't there is a wrong path, unless a revision is named."""
    (tmp_path / "cwd/org").mkdir(parents=True)
    done = read(tmp_path, hub, "org/model", "", "shape")
    assert (done.returncode, hub.asked) == (2, [])
    assert (
        f"error: verifier.model org/model: no directory here ({tmp_path}/cwd/org/model), and not taken as "
        f"a hub id, since org/ is a directory here: put the checkpoint there, or set verifier.revision "
        f"(main, a tag, a commit) if the hub's org/model is meant\n" in done.stderr
    )
    assert read(tmp_path, hub, "org/model", "main", "shape").stdout == "6\n"


@pytest.mark.parametrize(
    ("model", "revision", "told"),
    [
        (
            "org/none",
            "",
            "the hub has no such model, or it is private: mend the path or the id, or set HF_TOKEN",
        ),
        ("org/gated", "", "it is gated: accept its terms on its page on the hub and set HF_TOKEN"),
        ("org/model", "v2", "it has no revision v2: mend verifier.revision"),
        ("org/a--b", "", "it isn't valid: Cannot have -- or .. in repo_id: 'org/a--b'"),
    ],
)
def test_what_the_hub_has_not_is_told_with_both_readings(
    tmp_path: Path, hub: ModelHub, model: str, revision: str, told: str
) -> None:
    """The path that was looked at, and what the hub says of the id."""
    done = read(tmp_path, hub, model, revision, "shape")
    assert (done.returncode, done.stdout) == (2, "")
    name = f"{model}@{revision}" if revision else model
    assert NOTHING_HERE.format(name, tmp_path / "cwd" / model) + told in done.stderr


@pytest.mark.parametrize("model", ["/not/there", "./org/model", "gpt2", "a/b/c", "../a"])
def test_what_is_no_id_is_not_asked_for(model: str) -> None:
    """The form of an id is told."""
    verifier = VerifierConfig(
        model=model,
        revision=None,
        served_name="m",
        think_end=None,
        tool_section=None,
        trust_remote_code=False,
    )
    with pytest.raises(
        ConfigError, match=r"no directory here \(.*, and no hub id, which is written org/name"
    ):
        hub_model(verifier)


def test_offline_without_a_cache_is_told(tmp_path: Path, hub: ModelHub) -> None:
    """Nothing is cached, or config.json alone."""
    done = read(tmp_path, hub, "org/model", "", "shape", HF_HUB_OFFLINE="1")
    assert "its config.json isn't in the cache: run once without HF_HUB_OFFLINE, or mend" in done.stderr
    assert (done.returncode, hub.asked) == (2, [])
    assert read(tmp_path, hub, "org/model", "", "shape").returncode == 0
    done = read(tmp_path, hub, "org/model", HF_HUB_OFFLINE="1")
    assert ".safetensors.index.json isn't in the cache: run once without HF_HUB_OFFLINE" in done.stderr


def test_a_hub_that_does_not_answer_is_told(tmp_path: Path) -> None:
    """With what to see to, and the other way."""
    done = read(tmp_path, None, "org/none", "", "shape", HF_ENDPOINT="http://127.0.0.1:9")
    assert done.returncode == 2
    assert "and as a hub id its config.json can't be had: " in done.stderr
    assert "see to the network (HF_ENDPOINT, proxies) and run the same command again" in done.stderr


@pytest.mark.parametrize(
    ("gone", "told"),
    [
        (
            "model-00003.safetensors",
            f"error: org/model@{COMMIT}/model-00003.safetensors: no such file, but "
            f"model.safetensors.index.json names it: ",
        ),
        (
            "model.safetensors.index.json",
            f"error: org/model@{COMMIT}/model.safetensors: neither model.safetensors nor "
            f"model.safetensors.index.json is there",
        ),
        ("config.json", "error: verifier.model org/model: the hub's repository has no config.json: "),
    ],
)
def test_a_file_that_a_repository_lacks_is_told(tmp_path: Path, hub: ModelHub, gone: str, told: str) -> None:
    """A shard of the index, both forms of weights, config.json."""
    (hub.directory / gone).unlink()
    assert told in read(tmp_path, hub, "org/model").stderr


def test_a_connection_that_breaks_is_asked_again(tmp_path: Path) -> None:
    """Half of a tensor's bytes came: the same bytes are asked for once more."""
    directory = checkpoint(tmp_path / "m", weights(rows=400), rows=400)
    with model_hub(directory) as hub:
        hub.to_break = 1
        assert read(tmp_path, hub, "org/model").returncode == 0
        spans = [one.span for one in hub.asked if one.span and one.span[1] - one.span[0] == 400 * 4 * 2]
    assert len(spans) == 3
    assert len(set(spans)) == 2


def test_a_mirror_that_drops_ranges_is_told_before_a_shard_is_read(tmp_path: Path, hub: ModelHub) -> None:
    """The whole file comes where eight bytes were asked for."""
    hub.ranges = False
    done = read(tmp_path, hub, "org/model")
    assert done.returncode == 2
    assert "asked for bytes 0 to 8 the hub sends the whole file: a proxy or mirror drops" in done.stderr
    assert not list(tmp_path.rglob("assets/**/*.safetensors"))


def test_a_quantised_tensor_is_refused_before_it_is_fetched(tmp_path: Path) -> None:
    """Only headers were asked for."""
    tensors = weights() | {"lm_head.weight": weights()["lm_head.weight"].char()}
    with model_hub(checkpoint(tmp_path / "m", tensors)) as hub:
        done = read(tmp_path, hub, "org/model")
        assert f"org/model@{COMMIT}/model.safetensors: `lm_head.weight` is quantised (I8)" in done.stderr
        assert {one.span[0] for one in hub.asked if one.span} == {0, 8}


def test_without_huggingface_hub_the_extra_that_brings_it_is_named(tmp_path: Path) -> None:
    """The harness installs without it."""
    hidden = tmp_path / "hidden/huggingface_hub"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ImportError('not here')")
    done = read(tmp_path, None, "org/model", "", "shape", PYTHONPATH=f"{hidden.parent}:{ROOT}")
    assert (
        "verifier.model org/model is no directory here, so it is a hub id: huggingface_hub isn't"
        in done.stderr
    )
    assert "pip install 'synthgen[train]'" in done.stderr

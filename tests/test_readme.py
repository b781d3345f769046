"""Every command in the README and the quick start is executed; the pages made from the code are up to date.

- `make` targets are printed by `make -n`: what `make demo`, `make test` and `make check` call is run by other
  tests, and by whoever runs these.
- Commands that need no vLLM run for real, in the order of the page, on a run of a few prompts against the
  mock server; their config takes the place of the page's.
- Commands of `eagle` that need one, `synthgen run` and `synthgen serve` run for real on the finished run of
  `tests/line.py` (marked vllm): each stage finds its artifact complete, as after `make demo`. Without vLLM
  they are only held against their own options and the config, as is every command on the other pages.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

import eagle.__main__
import synthgen.__main__
from synthgen import errors
from synthgen.corpus.settings import load_config
from synthgen.mock_server import MockConfig, MockServer, Uniform
from tests.conftest import ROOT
from tests.line import Line
from tools import cli_reference, config_reference, plan_reference

README, QUICK_START = ROOT / "README.md", ROOT / "docs/quickstart.md"
FENCE = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
CONFIG = "my.yaml"
CONFIGS = {CONFIG, "configs/demo.yaml"}
ACTIVATE = (".", ".venv/bin/activate")
NEEDS_VLLM = {"serve", "run", "extract", "verify", "train", "accept"}
APPS = {"synthgen": synthgen.__main__.app, "eagle": eagle.__main__.app}
PACKAGES = tuple(APPS)
MOCK_URL = "http://127.0.0.1:8350/v1"
Words = tuple[str, ...]


def blocks(page: Path) -> list[list[Words]]:
    """The shell blocks of a page, each as its commands."""
    found = []
    for text in FENCE.findall(page.read_text(encoding="utf-8")):
        lines = text.replace("\\\n", " ").splitlines()
        found.append([tuple(words) for line in lines for words in _chained(line)])
    return found


def indented(text: str) -> list[Words]:
    """The commands of the two programs in a page's indented blocks, also as torchrun starts them."""
    lines = FENCE.sub("", text).replace("\\\n", " ").splitlines()
    starts = tuple(f"    {program} " for program in (*PACKAGES, "torchrun"))
    found = [tuple(shlex.split(line, comments=True)) for line in lines if line.startswith(starts)]
    return [words[words.index("-m") + 1 :] if words[0] == "torchrun" else words for words in found]


def options_of(path: Words) -> set[str]:
    """The flags that a command takes."""
    command: Any = typer.main.get_command(APPS[path[0]])
    for word in path[1:]:
        command = command.commands[word]
    return {flag for one in command.params for flag in (*one.opts, *one.secondary_opts)} | {"--help"}


def _chained(line: str) -> Iterator[list[str]]:
    """The commands of a line that `&&` joins, without its comment."""
    words: list[str] = []
    for word in (*shlex.split(line, comments=True), "&&"):
        if word != "&&":
            words.append(word)
        elif words:
            yield words
            words = []


EVERY = [words for page in (README, QUICK_START) for block in blocks(page) for words in block]


def calls(*programs: str) -> list[Words]:
    """The different commands of these programs on both pages, in order; the config is `my.yaml` in all."""
    wanted = (words for words in EVERY if words[0] in programs)
    return list(dict.fromkeys(tuple(CONFIG if word in CONFIGS else word for word in ws) for ws in wanted))


def named(words: Words) -> str:
    """A command as a test's name."""
    return " ".join(words)


def needs_vllm(words: Words) -> bool:
    """Whether a command starts a server of its own, or needs what only one can make."""
    is_draft = words[:2] == ("eagle", "export")
    return (words[1] in NEEDS_VLLM or is_draft) and "--dry-run" not in words


def is_rehearsal(words: Words) -> bool:
    """Whether a command belongs to the rehearsal with the mock server."""
    return words[1] == "mock-server" or "run_dir=runs/rehearsal" in words


def command_for(words: Words, config: Path) -> list[str]:
    """A page's command on another config, by this Python."""
    return [sys.executable, "-m", *(str(config) if word in CONFIGS else word for word in words)]


def execute(command: list[str], timeout_s: float = 100) -> subprocess.CompletedProcess[str]:
    """Run it in the repository."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False, cwd=ROOT)
    assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout}{done.stderr}"
    return done


@pytest.fixture
def small(demo_values: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """The demo on a few prompts."""
    demo_values["prompts"] |= {"limit": 20, "heldout": 4}
    demo_values["accept"] |= {"prompts": 4, "single_prompts": 4}
    demo_values["generate"]["metrics_port"] = None
    return demo_values


@pytest.fixture(scope="module")
def finished(line: Line, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The config of a copy of the finished run: some commands write into it."""
    directory = tmp_path_factory.mktemp("finished")
    shutil.copytree(line.config.run_path, directory / "run")
    values = yaml.safe_load(line.path.read_text(encoding="utf-8"))
    values["run_dir"] = str(directory / "run")
    path = directory / "small.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def test_every_command_is_one_that_is_executed_here() -> None:
    """A new program in a shell block wants a way to be executed."""
    assert len(EVERY) > 40
    assert {words[0] for words in EVERY} == {"make", ".", *PACKAGES}
    assert [words for words in EVERY if words[0] == "."] == [ACTIVATE]


@pytest.mark.parametrize("words", calls("make"), ids=named)
def test_make_has_the_target(words: Words) -> None:
    """`make -n` prints what would be run, with the variables of the page."""
    assert execute(["make", "-n", *words[1:]]).stdout


def test_make_setup_makes_the_environment_that_is_activated() -> None:
    """Where `. .venv/bin/activate` finds it."""
    assert "tools/setup.sh .venv" in execute(["make", "-n", "-B", "setup"]).stdout


@pytest.mark.parametrize(
    "page", [pytest.param(README, id="README"), pytest.param(QUICK_START, id="quick-start")]
)
@pytest.mark.timeout(300)
def test_commands_without_vllm_run_in_the_order_of_the_page(
    page: Path, small: dict[str, Any], write_config: Any
) -> None:
    """Against the mock server, in this process; what they say of few prompts is not looked at."""
    todo = [words for block in blocks(page) for words in block if words[0] in PACKAGES]
    todo = [words for words in todo if not needs_vllm(words) and not is_rehearsal(words)]
    if page == QUICK_START:  # looks at a finished run first, as `make demo` leaves it
        todo.sort(key=lambda words: words[1] in ("show", "report"))
    short = Uniform(8, 24)
    with MockServer(MockConfig(model="tiny-kimi", thinking_tokens=short, response_tokens=short)) as server:
        small["server"]["base_urls"] = [server.base_url]
        config = write_config(small)
        for words in todo:
            arguments = [str(config) if word in CONFIGS else word for word in words[1:]]
            done = CliRunner().invoke(APPS[words[0]], arguments)
            assert done.exit_code == 0, f"{named(words)} ended with {done.exit_code}\n{done.output}"
    run = Path(small["run_dir"])
    assert {"manifest.json", "data"} & {path.name for path in (run / "exports/parquet").iterdir()}
    assert (run / "report.html").stat().st_size > 10_000
    assert (run / "vocab/vocab.safetensors").exists()


@pytest.mark.timeout(300)
def test_the_rehearsal_runs_as_the_page_has_it(
    small: dict[str, Any], write_config: Any, tmp_path: Path
) -> None:
    """The mock server in a process of its own on a free port, its outage included; a run directory apart."""
    (serve,) = (words for words in calls("synthgen") if words[1] == "mock-server")
    others = [words for words in calls("synthgen") if is_rehearsal(words) and words != serve]
    assert [words[1] for words in others] == ["generate", "screen"]
    config = write_config(small)
    with _started([sys.executable, "-m", *("0" if word == "8350" else word for word in serve)]) as server:
        url = _said(server, r"is at (http://\S+/v1)")
        for words in others:
            moved = [
                word.replace(MOCK_URL, url).replace("runs/rehearsal", str(tmp_path / "r")) for word in words
            ]
            execute(command_for(tuple(moved), config), timeout_s=200)
    assert (tmp_path / "r/screen/verdicts.jsonl").exists()


def test_options_of_every_command_on_every_page_exist() -> None:
    """Also of those that nothing here executes: the command takes each, and --set's values fit the YAML."""
    pages = [README, *sorted((ROOT / "docs").glob("*.md"))]
    found = {words for page in pages for block in blocks(page) for words in block if words[0] in PACKAGES}
    found |= {words for page in pages for words in indented(page.read_text(encoding="utf-8"))}
    assert len(found) > 70
    for words in sorted(found):
        unknown = {word for word in words if word.startswith("--")} - options_of(
            words[: 3 if words[1] == "verify" else 2]
        )
        assert not unknown, f"{named(words)}: there is no {', '.join(sorted(unknown))}"
        sets = tuple(value for flag, value in itertools.pairwise(words) if flag == "--set")
        load_config(ROOT / "configs/demo.yaml", sets)


def test_a_part_of_an_option_or_a_word_of_the_help_is_no_option() -> None:
    """The text of a help has more words that begin with dashes than the command takes."""
    assert {"--format", "--set", "--help"} <= options_of(("synthgen", "export"))
    assert "--form" not in options_of(("synthgen", "export"))
    assert {"--live", "--reference"} <= options_of(("eagle", "verify", "states"))
    assert "--serve" not in options_of(("eagle", "verify", "states"))


def test_indented_commands_are_found_and_what_torchrun_starts() -> None:
    """Fenced blocks have their own reader; other indented lines are no commands."""
    page = """
```sh
    eagle vocab my.yaml
```

    synthgen/   prompts to dataset: vLLM's
    eagle train my.yaml  # don't wait
    torchrun --nnodes 2 \\
        --rdzv-id draft -m eagle train my.yaml --stream
"""
    train = ("eagle", "train", "my.yaml")
    assert indented(page) == [train, (*train, "--stream")]


@pytest.mark.vllm
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "words",
    [w for w in calls(*PACKAGES) if not is_rehearsal(w) and w[1] != "serve" and "--preview" not in w],
    ids=named,
)
def test_commands_run_on_a_finished_run(finished: Path, words: Words) -> None:
    """As after `make demo`: what is complete is left as it is, what shows something shows it."""
    done = execute(command_for(words, finished), timeout_s=600)
    assert "starting vLLM" not in done.stderr or words[1] == "verify"


@pytest.mark.vllm
@pytest.mark.timeout(900)
def test_serve_serves_until_ctrl_c(finished: Path) -> None:
    """`synthgen serve` of the README, with this run's config."""
    (words,) = (words for words in calls("synthgen") if words[1] == "serve")
    with _started(command_for(words, finished)) as server:
        _said(server, r"is at (http://\S+/v1)", seconds=240)
    assert server.returncode == 130


@contextlib.contextmanager
def _started(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A command that goes on until Ctrl-C, which it gets at the end of the block."""
    streams: dict[str, Any] = {"stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(command, cwd=ROOT, **streams) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


def _said(process: subprocess.Popen[str], pattern: str, seconds: float = 30) -> str:
    """The first group of the first line of stderr that matches."""
    assert process.stderr is not None
    give_up = time.monotonic() + seconds
    said = ""
    while time.monotonic() < give_up:
        line = process.stderr.readline()
        said += line
        if found := re.search(pattern, line):
            return found[1]
        if not line:
            break
    raise AssertionError(f"never said {pattern}:\n{said}")


@pytest.mark.parametrize("reference", [cli_reference, config_reference, plan_reference])
def test_the_reference_pages_are_what_the_code_says(reference: Any) -> None:
    """`make reference` writes them anew."""
    assert reference.PAGE.read_text(encoding="utf-8") == reference.page()


def test_every_command_and_key_stands_in_the_reference() -> None:
    """The pages hold the whole of what they are of."""
    commands, keys = cli_reference.page(), config_reference.page()
    for app in (
        "### synthgen run\n",
        "### synthgen doctor\n",
        "### eagle train\n",
        "### eagle verify states\n",
    ):
        assert app in commands
    assert "| `--retry-failed` |" in commands
    for section, values in yaml.safe_load((ROOT / "configs/demo.yaml").read_text(encoding="utf-8")).items():
        for key in values if isinstance(values, dict) else (section,):
            assert f"| `{key}` |" in keys


def test_every_kind_of_error_is_explained() -> None:
    """The page by symptom has the leaves of the tree."""
    page = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    leaves = [kind.__name__ for kind in kinds if not kind.__subclasses__()]
    assert len(leaves) == 9
    for name in leaves:
        assert f"| {name} |" in page


def test_every_page_is_in_the_navigation() -> None:
    """A page that nothing leads to is not found."""
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in sorted((ROOT / "docs").glob("*.md")):
        assert f": {page.name}\n" in navigation


def test_the_site_loads_nothing_from_elsewhere() -> None:
    """No fonts, no scripts, no plugins beyond the theme's own search."""
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert settings["theme"]["font"] is False
    assert settings["plugins"] == ["search", "offline"]
    assert settings["strict"] is True
    assert "extra_javascript" not in settings

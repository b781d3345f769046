"""How a command ends: exit codes, and signals under the shells that start it."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from synthgen.corpus.console import exits, tables
from synthgen.errors import ConfigError

WAITS = """
import sys, time
from synthgen.corpus.console import exits
with exits():
    print("ready", flush=True)
    time.sleep(20)
"""


def ended_by(number: signal.Signals, *, ignored: signal.Signals | None = None) -> int:
    """The exit code of a waiting command that gets a signal and, if that was ignored, SIGTERM after it."""
    command = [sys.executable, "-c", WAITS]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        preexec_fn=(lambda: signal.signal(ignored, signal.SIG_IGN)) if ignored else None,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        child.send_signal(number)
        if number is ignored:
            with pytest.raises(subprocess.TimeoutExpired):
                child.wait(0.5)
            child.send_signal(signal.SIGTERM)
        return child.wait(10)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_command_with_130(number: signal.Signals) -> None:
    """Ctrl-C, a scheduler's SIGTERM and a closed terminal are one to a command."""
    assert ended_by(number) == 130


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_what_a_shell_had_ignored_stays_ignored_and_sigterm_still_works(number: signal.Signals) -> None:
    """nohup ignores SIGHUP, and a script ignores SIGINT for what it starts in the background."""
    assert ended_by(number, ignored=number) == 130


@pytest.mark.parametrize(
    ("resumes", "said"),
    [
        (True, "interrupted; what was finished is kept: run the same command again to go on\n"),
        (False, "interrupted\n"),
    ],
)
def test_only_what_goes_on_is_told_so(resumes: bool, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`synthgen serve` keeps nothing."""
    with pytest.raises(SystemExit) as ended, exits(resumes=resumes):
        raise KeyboardInterrupt
    assert ended.value.code == 130
    assert capsys.readouterr().err == said


def test_an_error_of_the_tree_is_a_message_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a traceback, and with what looks like markup printed as it is."""
    with pytest.raises(SystemExit) as ended, exits():
        raise ConfigError("a.yaml: no [key]")
    assert ended.value.code == 2
    assert capsys.readouterr().err == "error: a.yaml: no [key]\n"


def test_an_error_does_nothing_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Names come from files of others: a control character in one is a picture of itself."""
    with pytest.raises(SystemExit), exits():
        raise ConfigError("a\x1b[2J.yaml")
    with pytest.raises(SystemExit), exits():
        raise FileNotFoundError(2, "No such file", "b\x1b[2J.yaml")
    told = capsys.readouterr().err
    assert told.startswith("error: a␛[2J.yaml\nerror: b␛[2J.yaml: No such file. ")


def test_anything_else_keeps_its_traceback() -> None:
    """A bug of ours is not dressed up."""
    with pytest.raises(ZeroDivisionError), exits():
        raise ZeroDivisionError


def test_a_terminal_that_is_gone_changes_no_exit_code() -> None:
    """`tee` dies of the same Ctrl-C: what is printed then goes nowhere, and nothing else is different."""
    command = [sys.executable, "-c", WAITS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.readline() == b"ready\n"
        child.stderr.close()
        child.send_signal(signal.SIGINT)
        assert child.wait(10) == 130


def test_colons_stay_colons(capsys: pytest.CaptureFixture[str]) -> None:
    """`hub:ID:SPLIT` is a form to write, no picture of an identity card."""
    with pytest.raises(SystemExit), exits():
        raise ConfigError("write it as hub:ID:SPLIT")
    tables().print("hub:ID:SPLIT")
    told = capsys.readouterr()
    assert "hub:ID:SPLIT" in told.err
    assert told.out == "hub:ID:SPLIT\n"

"""What a person sees: progress bars, plain lines when it isn't a terminal, errors, exit codes.

All but `tables` goes to stderr; stdout is for results.
"""

from __future__ import annotations

import contextlib
import errno
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any, TextIO, cast

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.progress import TimeRemainingColumn as Eta

from synthgen.errors import DiskError, SynthgenError

PLAIN_SECONDS = 10.0
WIDTH = 100
_PICTURES = {code: 0x2400 + code for code in range(0x20) if code not in (0x09, 0x0A)}
_CONTROLS = _PICTURES | {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


def printable(text: str) -> str:
    """`text` with its control characters, newline and tab aside, as pictures of themselves: ESC is ␛."""
    return text.replace("\r\n", "\n").translate(_CONTROLS)


def shown(text: str) -> str:
    """`text` for a console that reads markup: printable, and itself none."""
    return escape(printable(text))


class _Stderr:
    """stderr, which may vanish with its terminal, pipe or disk: then nothing more is shown."""

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            sys.stderr.flush()


console = Console(file=cast(TextIO, _Stderr()), highlight=False, emoji=False)


def tables(*, stderr: bool = False) -> Console:
    """Where results go: stdout, at most 100 columns, also where there is no terminal to ask."""
    terminal = Console(stderr=stderr)
    width = min(terminal.width, WIDTH) if terminal.is_terminal else WIDTH
    return Console(width=width, highlight=False, emoji=False, stderr=stderr)


class Bar:
    """The progress of one stage: a bar on a terminal, a line every ten seconds elsewhere."""

    def __init__(self, title: str, total: int, progress: Progress | None) -> None:
        self._title = title
        self._total = total
        self._done = 0
        self._note = ""
        self._progress = progress
        self._task = progress.add_task(title, total=total, note="") if progress else None
        self._last_line = time.monotonic()

    def advance(self, count: int = 1, note: str = "") -> None:
        """Count `count` more as done; `note` stands behind the bar."""
        self._done += count
        self._note = note or self._note
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=self._done, note=self._note)
        elif time.monotonic() - self._last_line >= PLAIN_SECONDS:
            self._last_line = time.monotonic()
            self._print()

    def close(self) -> None:
        """Say where it ended, when there was no bar to show it."""
        if self._progress is None:
            self._print()

    def _print(self) -> None:
        console.print(f"{self._title}: {self._done}/{self._total} {self._note}".rstrip(), soft_wrap=True)


@contextlib.contextmanager
def bar(title: str, total: int) -> Iterator[Bar]:
    """A progress bar for work of `total` units, closed with the block."""
    if not console.is_terminal:
        plain = Bar(title, total, None)
        yield plain
        plain.close()
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        Eta(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console) as progress:
        yield Bar(title, total, progress)


@contextlib.contextmanager
def waiting(title: str) -> Iterator[None]:
    """A spinner with seconds while something of unknown length goes on."""
    started = time.monotonic()
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True) as progress:
            progress.add_task(title, total=None)
            yield
    else:
        console.print(f"{title} ...", soft_wrap=True)
        yield
    console.print(f"{title}: {time.monotonic() - started:.1f} s", soft_wrap=True)


@contextlib.contextmanager
def exits(*, resumes: bool = True) -> Iterator[None]:
    """Turn what ends a command into a message and an exit code.

    2 for an error a user can mend; 130 for Ctrl-C, SIGTERM and a closed terminal: what is on its way to the
    disk arrives there first. resumes: whether the same command goes on where it was interrupted.
    Anything else is a bug of ours and keeps its traceback.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, _interrupt)
    try:
        yield
    except SynthgenError as error:
        console.print(f"[bold red]error:[/] {shown(str(error))}", soft_wrap=True)
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        kept = "; what was finished is kept: run the same command again to go on"
        console.print(f"interrupted{kept if resumes else ''}")
        raise SystemExit(130) from None
    except OSError as error:
        if error.filename is None and error.errno != errno.ENOSPC:
            raise
        where = error.filename or "the run directory"
        console.print(
            f"[bold red]error:[/] {shown(str(where))}: {error.strerror}. What was finished is kept: mend "
            f"it, then run the same command again to go on",
            soft_wrap=True,
        )
        raise SystemExit(DiskError.exit_code) from None


def _interrupt(*_: object) -> None:
    """End as by Ctrl-C, which a background job of a shell script ignores."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)

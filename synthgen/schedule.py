"""Which prompt next, and how much is left: a length model learned for each domain.

The bulk goes out in the order given, so that a corpus that is stopped early is an even sample. At the
end the longest expected go first: a long reply that starts last would keep the server nearly idle.
The time left is counted in tokens, since a row of one domain may be worth fifty of another.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import dataclass

from synthgen.corpus.records import SeedPrompt

Key = tuple[SeedPrompt, int]
PRIOR_REPLIES = 2.0
"""Weight of the mean over all domains in a domain's own."""


@dataclass(slots=True)
class _Seen:
    replies: int = 0
    tokens: int = 0


class LengthModel:
    """Mean output tokens of a domain, drawn to the overall mean while few replies are known."""

    def __init__(self, first_guess: float) -> None:
        self._first_guess = first_guess
        self._all = _Seen()
        self._domains: dict[str, _Seen] = defaultdict(_Seen)

    def observe(self, domain: str, tokens: int) -> None:
        """Learn from one reply."""
        for seen in (self._all, self._domains[domain]):
            seen.replies += 1
            seen.tokens += tokens

    def expected(self, domain: str) -> float:
        """Expected output tokens of a prompt of `domain`."""
        overall = self._all.tokens / self._all.replies if self._all.replies else self._first_guess
        seen = self._domains.get(domain, _Seen())
        return (seen.tokens + PRIOR_REPLIES * overall) / (seen.replies + PRIOR_REPLIES)


class Schedule:
    """What is still to be sent."""

    def __init__(self, todo: list[Key], lengths: LengthModel) -> None:
        self._queue = deque(todo)
        self._tail: dict[str, deque[Key]] = defaultdict(deque)
        """The last rows, by domain; what is put back goes there too."""
        self._in_tail = 0
        self._lengths = lengths
        self._waiting = Counter(prompt.domain for prompt, _ in todo)

    def __len__(self) -> int:
        return len(self._queue) + self._in_tail

    def take(self, tail: int) -> Key | None:
        """The next to send: in order, but the longest expected once no more than `tail` are left."""
        if self._queue and len(self._queue) <= tail:
            for prompt, index in self._queue:
                self._tail[prompt.domain].append((prompt, index))
            self._in_tail += len(self._queue)
            self._queue.clear()
        key = self._queue.popleft() if self._queue else self._longest()
        if key is not None:
            self._waiting[key[0].domain] -= 1
        return key

    def give_back(self, key: Key) -> None:
        """Put back what could not be sent; it goes last, in case it is what kills the server."""
        self._tail[key[0].domain].append(key)
        self._in_tail += 1
        self._waiting[key[0].domain] += 1

    def drop(self) -> None:
        """Send nothing more."""
        self._queue.clear()
        self._tail.clear()
        self._in_tail = 0
        self._waiting.clear()

    def tokens_left(self, in_flight: Counter[str]) -> float:
        """Expected output tokens to come: what waits, and half of what each domain has in flight."""
        waiting = sum(self._lengths.expected(d) * count for d, count in self._waiting.items())
        return waiting + sum(self._lengths.expected(d) * count / 2 for d, count in in_flight.items())

    def _longest(self) -> Key | None:
        waiting = [domain for domain, keys in self._tail.items() if keys]
        if not waiting:
            return None
        self._in_tail -= 1
        return self._tail[max(waiting, key=self._lengths.expected)].popleft()

"""Which prompt next, and how much is left: a length model learned for each domain.

The bulk goes out in the order given, so that a corpus that is stopped early is an even sample. At the
end the longest expected go first: a long reply that starts last would keep the server nearly idle.
The time left is counted in tokens, since a row of one domain may be worth fifty of another. A conversation
is worth as many replies as it still lacks.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable
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
        """Expected output tokens of a reply in `domain`."""
        overall = self._all.tokens / self._all.replies if self._all.replies else self._first_guess
        seen = self._domains.get(domain, _Seen())
        return (seen.tokens + PRIOR_REPLIES * overall) / (seen.replies + PRIOR_REPLIES)


class Schedule:
    """What is still to be sent. `replies_left` says of a row how many replies it lacks."""

    def __init__(
        self, todo: list[Key], lengths: LengthModel, replies_left: Callable[[SeedPrompt, int], int]
    ) -> None:
        self._queue = deque(todo)
        self._tail: dict[tuple[str, int], deque[Key]] = defaultdict(deque)
        """The last rows, by domain and replies they lack; what is put back goes there too."""
        self._in_tail = 0
        self._lengths = lengths
        self._replies_left = replies_left
        self._waiting: Counter[str] = Counter()
        """Replies by domain."""
        for key in todo:
            self._count(key, 1)

    def __len__(self) -> int:
        return len(self._queue) + self._in_tail

    def take(self, tail: int) -> Key | None:
        """The next to send: in order, but the longest expected once no more than `tail` are left."""
        if self._queue and len(self._queue) <= tail:
            for waiting in self._queue:
                self._put_in_tail(waiting)
            self._queue.clear()
        key = self._queue.popleft() if self._queue else self._longest()
        if key is not None:
            self._count(key, -1)
        return key

    def give_back(self, key: Key) -> None:
        """Put back what could not be sent; it goes last, in case it is what kills the server."""
        self._put_in_tail(key)
        self._count(key, 1)

    def put_first(self, key: Key) -> None:
        """Put back a conversation that can go on."""
        self._queue.appendleft(key)
        self._count(key, 1)

    def drop(self) -> None:
        """Send nothing more."""
        self._queue.clear()
        self._tail.clear()
        self._in_tail = 0
        self._waiting.clear()

    def tokens_left(self, in_flight: Iterable[Key]) -> float:
        """Expected output tokens to come: what waits, and of each row in flight all but half a reply."""
        replies: dict[str, float] = defaultdict(float, self._waiting)
        for prompt, index in in_flight:
            replies[prompt.domain] += self._replies_left(prompt, index) - 0.5
        return sum(self._lengths.expected(domain) * count for domain, count in replies.items())

    def _count(self, key: Key, sign: int) -> None:
        self._waiting[key[0].domain] += sign * self._replies_left(*key)

    def _put_in_tail(self, key: Key) -> None:
        self._tail[key[0].domain, self._replies_left(*key)].append(key)
        self._in_tail += 1

    def _longest(self) -> Key | None:
        waiting = [kind for kind, keys in self._tail.items() if keys]
        if not waiting:
            return None
        self._in_tail -= 1
        longest = max(waiting, key=lambda kind: self._lengths.expected(kind[0]) * kind[1])
        return self._tail[longest].popleft()

"""Token ids as the JSON text in which a server wrote them.

A reply's ids pass from the wire to the journal: decoding 2,500 of them and encoding them again was a
quarter of a request's CPU time (docs/log.md). So the text is kept, and decoded only for those who read ids.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

NO_IDS = msgspec.Raw(b"null")
_decoder = msgspec.json.Decoder(tuple[int, ...])


def encode_ids(ids: Iterable[int]) -> msgspec.Raw:
    """Ids as text."""
    return msgspec.Raw(msgspec.json.encode(list(ids)))


def decode_ids(text: msgspec.Raw) -> tuple[int, ...]:
    """The ids of a text that `are_ids`."""
    return _decoder.decode(text)


def are_ids(text: msgspec.Raw) -> bool:
    """Whether a JSON text is an array of ids, and not empty."""
    written = bytes(text)
    return written.translate(None, b"0123456789, \n") == b"[]" and bool(written.strip(b"[] \n"))


def count_ids(text: msgspec.Raw) -> int:
    """How many ids a text has that `are_ids`."""
    return bytes(text).count(b",") + 1


def index_of(text: msgspec.Raw, wanted: int) -> int | None:
    """Index of the first `wanted` among the ids; None when it isn't there."""
    written, digits = bytes(text), str(wanted).encode()
    start = written.find(digits)
    while start >= 0:
        end = start + len(digits)
        if not (written[start - 1 : start].isdigit() or written[end : end + 1].isdigit()):
            return written.count(b",", 0, start)
        start = written.find(digits, end)
    return None


def join_ids(first: msgspec.Raw, second: msgspec.Raw) -> msgspec.Raw:
    """Two arrays of ids as one."""
    return msgspec.Raw(bytes(first).rstrip()[:-1] + b"," + bytes(second).lstrip()[1:])

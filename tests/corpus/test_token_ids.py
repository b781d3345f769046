"""Ids as text: what is found there is what decoding would give."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from synthgen.corpus.token_ids import NO_IDS, are_ids, count_ids, decode_ids, encode_ids, index_of

IDS = st.lists(st.integers(0, 200), min_size=1, max_size=30)


@given(IDS, st.integers(0, 200), st.sampled_from([b",", b", ", b" ,\n"]))
def test_count_and_index_are_those_of_the_decoded_ids(ids: list[int], wanted: int, comma: bytes) -> None:
    """Also where one id is part of another's digits, and however the server puts its blanks."""
    text = msgspec.Raw(bytes(encode_ids(ids)).replace(b",", comma))
    assert are_ids(text)
    assert decode_ids(text) == tuple(ids)
    assert count_ids(text) == len(ids)
    assert index_of(text, wanted) == (ids.index(wanted) if wanted in ids else None)


def test_an_id_within_a_longer_one_is_not_it() -> None:
    """7 is neither in 17 nor in 70."""
    assert index_of(msgspec.Raw(b"[17,70,777,7]"), 7) == 3
    assert index_of(msgspec.Raw(b"[17,70,777]"), 7) is None


@pytest.mark.parametrize("text", [b"null", b"[]", b"[ ]", b'["7"]', b"[7,[8]]", b"[-7]", b"[7.5]", b"7"])
def test_anything_but_an_array_of_ids_is_none(text: bytes) -> None:
    """A server that sends texts, floats or nothing."""
    assert not are_ids(msgspec.Raw(text))


def test_a_reply_without_ids_has_none() -> None:
    """The default of a reply's field."""
    assert not are_ids(NO_IDS)

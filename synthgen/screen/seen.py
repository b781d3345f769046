"""Which numbers were seen before, in 16 to 32 bytes each where a Python set takes about 100."""

from __future__ import annotations

from array import array

BITS_64 = (1 << 64) - 1
FIRST_PLACES = 1 << 12


class Seen:
    """Numbers of 64 bits in a table with open addressing, at most half full."""

    def __init__(self) -> None:
        self._table = array("Q", bytes(8 * FIRST_PLACES))
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, number: int) -> bool:
        """Take note of a number, of which 64 bits count; whether it is new."""
        number = number & BITS_64 or 1  # 0 is an empty place
        place = self._place_of(number)
        if self._table[place]:
            return False
        self._table[place] = number
        self._count += 1
        if 2 * self._count > len(self._table):
            self._grow()
        return True

    def _place_of(self, number: int) -> int:
        """Where the number is, or would go."""
        table, last = self._table, len(self._table) - 1
        place = number & last
        while table[place] and table[place] != number:
            place = (place + 1) & last
        return place

    def _grow(self) -> None:
        before, self._table = self._table, array("Q", bytes(16 * len(self._table)))
        for number in before:
            if number:
                self._table[self._place_of(number)] = number

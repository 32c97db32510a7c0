"""Entries in order, each with a size: the sum of the sizes before a key is found without adding up
all of them."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

LENGTH_MAX = 256  # of a block; a longer one is divided

Key = tuple[Any, ...]


class Ranked:
    """Blocks of entries, ascending, and the sum of the sizes in each. Keys are different."""

    def __init__(self) -> None:
        self._keys: list[list[Key]] = [[]]
        self._sizes: list[list[int]] = [[]]
        self._sums: list[int] = [0]
        self._lasts: list[Key] = []  # last key of each block, except that of the last block

    def add(self, key: Key, size: int) -> None:
        block = bisect_left(self._lasts, key)
        keys, sizes = self._keys[block], self._sizes[block]
        index = bisect_left(keys, key)
        keys.insert(index, key)
        sizes.insert(index, size)
        self._sums[block] += size
        if len(keys) > LENGTH_MAX:
            self._divide(block)

    def remove(self, key: Key) -> int:
        """Remove an entry; returns its size. Raises KeyError if it does not exist."""
        block = bisect_left(self._lasts, key)
        keys = self._keys[block]
        index = bisect_left(keys, key)
        if index == len(keys) or keys[index] != key:
            raise KeyError(key)
        del keys[index]
        size = self._sizes[block].pop(index)
        self._sums[block] -= size
        if not keys and len(self._keys) > 1:
            self._drop(block)
        return size

    def before(self, key: Key) -> int:
        """The sum of the sizes of entries whose keys are less."""
        block = bisect_left(self._lasts, key)
        index = bisect_left(self._keys[block], key)
        return sum(self._sums[:block]) + sum(self._sizes[block][:index])

    def last(self) -> tuple[Key, int]:
        """The entry with the greatest key, and its size."""
        return self._keys[-1][-1], self._sizes[-1][-1]

    def _divide(self, block: int) -> None:
        keys, sizes = self._keys[block], self._sizes[block]
        half = len(keys) // 2
        self._keys[block : block + 1] = [keys[:half], keys[half:]]
        self._sizes[block : block + 1] = [sizes[:half], sizes[half:]]
        self._sums[block : block + 1] = [sum(sizes[:half]), sum(sizes[half:])]
        self._lasts.insert(block, keys[half - 1])

    def _drop(self, block: int) -> None:
        del self._keys[block], self._sizes[block], self._sums[block]
        del self._lasts[min(block, len(self._lasts) - 1)]

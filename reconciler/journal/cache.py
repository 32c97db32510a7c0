"""Rows of a table, decoded once: callers get the same values until their row is written.

The journal reports each row before it writes it, and each transaction that was rolled back. A
reported row is read and decoded again at the next request; all others are not.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Table(Generic[K, V]):
    """`read` gives the row of a key, if there is one, or all rows for None, decoded.

    version: grows whenever a row may be different from what was read before.
    """

    def __init__(self, read: Callable[[K | None], Iterable[tuple[K, V]]]):
        self.version = 0
        self._read = read
        self._rows: dict[K, V] = {}
        self._absent: set[K] = set()  # keys that have no row
        self._stale: set[K] = set()  # keys whose row is to be read again
        self._complete = False  # every row is in `_rows`, or its key in `_stale`
        self._uncommitted: set[K] = set()

    def wrote(self, key: K, uncommitted: bool) -> None:
        """The row of this key is about to be written, or removed."""
        self.version += 1
        self._drop(key)
        if uncommitted:
            self._uncommitted.add(key)

    def over(self) -> None:
        """The transaction has ended; `undone` was called before if it was rolled back."""
        self._uncommitted.clear()

    def undone(self) -> None:
        """Rows that the transaction wrote may be again as they were before."""
        if self._uncommitted:
            self.version += 1
        for key in self._uncommitted:
            self._drop(key)

    def forget(self) -> None:
        """Any row may have been written, by anybody."""
        self.version += 1
        self._rows, self._absent, self._stale, self._complete = {}, set(), set(), False

    def get(self, key: K) -> V | None:
        if key not in self._rows and key not in self._absent:
            if self._complete and key not in self._stale:
                return None
            self._fetch(key)
        return self._rows.get(key)

    def all(self) -> Mapping[K, V]:
        """Every row. Do not change it, nor keep it."""
        if not self._complete:
            self._rows = dict(self._read(None))
            self._complete = True
            self._stale.clear()
            self._absent.clear()
        for key in list(self._stale):
            self._fetch(key)
        return self._rows

    def _fetch(self, key: K) -> None:
        found = dict(self._read(key))
        self._rows.update(found)
        self._stale.discard(key)
        if not found and not self._complete:
            self._absent.add(key)

    def _drop(self, key: K) -> None:
        self._rows.pop(key, None)
        self._absent.discard(key)
        self._stale.add(key)

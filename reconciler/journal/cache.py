"""Caches decoded rows of a table: callers get the same values until a row is written.

The journal reports each row before it writes it, and each transaction that was rolled back. The
next request reads and decodes a reported row again; other rows stay cached.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Table(Generic[K, V]):
    """read: returns the decoded row of a key, if there is one, or all rows for None.

    version: grows whenever a row may differ from what was read before.
    """

    def __init__(self, read: Callable[[K | None], Iterable[tuple[K, V]]]):
        self.version = 0
        self._read = read
        self._rows: dict[K, V] = {}
        self._absent: set[K] = set()  # keys that have no row
        self._stale: set[K] = set()  # keys whose row has to be read again
        self._complete = False  # every row is in `_rows`, or its key in `_stale`
        self._uncommitted: set[K] = set()

    def note_write(self, key: K, uncommitted: bool) -> None:
        """The row of this key is about to be written or removed."""
        self.version += 1
        self._drop(key)
        if uncommitted:
            self._uncommitted.add(key)

    def end_transaction(self) -> None:
        """The transaction has ended. If it was rolled back, `undone` was called before."""
        self._uncommitted.clear()

    def roll_back(self) -> None:
        """The transaction was rolled back: rows that it wrote may have their earlier content
        again."""
        if self._uncommitted:
            self.version += 1
        for key in self._uncommitted:
            self._drop(key)

    def forget(self) -> None:
        """Drop everything: any row may have been written, by any process."""
        self.version += 1
        self._rows, self._absent, self._stale, self._complete = {}, set(), set(), False

    def get(self, key: K) -> V | None:
        if key not in self._rows and key not in self._absent:
            if self._complete and key not in self._stale:
                return None
            self._fetch(key)
        return self._rows.get(key)

    def all(self) -> Mapping[K, V]:
        """Every row. The caller must neither change nor keep the mapping."""
        if not self._complete:
            self._rows = dict(self._read(None))
            self._complete = True
            self._stale.clear()
            self._absent.clear()
        for key in list(self._stale):
            self._fetch(key)
        return self._rows

    def _fetch(self, key: K) -> None:
        rows = dict(self._read(key))
        self._rows.update(rows)
        self._stale.discard(key)
        if not rows and not self._complete:
            self._absent.add(key)

    def _drop(self, key: K) -> None:
        self._rows.pop(key, None)
        self._absent.discard(key)
        self._stale.add(key)

"""Finds what the previous checkpoint has in the place of a new unit. A page in which some words
have changed, or a list in which a digest has changed, is stored as its difference from that
(units.py).

This only saves space: if something cannot be read, or too much would have to be read, the unit is
stored as it is.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from typing import TypeVar

from rankfold.checkpoint.store.errors import StoreError
from rankfold.checkpoint.store.manifest import Part
from rankfold.checkpoint.store.reading import Checkpoint
from rankfold.checkpoint.store.units import Row

READ_BYTES_MAX = 256 << 20  # bytes of its files that one save reads at most

T = TypeVar("T")


class Predecessor:
    """The previous checkpoint; None if there is none. Several threads may use it."""

    def __init__(self, checkpoint: Checkpoint | None):
        self._checkpoint = checkpoint
        parts = checkpoint.parts if checkpoint else ()
        self._parts = {(part.rank, part.name): part for part in parts}

    def part(self, rank: int | None, name: str) -> PartPredecessor:
        return PartPredecessor(self, self._parts.get((rank, name)))

    def unit(self, digest: bytes) -> memoryview | None:
        """One of its units, verified; None if it cannot be read."""
        return self.query(lambda checkpoint: checkpoint.unit(digest))

    def query(self, read: Callable[[Checkpoint], T]) -> T | None:
        checkpoint = self._checkpoint
        if checkpoint is None or checkpoint.bytes_read > READ_BYTES_MAX:
            return None
        try:
            return read(checkpoint)
        except StoreError:
            self._checkpoint = None
            return None


class PartPredecessor:
    """A part of the previous checkpoint, for one thread: digests of its content, None where it has
    none."""

    def __init__(self, predecessor: Predecessor, part: Part | None):
        self._predecessor, self._part = predecessor, part
        self._rows: list[Row] | None = None  # read at the first use
        self._row: Row | None = None  # the range of `_units`
        self._units: dict[int, bytes] = {}  # by address

    def table(self) -> bytes | None:
        return self._part.table if self._part else None

    def list_at(self, address: int) -> bytes | None:
        """The digest of the list of units of the range that begins here."""
        row = self._find(address)
        return row.digest if row and self._part and row.length > self._part.grain else None

    def unit_at(self, address: int) -> bytes | None:
        row, part = self._find(address), self._part
        if row is None or part is None:
            return None
        if row is not self._row:
            units = self._predecessor.query(lambda checkpoint: checkpoint.units_of(part, row))
            self._row, self._units = (
                row,
                {unit_address: digest for unit_address, _, digest in units or ()},
            )
        return self._units.get(address)

    def _find(self, address: int) -> Row | None:
        """The range that contains the address."""
        part = self._part
        if part is None:
            return None
        if self._rows is None:
            self._rows = self._predecessor.query(lambda checkpoint: checkpoint.rows(part)) or []
        index = bisect.bisect(self._rows, address, key=lambda row: row.address) - 1
        row = self._rows[index] if index >= 0 else None
        return row if row and address < row.address + row.length else None

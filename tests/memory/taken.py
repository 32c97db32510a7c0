"""A rank's image as its launcher copies it, a page at a time, while the rank continues."""

from __future__ import annotations

import mmap
import os

from rankfold.interpose.launcher.snapshot.copy_on_write import Hold

from .device import CELL, CELLS, CHUNK, Page
from .world import WINDOW, Rank


class Taken:
    """It begins now: the rank is saved, and stands at its cut."""

    def __init__(self, rank: Rank) -> None:
        self.hold = Hold(rank.fd)
        self.hold.begin()
        has = rank.in_image()
        self.expected = {page: has[page] for page in has if rank.image_owner(page) is None}
        self.left = set(self.expected)
        self.target = os.memfd_create("snapshot")
        os.ftruncate(self.target, WINDOW)

    def take(self, page: int) -> None:
        if page in self.left:
            self.hold.copy_current(self.target, [(page * CHUNK, (page + 1) * CHUNK)])
            self.left.remove(page)

    def end(self) -> None:
        for page in sorted(self.left):
            self.take(page)
        self.hold.replace_changed(
            self.target, [(p * CHUNK, (p + 1) * CHUNK) for p in self.expected]
        )
        self.hold.end()
        assert {page: self.copied(page) for page in self.expected} == self.expected
        self.hold.close()
        os.close(self.target)

    def copied(self, page: int) -> Page:
        with mmap.mmap(self.target, CHUNK, offset=page * CHUNK) as bytes_:
            cells = [bytes_[n * CELL : n * CELL + 8] for n in range(CELLS)]
        return tuple(int.from_bytes(each, "little", signed=True) for each in cells)

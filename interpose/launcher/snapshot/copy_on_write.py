"""An image hold: while the launcher copies an image, the proxy that serves the rank first copies
aside each page that is about to change. proxy/core/memory/image_hold.c describes the protocol of
both sides.

Nothing in the image may change while a hold begins: the job is saved and is at its cut.
"""

from __future__ import annotations

import errno
import mmap
import os
from array import array
from collections.abc import Iterable
from pathlib import Path

from rankfold import records
from rankfold.interpose.launcher.files import sparse

_LAYOUT = records.image_hold()
_CHUNK, _WINDOW = (_LAYOUT.constants[f"RF_{name}_BYTES"] for name in ("CHUNK", "WINDOW"))
_OFFSET, _PAGES, _ASIDE, _NOTHING = (
    _LAYOUT.constants[name]
    for name in ("HOLD_OFFSET", "HOLD_PAGES", "ASIDE_OFFSET", "ASIDE_NOTHING")
)
_SHAPE = _LAYOUT.structs["image_hold"]
_CGROUP = Path("/sys/fs/cgroup")


class Hold:
    """The hold of the image with this descriptor, which must stay open."""

    def __init__(self, image: int):
        self.image = image
        self._map = mmap.mmap(image, _SHAPE.size, offset=_OFFSET)

    def begin(self) -> None:
        """Begin a hold. Raises OSError."""
        self.end()
        self._set("holds", 1)

    def end(self) -> None:
        """End the hold and free the pages that were copied aside. Raises OSError."""
        self._set("holds", 0)
        sparse.punch(self.image, _OFFSET, os.fstat(self.image).st_size - _OFFSET)

    def copy(self, target: int, ranges: Iterable[tuple[int, int]]) -> None:
        """Copy these ranges of whole pages as they were when the hold began, to the same offsets of
        a file that is empty there. Raises OSError."""
        ranges = list(ranges)
        self.copy_current(target, ranges)
        self.replace_changed(target, ranges)

    def copy_current(self, target: int, ranges: Iterable[tuple[int, int]]) -> None:
        """Copy what the ranges contain now, or while the copy runs. Raises OSError."""
        for begin, end in ranges:
            sparse.copy(self.image, target, begin, end)

    def replace_changed(self, target: int, ranges: Iterable[tuple[int, int]]) -> None:
        """Replace pages that changed before or after `copy_current` copied them. Raises OSError."""
        aside = array("I", self._map[_SHAPE["aside"].offset : _SHAPE.size])
        if self._get("overflowed"):
            raise OSError(
                errno.ENOMEM, "there was no memory for copies of pages that the rank changes"
            )
        for begin, end in ranges:
            for page in range(begin // _CHUNK, min(-(-end // _CHUNK), _PAGES)):
                if number := aside[page]:
                    sparse.punch(target, page * _CHUNK, _CHUNK)
                    if number != _NOTHING:
                        start = _ASIDE + (number - 1) * _CHUNK
                        sparse.copy_range(self.image, start, target, page * _CHUNK, _CHUNK)

    def set_aside(self) -> int:
        """How many pages were copied aside since the hold began."""
        return self._get("pages")

    def close(self) -> None:
        self._map.close()

    def _set(self, name: str, value: int) -> None:
        offset = _SHAPE[name].offset
        self._map[offset : offset + 4] = value.to_bytes(4, "little")

    def _get(self, name: str) -> int:
        offset = _SHAPE[name].offset
        return int.from_bytes(self._map[offset : offset + 4], "little")


def possible(image: int) -> bool:
    """Whether a proxy can have served the image, and free memory suffices for a second copy of all
    of it: that much may have to be copied aside."""
    about = os.fstat(image)
    return about.st_size >= _WINDOW and about.st_blocks * 512 < _available_memory()


def _available_memory() -> int:
    words = Path("/proc/meminfo").read_text().split()
    available = 1024 * int(words[words.index("MemAvailable:") + 1])
    try:
        most = (_CGROUP / "memory.max").read_text().strip()
        if most != "max":
            available = min(available, int(most) - int((_CGROUP / "memory.current").read_text()))
    except (OSError, ValueError):  # no cgroup with these files
        pass
    return available

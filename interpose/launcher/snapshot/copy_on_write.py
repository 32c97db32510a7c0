"""An image that is copied while its rank goes on: what is about to change there, whoever serves the
rank sets aside first. How both sides go about it stands in proxy/core/memory/held.c.

Nothing of the image may change while a hold begins: the job is saved, and stands at its cut.
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

_HELD = records.held()
_CHUNK, _WINDOW = (_HELD.constants[f"RF_{name}_BYTES"] for name in ("CHUNK", "WINDOW"))
_OFFSET, _PAGES, _ASIDE, _NOTHING = (
    _HELD.constants[name] for name in ("HOLD_OFFSET", "HOLD_PAGES", "ASIDE_OFFSET", "ASIDE_NOTHING")
)
_SHAPE = _HELD.structs["image_hold"]
_CGROUP = Path("/sys/fs/cgroup")


class Hold:
    """Of the image with this descriptor, which is to stay open."""

    def __init__(self, image: int):
        self.image = image
        self._map = mmap.mmap(image, _SHAPE.size, offset=_OFFSET)

    def begin(self) -> None:
        """Raises OSError."""
        self.end()
        self._set("holds", 1)

    def end(self) -> None:
        """What was set aside is let go. Raises OSError."""
        self._set("holds", 0)
        sparse.punch(self.image, _OFFSET, os.fstat(self.image).st_size - _OFFSET)

    def copy(self, target: int, ranges: Iterable[tuple[int, int]]) -> None:
        """What the image had in these ranges of whole pages when the hold began, to the same places
        of a file that has nothing there. Raises OSError."""
        ranges = list(ranges)
        self.take(target, ranges)
        self.put_right(target, ranges)

    def take(self, target: int, ranges: Iterable[tuple[int, int]]) -> None:
        """What the image has there now, or while it is copied. Raises OSError."""
        for begin, end in ranges:
            sparse.copy(self.image, target, begin, end)

    def put_right(self, target: int, ranges: Iterable[tuple[int, int]]) -> None:
        """What had changed when it was taken, or has since. Raises OSError."""
        aside = array("I", self._map[_SHAPE["aside"].offset : _SHAPE.size])
        if self._get("lost"):
            raise OSError(errno.ENOMEM, "there was no memory to set aside what the rank changes")
        for begin, end in ranges:
            for page in range(begin // _CHUNK, min(-(-end // _CHUNK), _PAGES)):
                if number := aside[page]:
                    sparse.punch(target, page * _CHUNK, _CHUNK)
                    if number != _NOTHING:
                        start = _ASIDE + (number - 1) * _CHUNK
                        sparse.copy_range(self.image, start, target, page * _CHUNK, _CHUNK)

    def set_aside(self) -> int:
        """How many pages were, since it began."""
        return self._get("pages")

    def close(self) -> None:
        self._map.close()

    def _set(self, name: str, value: int) -> None:
        at = _SHAPE[name].offset
        self._map[at : at + 4] = value.to_bytes(4, "little")

    def _get(self, name: str) -> int:
        at = _SHAPE[name].offset
        return int.from_bytes(self._map[at : at + 4], "little")


def possible(image: int) -> bool:
    """Whether a proxy can have served the image, and there is memory for all of it a second time:
    so much may have to be set aside."""
    about = os.fstat(image)
    return about.st_size >= _WINDOW and about.st_blocks * 512 < _memory_left()


def _memory_left() -> int:
    words = Path("/proc/meminfo").read_text().split()
    left = 1024 * int(words[words.index("MemAvailable:") + 1])
    try:
        most = (_CGROUP / "memory.max").read_text().strip()
        if most != "max":
            left = min(left, int(most) - int((_CGROUP / "memory.current").read_text()))
    except (OSError, ValueError):  # no such cgroup
        pass
    return left

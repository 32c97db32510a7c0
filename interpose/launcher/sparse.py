"""Files copied with their holes."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path

_COPY_BYTES = 16 << 20


def copy_out(source: int, target: Path, ranges: Iterable[tuple[int, int]]) -> None:
    """What lies from the first to the last byte of each, into a file of that size that is made.
    Raises OSError."""
    fd = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(fd, os.fstat(source).st_size)
        for begin, end in ranges:
            copy(source, fd, begin, end)
    finally:
        os.close(fd)


def copy(source: int, target: int, at: int = 0, end: int | None = None) -> None:
    """What is not a hole, to the same place. Raises OSError."""
    end = os.fstat(source).st_size if end is None else end
    while at < end:
        try:
            begin = os.lseek(source, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # holes up to the end
                return
            raise
        if begin >= end:
            return
        at = min(os.lseek(source, begin, os.SEEK_HOLE), end)
        copy_range(source, begin, target, begin, at - begin)


def copy_range(source: int, start: int, target: int, to: int, length: int) -> None:
    """Within the kernel. Raises OSError, also if the source ends before."""
    os.lseek(target, to, os.SEEK_SET)
    end = start + length
    while start < end:
        sent = os.sendfile(target, source, start, min(_COPY_BYTES, end - start))
        if sent == 0:
            raise OSError(errno.EIO, f"the file ends at byte {start}")
        start += sent

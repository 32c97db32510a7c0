"""Copies files with their holes."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from rankfold.interpose.launcher.rank.sandbox import check, libc

_COPY_BYTES = 16 << 20
_PUNCH, _KEEP_SIZE = 2, 1


def copy_out(source: int, target: Path, ranges: Iterable[tuple[int, int]]) -> None:
    """Copy these ranges (begin, end) to a new file of the same size as the source. Raises
    OSError."""
    fd = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(fd, os.fstat(source).st_size)
        for begin, end in ranges:
            copy(source, fd, begin, end)
    finally:
        os.close(fd)


def copy(source: int, target: int, offset: int = 0, end: int | None = None) -> None:
    """Copy data that is not in holes to the same offsets. Raises OSError."""
    end = os.fstat(source).st_size if end is None else end
    for first, last in _data(source, offset, end):
        copy_range(source, first, target, first, last - first)


def _data(file: int, offset: int, end: int) -> Iterator[tuple[int, int]]:
    """The parts that are not holes, as (begin, end)."""
    while offset < end:
        try:
            begin = os.lseek(file, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # holes up to the end
                return
            raise
        if begin >= end:
            return
        offset = min(os.lseek(file, begin, os.SEEK_HOLE), end)
        yield begin, offset


def size(source: int, ranges: Iterable[tuple[int, int]]) -> int:
    """The bytes of the ranges that are not in holes. Raises OSError."""
    return sum(last - first for begin, end in ranges for first, last in _data(source, begin, end))


def punch(fd: int, offset: int, length: int) -> None:
    """Punch a hole in the file. Raises OSError."""
    if length > 0:
        done = libc.fallocate(fd, _PUNCH | _KEEP_SIZE, ctypes.c_long(offset), ctypes.c_long(length))
        check(done, "punch a hole")


def copy_range(source: int, start: int, target: int, to: int, length: int) -> None:
    """Copy a range within the kernel. Raises OSError, also if the source ends too early."""
    os.lseek(target, to, os.SEEK_SET)
    end = start + length
    while start < end:
        sent = os.sendfile(target, source, start, min(_COPY_BYTES, end - start))
        if sent == 0:
            raise OSError(errno.EIO, f"the file ends at byte {start}")
        start += sent

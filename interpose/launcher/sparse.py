"""Files copied with their holes."""

from __future__ import annotations

import errno
import os
from pathlib import Path

_COPY_BYTES = 16 << 20


def copy_out(source: int, target: Path) -> None:
    """Into a file that is made. Raises OSError."""
    fd = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(fd, os.fstat(source).st_size)
        copy(source, fd)
    finally:
        os.close(fd)


def copy(source: int, target: int) -> None:
    """What is not a hole, to the same place. Raises OSError."""
    size, at = os.fstat(source).st_size, 0
    while at < size:
        try:
            begin = os.lseek(source, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # holes up to the end
                return
            raise
        at = os.lseek(source, begin, os.SEEK_HOLE)
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

"""Flags of files that keep everybody from changing them: immutable, and append only (chattr)."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import struct
from collections.abc import Iterator

from rankfold.interpose.launcher.files import nofollow

_GET, _SET = 0x8008_6601, 0x4008_6602
_OURS = 0x10 | 0x20  # of all flags that there are


def of(path: str) -> int:
    """Those of a file or folder; 0 of anything else. Raises OSError."""
    with _opened(path) as fd:
        return _get(fd) & _OURS if fd >= 0 else 0


def put(path: str, flags: int) -> None:
    """Give them to it, and take others away. Raises OSError."""
    with _opened(path) as fd:
        if fd >= 0 and (now := _get(fd)) & _OURS != flags:
            fcntl.ioctl(fd, _SET, struct.pack("l", now & ~_OURS | flags))


@contextlib.contextmanager
def _opened(path: str) -> Iterator[int]:
    """-1: it is no file or folder."""
    status = nofollow.status(path)
    if status is None or not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        yield -1
        return
    fd = nofollow.opened(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        yield fd
    finally:
        os.close(fd)


def _get(fd: int) -> int:
    """0 where the file system has none."""
    with contextlib.suppress(OSError):
        found: int = struct.unpack("l", fcntl.ioctl(fd, _GET, bytes(struct.calcsize("l"))))[0]
        return found
    return 0

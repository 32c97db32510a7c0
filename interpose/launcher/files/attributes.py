"""Flags that protect files from changes: immutable and append-only (chattr)."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import struct
from collections.abc import Iterator

from rankfold.interpose.launcher.files import nofollow

_GET, _SET = 0x8008_6601, 0x4008_6602
_OURS = 0x10 | 0x20  # the flags that this module handles


def flags_of(path: str) -> int:
    """The flags of a file or folder; 0 for anything else. Raises OSError."""
    with _opened(path) as fd:
        return _get(fd) & _OURS if fd >= 0 else 0


def put(path: str, flags: int) -> None:
    """Set these flags and clear the others. Raises OSError."""
    with _opened(path) as fd:
        if fd >= 0 and (now := _get(fd)) & _OURS != flags:
            fcntl.ioctl(fd, _SET, struct.pack("l", now & ~_OURS | flags))


@contextlib.contextmanager
def _opened(path: str) -> Iterator[int]:
    """Open a file or folder; -1 for anything else."""
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
    """Read all flags; 0 where the file system has none."""
    with contextlib.suppress(OSError):
        found: int = struct.unpack("l", fcntl.ioctl(fd, _GET, bytes(struct.calcsize("l"))))[0]
        return found
    return 0

"""inotify(7): the kernel reports what happens to chosen files and folders."""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
import sys
import termios
from collections.abc import Iterator
from typing import NamedTuple

MODIFY, ATTRIB, CLOSE_WRITE = 0x2, 0x4, 0x8
MOVED_FROM, MOVED_TO, CREATE, DELETE = 0x40, 0x80, 0x100, 0x200
DELETE_SELF, MOVE_SELF = 0x400, 0x800
OVERFLOW, IGNORED, ISDIR = 0x4000, 0x8000, 0x4000_0000
ONLYDIR = 0x100_0000

_EVENT = struct.Struct("iIII")
_READ_BYTES = 1 << 16
_libc = ctypes.CDLL(None, use_errno=True)


class Event(NamedTuple):
    """`watch`: the number that `Inotify.watch` returned, -1 with OVERFLOW. `name`: the file in a
    watched folder, otherwise empty."""

    watch: int
    mask: int
    name: str


class Inotify:
    """One queue of events. Raises OSError if the kernel grants no more queues."""

    def __init__(self) -> None:
        self._fd = _checked(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))

    def fileno(self) -> int:
        return self._fd

    def watch(self, path: str, mask: int) -> int:
        """Add a watch and return its number, which is the same for the same inode. Raises
        OSError."""
        return _checked(_libc.inotify_add_watch(self._fd, os.fsencode(path), mask))

    def forget(self, watch: int) -> None:
        _libc.inotify_rm_watch(self._fd, watch)  # fails if the inode is gone, and the watch with it

    def read(self) -> Iterator[Event]:
        """The events so far. Later ones are for the next call: while a process keeps writing, they
        would never end."""
        left = int.from_bytes(fcntl.ioctl(self._fd, termios.FIONREAD, bytes(4)), sys.byteorder)
        while left > 0:
            data = os.read(self._fd, _READ_BYTES)
            left -= len(data)
            offset = 0
            while offset < len(data):
                watch, mask, _, length = _EVENT.unpack_from(data, offset)
                offset += _EVENT.size + length
                name = data[offset - length : offset].rstrip(b"\0")
                yield Event(watch, mask, os.fsdecode(name))

    def close(self) -> None:
        os.close(self._fd)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result

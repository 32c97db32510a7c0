"""Opens files by recorded names without following links on the way.

Recorded names are real paths, so every part of one except the last was a folder. A link that
replaces such a folder later would lead elsewhere.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
from collections.abc import Iterator

from rankfold import fanotify
from rankfold.interpose.launcher.rank.sandbox import libc

_OPENAT2, _AT_FDCWD = 437, -100  # the number is the same on all architectures
_NO_SYMLINKS = 0x04
NOTHING = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)  # the last: there is a link on the way


class _How(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("flags", "mode", "resolve")]


def opened(path: str, flags: int = os.O_PATH) -> int:
    """Open the object itself; with O_PATH also a link. Raises OSError: ELOOP if there is a link on
    the way."""
    how = _How(flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0, _NO_SYMLINKS)
    name = os.fsencode(path)
    fd: int = libc.syscall(_OPENAT2, _AT_FDCWD, name, ctypes.byref(how), ctypes.sizeof(how))
    if fd < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), path)
    return fd


@contextlib.contextmanager
def open_if_present(path: str) -> Iterator[int | None]:
    """A descriptor of the object; None if there is none, or only behind a link. Raises OSError."""
    try:
        fd = opened(path)
    except OSError as error:
        if error.errno not in NOTHING:
            raise
        yield None
        return
    try:
        yield fd
    finally:
        os.close(fd)


def status(path: str) -> os.stat_result | None:
    """The status of the object, or None, as in `open_if_present`. Raises OSError."""
    with open_if_present(path) as fd:
        return None if fd is None else os.fstat(fd)


def file(path: str, flags: int) -> int:
    """Open a regular file, never another object in its place; folders above may be links. Raises
    OSError."""
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "is not a regular file", path)
    return fd


def node(fd: int) -> str:
    """The name of the file's node in journals; empty: it has none."""
    with contextlib.suppress(OSError):
        return fanotify.node_of(fd).text
    return ""


@contextlib.contextmanager
def stable_path(path: str) -> Iterator[str]:
    """A path to use now: it stays in the folder that was found, whatever happens to the folders
    above. Raises OSError, whose name is `path`, also for errors inside the block."""
    folder, name = os.path.split(path)
    fd = -1
    try:
        fd = opened(folder, os.O_PATH | os.O_DIRECTORY)
        yield f"/proc/self/fd/{fd}/{name}"
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), path) from error
    finally:
        if fd >= 0:
            os.close(fd)

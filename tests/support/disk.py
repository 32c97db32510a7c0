"""A file system of a test's own, small enough to be filled."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

from support import privileges
from support.leaks import State

_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def small_disk(state: State) -> Iterator[Path]:
    """A disk of 16 MiB. Processes that use it must end before the context does."""
    privileges.need_namespaces()
    place = state.folder / "disk"
    place.mkdir()
    if _libc.mount(b"tmpfs", bytes(place), b"tmpfs", 0, b"size=16m,mode=700") != 0:
        raise OSError(ctypes.get_errno(), "mount")
    yield place
    state.watch.settle()
    assert _libc.umount2(bytes(place), 0) == 0, os.strerror(ctypes.get_errno())


def hold_state(state: State, disk: Path) -> None:
    """The state directory is on `disk`, but not what its jobs print."""
    state.path.rmdir()
    state.path.symlink_to(disk)
    (state.folder / "jobs").mkdir()
    (disk / "jobs").symlink_to(state.folder / "jobs")


def fill(disk: Path) -> Path:
    """Fills the disk to the last byte. Returns the file to remove."""
    file = disk / "ballast"
    with file.open("wb", buffering=0) as stream:
        for size in (1 << 16, 1):
            try:
                while stream.write(bytes(size)):
                    pass
            except OSError:
                continue
    return file

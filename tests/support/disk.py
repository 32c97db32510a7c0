"""A file system of a test's own, small enough to be filled."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

from support import privileges
from support.leaks import GRACE_S, State, describe
from support.patience import scaled

_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def small_disk(state: State) -> Iterator[Path]:
    """A disk of 24 MiB. Processes that use it must end before the context does."""
    privileges.need_namespaces()
    place = state.folder / "disk"
    place.mkdir()
    if _libc.mount(b"tmpfs", bytes(place), b"tmpfs", 0, b"size=24m,mode=700") != 0:
        raise OSError(ctypes.get_errno(), "mount")
    yield place
    state.watch.settle()
    # A process may have been forked while a file of the disk was open, and hold it until it execs.
    deadline = time.monotonic() + scaled(GRACE_S)
    while _libc.umount2(bytes(place), 0) != 0:
        assert ctypes.get_errno() == errno.EBUSY, os.strerror(ctypes.get_errno())
        assert time.monotonic() < deadline, f"{place} is in use by {users(place)}"
        time.sleep(0.01)


def users(disk: Path) -> list[str]:
    """The processes that have files of `disk` open or mapped, or work in a folder of it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            links = [*process.glob("fd/*"), process / "cwd", process / "root"]
            names = [os.readlink(link) for link in links] + [(process / "maps").read_text()]
            if any(str(disk) in name for name in names):
                found.append(describe(int(process.name)))
    return found


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

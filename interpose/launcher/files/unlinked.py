"""Files that have lost the name by which a rank opened them, and have another one.

Named semaphores are such files: glibc makes one under a temporary name, links it to the wanted
name, and removes the first. CRIU links such a file to a name of its own, which exists only until
the rank continues. So while the rank is frozen we give the file its lost name again. The name is
saved with the rank's files (saving.py), restored with them, and removed when CRIU has opened the
file (images.py).

The names that CRIU makes in the file's folder are the same for each rank, so only one rank at a
time is saved there.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterable, Iterator

DELETED = " (deleted)"
_LOCK_S = 60.0  # limit for the wait for other ranks: a program of a rank may hold that lock, too
_LOOK_AGAIN_S = 0.01


def files_of(pid: int) -> dict[str, str]:
    """Files of a process that have lost their name: a link in /proc to the file, by lost name."""
    files = {}
    for folder in (f"/proc/{pid}/fd", f"/proc/{pid}/map_files"):
        with contextlib.suppress(OSError):
            for each in os.listdir(folder):
                with contextlib.suppress(OSError):
                    name, link = os.readlink(f"{folder}/{each}"), f"{folder}/{each}"
                    if name.startswith("/") and name.endswith(DELETED) and os.stat(link).st_nlink:
                        files[name.removesuffix(DELETED)] = link
    return files


def is_free(name: str) -> bool:
    """Whether the name is free, and its folder exists."""
    return os.path.isdir(os.path.dirname(name)) and not os.path.lexists(name)


@contextlib.contextmanager
def relinked(pids: Iterable[int]) -> Iterator[set[str]]:
    """Give the processes' files their lost names until the end of the block. Raises OSError."""
    links = {name: (pid, link) for pid in pids for name, link in files_of(pid).items()}
    with contextlib.ExitStack() as until:
        folders = sorted({os.path.dirname(name) for name in links})  # sorted: no deadlock
        for folder in folders:
            until.enter_context(_locked(folder))
        for name, (pid, link) in links.items():
            until.enter_context(_linked(pid, name, link))
        yield set(links)


@contextlib.contextmanager
def _locked(folder: str) -> Iterator[None]:
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + _LOCK_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise OSError(
                        errno.EAGAIN, f"another process has locked it for {_LOCK_S:.0f} s", folder
                    ) from None
            time.sleep(_LOOK_AGAIN_S)
        yield
    finally:
        os.close(lock)


@contextlib.contextmanager
def _linked(pid: int, name: str, link: str) -> Iterator[None]:
    """Make the link in the mounts of the process: a link across mounts is refused."""
    above, last = os.path.split(name)
    folder = os.open(f"/proc/{pid}/root{above}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.link(link, last, dst_dir_fd=folder)
        try:
            yield
        finally:
            os.unlink(last, dir_fd=folder)
    finally:
        os.close(folder)


def forget(names: Iterable[str]) -> None:
    """Remove the names again: the restored rank has the files open."""
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)

"""Files that have lost the name by which a rank opened them, and have another one.

Named semaphores are so: glibc makes one under a name of its own, links it to the wanted one, and
removes the first. CRIU links such a file to a name of its own, which is there only until the rank
goes on. So while the rank stands still the file has the lost name again, which is saved with the
rank's files (saving.py), set back with them, and taken away when CRIU has opened it (images.py).

The names that CRIU makes are the same for each rank, in the file's folder: one rank after the other
is saved there.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterable, Iterator

GONE = " (deleted)"
_ALONE_S = 60.0  # others are waited for so long: a rank's program may hold that lock, too
_LOOK_AGAIN_S = 0.01


def of(pid: int) -> dict[str, str]:
    """By the lost name: a link in /proc to the file."""
    found = {}
    for folder in (f"/proc/{pid}/fd", f"/proc/{pid}/map_files"):
        with contextlib.suppress(OSError):
            for each in os.listdir(folder):
                with contextlib.suppress(OSError):
                    name, link = os.readlink(f"{folder}/{each}"), f"{folder}/{each}"
                    if name.startswith("/") and name.endswith(GONE) and os.stat(link).st_nlink:
                        found[name.removesuffix(GONE)] = link
    return found


def can_be_had(name: str) -> bool:
    """Whether nobody else has the name, and the folder is there."""
    return os.path.isdir(os.path.dirname(name)) and not os.path.lexists(name)


@contextlib.contextmanager
def found_again(pids: Iterable[int]) -> Iterator[set[str]]:
    """The lost names of the processes' files, which they have meanwhile. Raises OSError."""
    links = {name: (pid, link) for pid in pids for name, link in of(pid).items()}
    with contextlib.ExitStack() as until:
        folders = sorted({os.path.dirname(name) for name in links})  # nobody waits in a ring
        for folder in folders:
            until.enter_context(_alone(folder))
        for name, (pid, link) in links.items():
            until.enter_context(_has(pid, name, link))
        yield set(links)


@contextlib.contextmanager
def _alone(folder: str) -> Iterator[None]:
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + _ALONE_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise OSError(
                        errno.EAGAIN, f"somebody has locked it for {_ALONE_S:.0f} s", folder
                    ) from None
            time.sleep(_LOOK_AGAIN_S)
        yield
    finally:
        os.close(lock)


@contextlib.contextmanager
def _has(pid: int, name: str, link: str) -> Iterator[None]:
    """In the mounts of the process: to another one's no link is made."""
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
    """They are lost again: who was restored has the files open."""
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)

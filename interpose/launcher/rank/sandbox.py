"""A rank's sandbox: namespaces of its own, and rankfold's files at fixed places.

A rank has its own pid, mount and IPC namespaces. The files that it gets from us are below `FOLDER`
there, so that nothing that it keeps (open files, mappings, its environment) names a state
directory: it can be restored under another one. Used by the launcher only; all calls are for Linux.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass

FOLDER = "/run/rankfold"  # outside the sandbox, an empty folder
SOCKET, OUT, ERR, LIBRARIES = (f"{FOLDER}/{name}" for name in ("launcher", "out", "err", "lib"))

_CLONE_NEWNS = 0x00020000
_CLONE_NEWIPC = 0x08000000
_CLONE_NEWPID = 0x20000000
_MS_NOSUID_NODEV_NOEXEC = 2 | 4 | 8
_MS_NOSUID_NODEV = 2 | 4
_MS_REC_SLAVE = 16384 | (1 << 19)
_MS_RDONLY, _MS_REMOUNT, _MS_BIND = 1, 32, 4096
_MNT_DETACH = 2
_FSOPEN, _FSCONFIG, _FSMOUNT, _CREATE = 430, 431, 432, 6  # the same numbers on all architectures
_SMALL = "size=1048576,mode="  # an empty file system over a folder: only names of kept files

# Loaded before any fork, so that a child never finds the loader's lock held.
libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, call: str) -> None:
    """Raise OSError if a call of libc failed."""
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{call}: {os.strerror(code)}")


@dataclass(frozen=True)
class Fixed:
    """The paths outside of what the rank sees below `FOLDER`."""

    socket: str
    out: str
    err: str
    libraries: str | None


@dataclass(frozen=True)
class Sandbox:
    """The files that a rank sees. `hidden`: folders that are empty inside, except for `visible`
    files and folders in them."""

    hidden: tuple[str, ...]
    visible: tuple[str, ...]
    fixed: Fixed | None


def unshare_pids() -> None:
    """Make the next child pid 1 of a new pid namespace, with mounts of its own. Raises OSError."""
    check(libc.unshare(_CLONE_NEWPID | _CLONE_NEWNS), "unshare pid and mount namespaces")


def mount_proc() -> None:
    """As pid 1: mount a /proc of this namespace. Mounts made outside later still reach us."""
    mount("none", "/", None, _MS_REC_SLAVE)
    mount("proc", "/proc", "proc", _MS_NOSUID_NODEV_NOEXEC)


def enter(inside: Sandbox, ipc: bool) -> None:
    """Give this process mounts of its own and, with `ipc`, an IPC namespace (System V IPC, POSIX
    message queues).

    Raises OSError.
    """
    check(libc.unshare(_CLONE_NEWNS | (_CLONE_NEWIPC if ipc else 0)), "unshare mounts and IPC")
    mount("none", "/", None, _MS_REC_SLAVE)
    descriptors = _found(inside.fixed) if inside.fixed else {}
    hide(inside.hidden, inside.visible)
    if inside.fixed:
        _furnish(descriptors)


@contextlib.contextmanager
def mounts_of(pid: int) -> Iterator[None]:
    """Be in the mount namespace of another process until the end of the block, with its root as the
    working directory. Raises OSError."""
    with contextlib.ExitStack() as until:
        theirs, ours, root, folder = (
            until.enter_context(_opened(path))
            for path in (f"/proc/{pid}/ns/mnt", "/proc/self/ns/mnt", "/", ".")
        )
        check(libc.setns(theirs, _CLONE_NEWNS), f"enter the mounts of process {pid}")
        try:
            yield
        finally:
            check(libc.setns(ours, _CLONE_NEWNS), "return to our mounts")
            os.fchdir(root)
            os.chroot(".")
            os.fchdir(folder)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def hide(folders: tuple[str, ...], visible: tuple[str, ...]) -> None:
    """In mounts of our own: make the folders empty and read-only.

    Files and folders of `visible` inside them stay at their places. Raises OSError.
    """
    real = [os.path.realpath(folder) for folder in folders if os.path.isdir(folder)]
    inside = {
        path: _path(path)
        for path in dict.fromkeys(map(os.path.realpath, visible))
        if any(path.startswith(f"{folder}/") for folder in real) and os.path.exists(path)
    }
    for folder in real:
        mode = stat.S_IMODE(os.stat(folder).st_mode)
        mount("tmpfs", folder, "tmpfs", _MS_NOSUID_NODEV_NOEXEC, f"{_SMALL}{mode:o}")
    for path, fd in inside.items():
        _bind(fd, path)
    for folder in real:
        _seal(folder, _MS_NOSUID_NODEV_NOEXEC)


def _found(fixed: Fixed) -> dict[str, int]:
    """Open the files that the rank will see, because they may be hidden next. Makes missing
    logs."""
    for log in (fixed.out, fixed.err):
        with contextlib.suppress(FileExistsError):
            os.close(os.open(log, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    descriptors = {SOCKET: fixed.socket, OUT: fixed.out, ERR: fixed.err}
    if fixed.libraries:
        descriptors[LIBRARIES] = fixed.libraries
    return {place: _path(path) for place, path in descriptors.items()}


def _furnish(descriptors: dict[str, int]) -> None:
    """Mount the files below `FOLDER`, readable for every user that the rank's processes become."""
    mount("tmpfs", FOLDER, "tmpfs", _MS_NOSUID_NODEV, f"{_SMALL}755")
    for place, fd in descriptors.items():
        _bind(fd, place)
    if LIBRARIES in descriptors:
        _seal(LIBRARIES, _MS_NOSUID_NODEV)
    _seal(FOLDER, _MS_NOSUID_NODEV)


def _path(path: str) -> int:
    return os.open(path, os.O_PATH | os.O_CLOEXEC)


def _bind(fd: int, place: str) -> None:
    """Bind the file or folder of `fd` to `place` as well; closes `fd`."""
    folder = os.path.isdir(f"/proc/self/fd/{fd}")
    os.makedirs(place if folder else os.path.dirname(place), mode=0o755, exist_ok=True)
    if not folder:
        os.close(os.open(place, os.O_CREAT | os.O_CLOEXEC, 0o600))
    mount(f"/proc/self/fd/{fd}", place, None, _MS_BIND)
    os.close(fd)


def _seal(place: str, flags: int) -> None:
    mount("none", place, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | flags)


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """mount(2). Raises OSError."""
    encoded = [None if each is None else os.fsencode(each) for each in (source, target, kind, data)]
    result = libc.mount(*encoded[:3], flags, encoded[3])
    check(result, f"mount {source} on {target}")


@contextlib.contextmanager
def _ipc_of(pid: int) -> Iterator[bool]:
    """Be in the IPC namespace of another process until the end of the block. Gives whether that is
    another one than ours. Raises OSError."""
    theirs, ours = (os.open(f"/proc/{of}/ns/ipc", os.O_RDONLY) for of in (pid, "self"))
    try:
        if os.path.sameopenfile(theirs, ours):
            yield False
            return
        check(libc.setns(theirs, _CLONE_NEWIPC), f"enter the IPC namespace of process {pid}")
        try:
            yield True
        finally:
            check(libc.setns(ours, _CLONE_NEWIPC), "return to our IPC namespace")
    finally:
        os.close(theirs)
        os.close(ours)


def message_queues(pid: int) -> list[str]:
    """Names of the POSIX message queues in a process's IPC namespace, open or not; none if that
    namespace is our own. Raises OSError."""
    fds: list[int] = []
    try:
        with _ipc_of(pid) as is_another:
            if not is_another:
                return []
            fds.append(libc.syscall(_FSOPEN, b"mqueue", 0))
            check(libc.syscall(_FSCONFIG, fds[-1], _CREATE, None, None, 0), "open mqueue")
            fds.append(libc.syscall(_FSMOUNT, fds[-1], 0, 0))
        fds.append(os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=fds[-1]))
        return sorted(os.listdir(fds[-1]))
    finally:
        for fd in fds:
            if fd >= 0:
                os.close(fd)


def semaphore_sets(pid: int) -> set[int]:
    """The System V semaphore sets in a process's IPC namespace. Raises OSError."""
    with _ipc_of(pid), open("/proc/sysvipc/sem") as listed:
        return {int(line.split()[1]) for line in listed if line.split()[1].isdigit()}


def detached(kind: str) -> int:
    """Open the root of a file system that is mounted nowhere. As pid 1, in mounts of our own.
    Raises OSError."""
    mount(kind, FOLDER, kind, _MS_NOSUID_NODEV_NOEXEC)
    try:
        return os.open(FOLDER, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        check(libc.umount2(FOLDER.encode(), _MNT_DETACH), f"umount {FOLDER}")

"""Reports what happens to files on this machine: fanotify(7), with names.

A group gets events from whole file systems, for changes by any process and any system call; no
process waits for it. It requires Linux 5.17, CAP_SYS_ADMIN and CAP_DAC_READ_SEARCH, and file
systems whose file handles can be opened: NFS and most overlays are not among them.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import struct
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MODIFY, ATTRIB, CLOSE_WRITE = 0x2, 0x4, 0x8
MOVED_FROM, MOVED_TO, CREATE, DELETE = 0x40, 0x80, 0x100, 0x200
OVERFLOW = 0x4000  # some events are missing
RENAME, ONDIR = 0x1000_0000, 0x4000_0000
_MASK = MODIFY | ATTRIB | CLOSE_WRITE | CREATE | DELETE | RENAME | ONDIR

_INIT = (
    0x1
    | 0x2
    | 0x10
    | 0x20  # close on exec, do not block, no limits to the queue and to marks
    | 0x200
    | 0x400
    | 0x800
    | 0x1000  # handles of the file and of its folder, names, targets
)
_MARK_ADD, _MARK_FILESYSTEM = 0x1, 0x100
_MARK_IGNORE, _CHILDREN = 0x440, 0x0800_0000  # permanently, for the files in a folder
_AT_FDCWD, _AT_EMPTY_PATH = -100, 0x1000
_METADATA, _INFO, _HANDLE = struct.Struct("<IBBHQii"), struct.Struct("<BBH"), struct.Struct("<Ii")
_FSID_BYTES = 8
_FILE, _NAME, _FOLDER, _OLD_NAME, _NEW_NAME = 1, 2, 3, 10, 12  # kinds of information
_READ_BYTES = 1 << 18
_HANDLE_BYTES = 128

# The kernel's own file systems: they hold no user's files.
_NO_FILES = frozenset(
    (
        "autofs",
        "binfmt_misc",
        "bpf",
        "cgroup",
        "cgroup2",
        "configfs",
        "debugfs",
        "devpts",
        "devtmpfs",
        "efivarfs",
        "fusectl",
        "hugetlbfs",
        "mqueue",
        "nsfs",
        "proc",
        "pstore",
        "securityfs",
        "sysfs",
        "tracefs",
        "rpc_pipefs",
        "selinuxfs",
    )
)

_libc = ctypes.CDLL(None, use_errno=True)


class Node(NamedTuple):
    """A file or folder, independent of its name: its file system, and its handle there, which is
    never reused."""

    fsid: bytes
    handle: bytes

    @property
    def text(self) -> str:
        return f"{self.fsid.hex()}:{self.handle.hex()}"

    @classmethod
    def parse(cls, text: str) -> Node:
        fsid, handle = map(bytes.fromhex, text.split(":"))
        return cls(fsid, handle)


class Place(NamedTuple):
    """A name in a folder; ``.`` is the folder itself."""

    folder: Node
    name: str


class Event(NamedTuple):
    """`mask` may combine several events on the same name, in any order. `pid`: of the process, as
    our namespace numbers it. `old`: the old name of a renamed object, whose new name is `place`."""

    mask: int
    pid: int
    place: Place | None
    old: Place | None
    target: Node | None


class Group:
    """Gets events from the file systems that were marked. Raises OSError."""

    def __init__(self) -> None:
        self._fd = _checked(_libc.fanotify_init(_INIT, os.O_RDONLY), "fanotify_init")
        self._mounts: dict[bytes, int] = {}

    def fileno(self) -> int:
        return self._fd

    def mark(self, path: str) -> None:
        """Get events from the file system of `path`. Raises OSError."""
        fsid = os.statvfs(path).f_fsid.to_bytes(_FSID_BYTES, "little")
        if fsid in self._mounts:
            return
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            os.close(_opened(fd, _handle_of(fd)))  # check that handles can be opened
            flags, mask = _MARK_ADD | _MARK_FILESYSTEM, ctypes.c_uint64(_MASK)
            result = _libc.fanotify_mark(self._fd, flags, mask, _AT_FDCWD, os.fsencode(path))
            _checked(result, "fanotify_mark")
        except OSError:
            os.close(fd)
            raise
        self._mounts[fsid] = fd

    def ignore(self, folder: str) -> None:
        """Ignore events on the files in a folder, and do not be woken by them. Raises OSError: it
        requires Linux 6.0."""
        mask = ctypes.c_uint64(MODIFY | ATTRIB | CLOSE_WRITE | _CHILDREN)
        flags, path = _MARK_ADD | _MARK_IGNORE, os.fsencode(folder)
        result = _libc.fanotify_mark(self._fd, flags, mask, _AT_FDCWD, path)
        _checked(result, "fanotify_mark")

    def close(self) -> None:
        for fd in (self._fd, *self._mounts.values()):
            os.close(fd)

    def events(self, above: int = 0) -> Iterator[Event]:
        """The events so far, of processes of our pid namespace with a pid larger than `above`
        (processes outside have 0), and events about the queue. Raises OSError.

        Later events are for the next call: while a process keeps writing, they would never end.
        """
        left = self._queued()
        while left > 0:
            try:
                data = os.read(self._fd, _READ_BYTES)
            except BlockingIOError:
                return
            offset = 0
            while offset < len(data):
                length, _, _, begin, mask, _, pid = _METADATA.unpack_from(data, offset)
                if pid > above or mask & OVERFLOW:
                    yield _event(data, offset + begin, offset + length, mask, pid)
                offset += length
                left -= 1

    def _queued(self) -> int:
        """The number of pending events: the kernel counts only their heads."""
        size = fcntl.ioctl(self._fd, termios.FIONREAD, bytes(4))
        return int.from_bytes(size, sys.byteorder) // _METADATA.size

    def path(self, node: Node) -> str | None:
        """The present path of a folder or file; None if it is gone. Raises OSError: ENAMETOOLONG if
        the path is too long for any call."""
        mount = self._mounts.get(node.fsid)
        if mount is None:
            return None
        try:
            fd = _opened(mount, node.handle)
        except OSError as error:
            if error.errno in _GONE:
                return None
            raise
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
            return None if target.endswith(_DELETED) and os.fstat(fd).st_nlink == 0 else target
        finally:
            os.close(fd)

    def opened(self, node: Node) -> int | None:
        """An O_PATH descriptor of the object; None if it is gone. Raises OSError."""
        mount = self._mounts.get(node.fsid)
        return None if mount is None else open_node(node, mount)

    def above(self, node: Node) -> str:
        """For a folder whose path is too long: the nearest folder above it whose path is not.
        Raises OSError."""
        fd = self.opened(node)
        while fd is not None:
            try:
                return os.readlink(f"/proc/self/fd/{fd}")
            except OSError as error:
                if error.errno != errno.ENAMETOOLONG:
                    raise
                up = os.open("..", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)
            finally:
                os.close(fd)
            fd = up
        return "?"


_GONE = (errno.ENOENT, errno.ESTALE)
_CREATING_TRIES, _CREATING_S = 1000, 0.001  # for an object that is being created
_DELETED = " (deleted)"


def _event(data: bytes, offset: int, end: int, mask: int, pid: int) -> Event:
    place = old = target = None
    while offset < end:
        kind, _, length = _INFO.unpack_from(data, offset)
        start = offset + _INFO.size
        fsid, start = data[start : start + _FSID_BYTES], start + _FSID_BYTES
        stop = start + _HANDLE.size + _HANDLE.unpack_from(data, start)[0]
        node = Node(fsid, data[start:stop])
        if kind in (_NAME, _OLD_NAME, _NEW_NAME):
            name = os.fsdecode(data[stop : data.index(b"\0", stop)])
            if kind == _OLD_NAME:
                old = Place(node, name)
            else:
                place = Place(node, name)
        elif kind == _FOLDER:
            place = Place(node, ".")
        elif kind == _FILE:
            target = node
        offset += length
    return Event(mask, pid, place, old, target)


def node_of(fd: int) -> Node:
    """The node of a descriptor. Raises OSError."""
    return Node(_fsid_of(fd), _handle_of(fd))


def open_node(node: Node, near: int) -> int | None:
    """An O_PATH descriptor of the object, if it is on the file system of the folder `near` and has
    any name there. Raises OSError."""
    if node.fsid != _fsid_of(near):
        return None
    try:
        fd = _opened(near, node.handle)
    except OSError as error:
        if error.errno in _GONE:
            return None
        raise
    if os.fstat(fd).st_nlink == 0:
        os.close(fd)
        return None
    return fd


def _fsid_of(fd: int) -> bytes:
    return os.fstatvfs(fd).f_fsid.to_bytes(_FSID_BYTES, "little")


def _handle_of(fd: int) -> bytes:
    empty, length = _HANDLE.pack(_HANDLE_BYTES, 0), _HANDLE.size + _HANDLE_BYTES
    buffer = ctypes.create_string_buffer(empty, length)
    mount = ctypes.c_int()
    result = _libc.name_to_handle_at(fd, b"", buffer, ctypes.byref(mount), _AT_EMPTY_PATH)
    _checked(result, "name_to_handle_at")
    return buffer.raw[: _HANDLE.size + _HANDLE.unpack_from(buffer.raw)[0]]


def _opened(mount: int, handle: bytes) -> int:
    """Open an object by its handle. While another process creates the object, ext4 of newer kernels
    returns ENOMEM, so that is tried again for a while."""
    buffer = ctypes.create_string_buffer(handle, len(handle))
    for _ in range(_CREATING_TRIES):
        result = _libc.open_by_handle_at(mount, buffer, os.O_PATH | os.O_CLOEXEC)
        if result >= 0 or ctypes.get_errno() != errno.ENOMEM:
            break
        time.sleep(_CREATING_S)
    return _checked(result, "open_by_handle_at")


def _checked(result: int, call: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{call}: {os.strerror(code)}")
    return result


# ---- which file systems there are --------------------------------------------------------------


class Mount(NamedTuple):
    device: str  # major and minor number
    root: str  # the part of the file system that is mounted
    path: str
    kind: str


def mounts() -> list[Mount]:
    """One mount for each writable file system, as we see them; of several, the one that shows most
    of it."""
    by_device: dict[str, Mount] = {}
    for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        words, _, more = line.partition(" - ")
        _, _, device, root, path, options = words.split()[:6]
        kind, _, of_all = more.split()[:3]
        if kind in _NO_FILES or "ro" in (options.split(",")[0], of_all.split(",")[0]):
            continue
        mount = Mount(device, _plain(root), _plain(path), kind)
        known = by_device.get(device)
        if known is None or len(mount.root) < len(known.root):
            by_device[device] = mount
    return list(by_device.values())


def _plain(text: str) -> str:
    """Decode a path of mountinfo, in which a space is ``\\040``."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def mark_all(group: Group) -> dict[str, str]:
    """Mark every writable file system. Returns those that cannot be marked, and why."""
    unseen = {}
    for mount in mounts():
        try:
            group.mark(mount.path)
        except OSError as error:
            unseen[mount.path] = f"{mount.kind}: {error.strerror}"
    return unseen


def trouble() -> str:
    """Which files' events cannot be seen on this machine, and why; empty: none."""
    try:
        with contextlib.closing(Group()) as group:
            unseen = mark_all(group)
    except OSError as error:
        return f"files that a rank writes are not tracked ({error.strerror})"
    if unseen:
        unwatched = ", ".join(f"{path} ({why})" for path, why in sorted(unseen.items()))
        return f"files that a rank writes are not tracked in {unwatched}"
    return ""

"""Finds what CRIU cannot save in a rank, before a dump is tried.

Each finding names the process and a remedy. CRIU itself refuses what only it can detect.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import re
import select
import socket
import struct
import termios
import time
from pathlib import Path

from rankfold.interpose.launcher.criu import host_state, inherited
from rankfold.interpose.launcher.criu.command import named
from rankfold.interpose.launcher.criu.settings import personality
from rankfold.interpose.launcher.files import unlinked
from rankfold.interpose.launcher.rank.process import (
    Started,
    descriptor,
    opened,
    socket_of,
    thread_state,
)
from rankfold.interpose.launcher.rank.sandbox import libc, message_queues

_NAMESPACES = ("user", "pid", "mnt", "net", "uts", "ipc", "cgroup")
_SAVED = ("uts", "ipc")  # namespaces that are saved with the rank's first process
_CAP_SYS_RESOURCE = 24
_READ_IMPLIES_EXEC = 0x0400000  # exec clears it, so CRIU cannot pass it on
_MPTCP = 262
_UCRED = struct.Struct("=iII")
_NO_USER = 0xFFFFFFFF  # SO_PEERCRED's uid: there is no other end
# Links in /proc of descriptors and mapped files; what they are; a remedy.
_FILES = (
    (r"^anon_inode:\[?io_uring", "io_uring", "USE_LIBUV=0 prevents PyTorch from using it"),
    (r"^anon_inode:\[?userfaultfd", "userfaultfd", "it must close it"),
    (r"^anon_inode:\[?perf_event", "a performance counter", "it must close it"),
    (r"^/secretmem", "secret memory (memfd_secret)", "it must close it"),
    (r"^/dev/(nvidia|dri/|kfd)", "a real device", "it must use the GPU only through rankfold"),
)

# Descriptors that may have unread events, by their link in /proc.
_UNREAD = {
    "anon_inode:inotify": "events of inotify",
    "anon_inode:[fanotify]": "events of fanotify",
    "/dev/pts/": "the pending input of a terminal",
    "/dev/ptmx": "the pending input of a terminal",
}
_MESSAGE_QUEUES = 0x19800202  # magic number of their file system

AGAIN_S = 0.2  # shorter-lived findings do not count: a fork in progress, a file just renamed


def find_running(rank: Started, pids: set[int], files_seen: bool) -> list[str]:
    """Like `find`, for a rank that runs: findings that are still there after `AGAIN_S`."""
    before = find(rank, pids, files_seen) + in_memory(pids)
    if before:
        time.sleep(AGAIN_S)
        again = {*find(rank, pids, files_seen), *in_memory(pids)}
        before = [each for each in before if each in again]
    return before


def find(rank: Started, pids: set[int], files_seen: bool) -> list[str]:
    """All findings, in words. `pids`: the processes of the namespace except our own. `files_seen`:
    its files are saved with it."""
    parents = {pid: parent for pid in pids if (parent := _parent(pid)) is not None}
    hindrances = []
    if rank.pid in parents and _session(rank.pid) != rank.pid:
        hindrances.append(
            f"process {named(rank.pid)}, in which the rank continues, is in the session of a "
            "process that has exited: a daemon must call setsid after its last fork"
        )
    with contextlib.suppress(OSError):
        if queues := message_queues(rank.pid):
            hindrances.append(
                f"process {named(rank.pid)}, or one that it started, has made a POSIX message "
                f'queue, which cannot be saved: mq_unlink("/{queues[0]}") removes it'
            )
    for pid in sorted(parents):
        if not _is_below(pid, rank.pid, parents):
            hindrances.append(
                f"process {named(pid)} is no longer a descendant of the rank's first process "
                f"{rank.pid}: that process must not exit first, and daemons must not detach from "
                "it"
            )
        with contextlib.suppress(OSError):
            if personality(pid) != personality(rank.pid):
                hindrances.append(
                    f"process {named(pid)} has a personality other than the rank's first process: "
                    "set it before the first fork"
                )
            elif personality(pid) & _READ_IMPLIES_EXEC:
                hindrances.append(
                    f"process {named(pid)} has the personality READ_IMPLIES_EXEC: clear it"
                )
        hindrances += [
            f"process {named(pid)} {hindrance}" for hindrance in _hindrances(pid, rank, pids)
        ]
        hindrances += [
            f"process {named(pid)} {hindrance}" for hindrance in host_state.hindrances(pid)
        ]
        hindrances += [
            f"process {named(pid)} uses {name}, which cannot be saved: that name was removed, the "
            f"file has another one, and {_why_unsaved(files_seen)}"
            for name in sorted(unlinked.files_of(pid))
            if not (files_seen and unlinked.is_free(name))
        ]
    hindrances += [
        f"process {named(pid)} has a thread with another {setting} than the rank's first thread: "
        "set it before the first thread and the first fork"
        for pid, setting in inherited.differing(parents, rank.pid)
    ]
    return hindrances


def in_memory(pids: set[int]) -> list[str]:
    """The checks that `find` omits, because they read all memory of the processes."""
    return [
        f"process {named(pid)} {hindrance}"
        for pid in sorted(pids)
        for hindrance in host_state.find_in_memory(pid)
    ]


def passing(pids: set[int]) -> list[str]:
    """Temporary obstacles: data that the kernel holds for the rank's processes to read, and that
    CRIU would lose. The processes are frozen."""
    unread = set()
    for pid in sorted(pids):
        for begins, what in _UNREAD.items():
            for number in opened(pid, begins):
                left = ctypes.c_int(0)
                with contextlib.suppress(OSError), descriptor(pid, number) as taken:
                    fcntl.ioctl(taken, termios.FIONREAD, left)
                if left.value:
                    unread.add(f"process {named(pid)} has not read {what}, which would be lost")
    return sorted(unread) + host_state.passing(sorted(pids))


def _hindrances(pid: int, rank: Started, pids: set[int]) -> list[str]:
    hindrances = [
        f"has a {name} namespace of its own: run it without its sandbox or container"
        for name in _NAMESPACES
        if _in_other_namespace(pid, rank, name)
    ]
    with contextlib.suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        tracer = re.search(r"^TracerPid:\s*(\d+)", status, re.MULTILINE)
        if tracer and int(tracer[1]) in pids:  # the launcher's workers trace, too
            hindrances.append(f"is traced by process {tracer[1]}: detach the debugger")
        if _is_others(status):
            hindrances.append(
                "belongs to another user, and CRIU may not read its limits: give rankfold "
                "CAP_SYS_RESOURCE, or run all of the rank as one user"
            )
    if thread_state(pid, pid) == "Z" and os.path.isdir(f"/proc/{pid}/task"):
        hindrances.append(
            "has no main thread any more, while other threads run: the main thread must not exit "
            "by itself (pthread_exit is fine where rankfold's libraries are preloaded)"
        )
    hindrances += _sockets(pid)
    if any(_file_system(pid, number) == _MESSAGE_QUEUES for number in opened(pid, "/")):
        hindrances.append("uses a POSIX message queue, which cannot be saved: it must close it")
    links = _links(f"/proc/{pid}/fd") | _links(f"/proc/{pid}/map_files")
    for pattern, what, remedy in _FILES:
        if any(re.match(pattern, link) for link in links):
            hindrances.append(f"uses {what}, which cannot be saved: {remedy}")
    return hindrances


def _is_others(status: str) -> bool:
    """Whether CRIU, with our privileges, may not read the limits of a process with this
    /proc/PID/status."""
    own = Path("/proc/self/status").read_text()
    if int(_field(own, "CapEff"), 16) >> _CAP_SYS_RESOURCE & 1:
        return False
    users, groups = _field(status, "Uid").split()[:3], _field(status, "Gid").split()[:3]
    return {*users} != {str(os.getuid())} or {*groups} != {str(os.getgid())}


def _field(status: str, name: str) -> str:
    match = re.search(rf"^{name}:\s*(.*)", status, re.MULTILINE)
    return match[1] if match else ""


def _why_unsaved(files_seen: bool) -> str:
    if not files_seen:
        return (
            "the kernel does not report accesses to the rank's files. Named semaphores are such "
            "files"
        )
    return "another file has that name now, or its folder was removed"


def _in_other_namespace(pid: int, rank: Started, name: str) -> bool:
    """Whether a process is in another namespace than the rank. For the rank's first process: other
    than it was given, except namespaces that are saved with it."""
    first = pid == rank.pid
    if first and name in _SAVED:
        return False
    with contextlib.suppress(OSError):
        own = os.readlink(f"/proc/{pid}/ns/{name}")
        if first and name == "mnt":
            return own != rank.mounts
        return own != os.readlink(f"/proc/{'self' if first else rank.pid}/ns/{name}")
    return False


def _sockets(pid: int) -> list[str]:
    """Sockets that are useless without a process that is not saved, or of a kind unknown to
    CRIU."""
    hindrances = set()
    for number in opened(pid, "socket:"):
        with contextlib.suppress(OSError), socket_of(pid, number) as sock:
            hindrances.add(_of_socket(sock))
    return sorted(hindrances - {""})


def _of_socket(sock: socket.socket) -> str:
    if sock.getsockopt(socket.SOL_SOCKET, socket.SO_PROTOCOL) == _MPTCP:
        return (
            "has an MPTCP socket, which cannot be saved: it must use plain TCP "
            "(GODEBUG=multipathtcp=0 for programs in Go)"
        )
    if sock.family != socket.AF_UNIX or sock.type == socket.SOCK_DGRAM:
        return ""
    known = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    peer, uid, _ = _UCRED.unpack(known)
    if peer != 0 or uid == _NO_USER:  # the peer is in our pid namespace, or there never was one
        return ""
    poll = select.poll()
    poll.register(sock, 0)
    if poll.poll(0):  # the other end is closed
        return ""
    path = sock.getpeername() or sock.getsockname()
    name = f" ({os.fsdecode(path)})" if path else ""
    return f"has a Unix socket{name} to a process outside of the rank: it must close it"


def _file_system(pid: int, number: int) -> int:
    """The type in statfs(2) of the file system of a descriptor's file; 0: unknown."""
    words = (ctypes.c_long * 32)()
    path = f"/proc/{pid}/fd/{number}".encode()
    return words[0] if libc.statfs(path, words) == 0 else 0


def _links(folder: str) -> set[str]:
    """The link targets in a folder of descriptors or mappings."""
    links = set()
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                links.add(os.readlink(f"{folder}/{name}"))
    return links


def _parent(pid: int) -> int | None:
    with contextlib.suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        return int(stat[stat.rindex(")") + 1 :].split()[1])
    return None


def _session(pid: int) -> int:
    """The session of a process; its own pid if unknown."""
    try:
        return os.getsid(pid)
    except OSError:
        return pid


def _is_below(pid: int, rank: int, parents: dict[int, int]) -> bool:
    while pid in parents and pid != rank:
        pid = parents[pid]
    return pid == rank

"""Access control for control sockets: processes of the same user (or root), except ranks'
processes.

A rank is a user's program, with the user id of rankfold's own processes, so the socket's mode does
not keep it out. Ranks' processes are recognised by properties that they cannot remove:

* the pid namespace, where the launcher could make one: no process can leave it;
* a finite hard limit of real-time CPU time (`RLIMIT_RTTIME`; 146,000 years, so no process reaches
  it), which `mark` sets before the program starts: all children inherit it, also those that leave
  the session or lose their parents, and only CAP_SYS_RESOURCE can raise it again.

docs/decisions/0063-control-socket-access.md describes what this protects against, with and without
privileges.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import resource
import select
import socket
import struct
from collections.abc import Iterator

RANK_LIMIT_US = 1 << 62
_SO_PEERPIDFD = 77  # Linux 6.5; the socket module has no name for it
_UNKNOWN_OPTION = (errno.ENOPROTOOPT, errno.EOPNOTSUPP, errno.EINVAL)
_CREDENTIALS = struct.Struct("3i")


class Denied(Exception):
    """The peer may not connect; the message has the reason."""


def mark() -> None:
    """Mark the calling process, and all that it starts, permanently as a rank's."""
    soft, hard = resource.getrlimit(resource.RLIMIT_RTTIME)
    limit = RANK_LIMIT_US if hard == resource.RLIM_INFINITY else min(hard, RANK_LIMIT_US)
    soft = limit if soft == resource.RLIM_INFINITY else min(soft, limit)
    resource.setrlimit(resource.RLIMIT_RTTIME, (soft, limit))


@functools.cache
def identified() -> bool:
    """Whether this kernel identifies the connecting process, in any pid namespace. Where it does
    not, ranks are kept out only because they cannot see our sockets."""
    ours, other = socket.socketpair()
    with ours, other:
        try:
            os.close(ours.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD))
        except OSError:
            return False
        return True


def peer(sock: socket.socket) -> tuple[int, int]:
    """The pid and user of the peer: the process that connected or, for a client, that listens. The
    pid is 0 if this pid namespace does not have the process. Raises OSError for a broken socket."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _gid = _CREDENTIALS.unpack(raw)
    return int(pid), int(uid)


def credentials(sock: socket.socket) -> int:
    """The peer's pid, as from `peer`. Raises Denied for another user, OSError as `peer`."""
    pid, uid = peer(sock)
    if uid not in (os.getuid(), 0):
        raise Denied(f"the peer is user {uid}")
    return pid


class Gate:
    """Admits processes that are not ranks'.

    `proc`: a descriptor of the /proc where rankfold's processes live. A launcher is the first
    process of its rank's namespace, so it brings a descriptor from outside.
    """

    def __init__(self, proc: int | None = None):
        self._own = proc is None
        self._proc = os.open("/proc", os.O_PATH | os.O_CLOEXEC) if proc is None else proc

    def close(self) -> None:
        if self._own:
            os.close(self._proc)

    def check(self, sock: socket.socket) -> None:
        """Check the peer of a connection. Raises Denied, OSError for a broken socket."""
        pid = credentials(sock)
        with _pidfd(sock) as pidfd:
            if pidfd is not None:
                pid = self._pid_of(pidfd)
            elif pid == 0 and not self._own:
                return  # an older kernel cannot identify it; ranks' mounts hide our socket
            self._check_process(pid)
            # The pid may have been reused meanwhile, but not while the process lived.
            if pidfd is not None and _has_ended(pidfd):
                raise Denied("the process that connected has exited")

    def _pid_of(self, pidfd: int) -> int:
        """The pid in our /proc; 0 or less if the process is not there."""
        text = self._read(f"self/fdinfo/{pidfd}")
        return int(_field(text, "Pid:") or 0)

    def _check_process(self, pid: int) -> None:
        if pid <= 0:
            raise Denied("the process that connected is in another pid namespace, or has exited")
        try:
            namespaces = _field(self._read(f"{pid}/status"), "NSpid:").split()
            limits = _field(self._read(f"{pid}/limits"), "Max realtime timeout").split()
        except OSError as error:
            raise Denied(f"process {pid} cannot be inspected: {error}") from error
        if len(namespaces) != 1:
            raise Denied(
                f"process {pid} is in its own pid namespace, as ranks are: "
                "ranks must not connect to rankfold"
            )
        if len(limits) < 2 or limits[1] != "unlimited":
            raise Denied(
                f"process {pid} has a limit of real-time CPU time, as all processes of ranks "
                "have: ranks must not connect to rankfold; for other processes "
                "`ulimit -HR` must be unlimited"
            )

    def _read(self, name: str) -> str:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._proc)
        with open(fd, errors="replace") as file:
            return file.read()


def _field(text: str, name: str) -> str:
    """The text after `name` on its line; empty if there is none."""
    lines = (line for line in text.splitlines() if line.startswith(name))
    return next(lines, name)[len(name) :].strip()


@contextlib.contextmanager
def _pidfd(sock: socket.socket) -> Iterator[int | None]:
    """A pidfd of the process that connected. None: this kernel provides none. Raises Denied if the
    process has ended."""
    try:
        fd = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except ProcessLookupError as error:
        raise Denied("the process that connected has exited") from error
    except OSError as error:
        if error.errno not in _UNKNOWN_OPTION:
            raise
        yield None
        return
    try:
        yield fd
    finally:
        os.close(fd)


def _has_ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))

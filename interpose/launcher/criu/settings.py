"""Saves process settings that CRIU does not, and that another process can set: the affinity, the
I/O priority and the timer slack of threads, the core dump filter, options of sockets and their
multicast memberships, and timerfds at an absolute time of the wall clock.

Only values that differ from the launcher's own, or from those of a new socket, are saved. The
others take the defaults of the machine on which the rank is restored.
"""

from __future__ import annotations

import contextlib
import os
import platform
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rankfold.interpose.launcher.criu import multicast, wall_timers
from rankfold.interpose.launcher.rank import process
from rankfold.interpose.launcher.rank.sandbox import check, libc

Setting = tuple[str, list[int], Any]  # name, owner (pid, thread, or socket option), value

_IOPRIO_SET, _IOPRIO_GET = {"aarch64": (30, 31)}.get(platform.machine(), (251, 252))
_OF_PROCESS = 1
_OPTION_BYTES_MAX = 128  # largest size of an option, in bytes

# Levels, and numbers of options on Linux; without those that CRIU restores itself.
_OPTIONS = {
    # keepalive, oobinline, priority, linger, rcvlowat, timestamp, timestampns, rxq_ovfl, busy_poll,
    # select_err_queue, zerocopy
    socket.SOL_SOCKET: (9, 10, 12, 13, 18, 29, 35, 40, 45, 46, 60),
    # tos, ttl, recvopts, pktinfo, mtu_discover, recverr, recvttl, recvtos, minttl,
    # bind_address_no_port, multicast_if, _ttl, _loop, _all
    socket.IPPROTO_IP: (1, 2, 6, 8, 10, 11, 12, 13, 21, 24, 32, 33, 34, 49),
    # unicast_hops, multicast_hops, multicast_loop, mtu_discover, recverr, recvpktinfo, tclass
    socket.IPPROTO_IPV6: (16, 18, 19, 23, 25, 49, 67),
    # nodelay, keepidle, keepintvl, keepcnt, syncnt, linger2, defer_accept, congestion,
    # thin_linear, user_timeout, fastopen, notsent_lowat, inq
    socket.IPPROTO_TCP: (1, 4, 5, 6, 7, 8, 9, 13, 16, 18, 23, 25, 36),
    # segment, gro
    socket.IPPROTO_UDP: (103, 104),
}


def read(pids: Iterable[int]) -> tuple[Setting, ...]:
    """The settings of frozen processes."""
    settings: list[Setting] = []
    for pid in pids:
        for thread in process.threads(pid):
            settings += _differing(_OF_THREADS, thread)
        settings += _differing(_OF_PROCESSES, pid)
        settings += _of_sockets(pid)
        settings += [
            ("multicast", [pid, number], each) for number, each in multicast.memberships_of(pid)
        ]
        settings += [("timer", [pid, number], each) for number, each in wall_timers.timers_of(pid)]
    return tuple(settings)


def personality(pid: int) -> int:
    """The personality of a process, as in personality(2). Raises OSError."""
    return int(Path(f"/proc/{pid}/personality").read_text(), 16)


def memberships(settings: Iterable[Setting]) -> list[multicast.Membership]:
    """The multicast memberships among the settings."""
    return [tuple(value) for name, _, value in settings if name == "multicast"]


def restore(settings: Iterable[Setting]) -> list[str]:
    """Apply the settings to restored, frozen processes. Returns those that could not be set, in
    words."""
    problems = []
    for name, of, value in settings:
        try:
            if name == "socket":
                pid, number, level, option = of
                _set_option(pid, number, level, option, bytes.fromhex(value))
            elif name == "multicast":
                with process.socket_of(*of) as sock:
                    multicast.join(sock, tuple(value))
            elif name == "timer":
                with process.descriptor(*of) as timer:
                    wall_timers.restore(timer, wall_timers.Timer(*value))
            else:
                _ALL[name][1](of[0], value)
        except OSError as error:
            problems.append(f"{name} {of}: {error}")
    return problems


# ---- threads and processes ----


def _affinity(thread: int) -> list[int]:
    return sorted(os.sched_getaffinity(thread))


def _io_priority(thread: int) -> int:
    return int(libc.syscall(_IOPRIO_GET, _OF_PROCESS, thread))


def _set_io_priority(thread: int, value: int) -> None:
    check(libc.syscall(_IOPRIO_SET, _OF_PROCESS, thread, value), "set the priority of its I/O")


def _file(name: str) -> tuple[Callable[[int], Any], Callable[[int, Any], Any]]:
    """Functions that read and write a setting in a file below /proc/PID."""

    def read(pid: int) -> str:
        return Path(f"/proc/{pid}/{name}").read_text().strip()

    def write(pid: int, value: str) -> None:
        Path(f"/proc/{pid}/{name}").write_text(value)

    return read, write


_read_filter, _write_filter = _file("coredump_filter")
_OF_THREADS = {
    "affinity": (_affinity, os.sched_setaffinity),
    "I/O priority": (_io_priority, _set_io_priority),
    "timer slack": _file("timerslack_ns"),
}
_OF_PROCESSES = {"core filter": (_read_filter, lambda pid, value: _write_filter(pid, f"0x{value}"))}
_ALL: dict[str, Any] = _OF_THREADS | _OF_PROCESSES


def _differing(kinds: dict[str, Any], id: int) -> list[Setting]:
    settings: list[Setting] = []
    for name, (read, _) in kinds.items():
        with contextlib.suppress(OSError):
            if (value := read(id)) != read(os.getpid()):
                settings.append((name, [id], value))
    return settings


# ---- sockets ----


def _of_sockets(pid: int) -> list[Setting]:
    settings: list[Setting] = []
    usual: dict[tuple[int, int, int], dict[tuple[int, int], bytes]] = {}
    for number in process.opened(pid, "socket:"):
        with contextlib.suppress(OSError), process.socket_of(pid, number) as sock:
            kind = (sock.family, sock.type, sock.proto)
            if sock.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            if kind not in usual:
                with socket.socket(*kind) as fresh:
                    usual[kind] = _options(fresh)
            for (level, option), value in _options(sock).items():
                if value != usual[kind].get((level, option)):
                    settings.append(("socket", [pid, number, level, option], value.hex()))
    return settings


def _options(sock: socket.socket) -> dict[tuple[int, int], bytes]:
    """The options that the socket supports, by level and number."""
    found = {}
    for level, options in _OPTIONS.items():
        for option in options:
            with contextlib.suppress(OSError):
                found[level, option] = sock.getsockopt(level, option, _OPTION_BYTES_MAX)
    return found


def _set_option(pid: int, number: int, level: int, option: int, value: bytes) -> None:
    with process.socket_of(pid, number) as sock:
        if sock.getsockopt(level, option, _OPTION_BYTES_MAX) != value:
            sock.setsockopt(level, option, value)

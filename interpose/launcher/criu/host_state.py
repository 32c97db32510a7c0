"""Finds what the kernel keeps for a rank's processes, and a checkpoint would lose.

Some of it the kernel shows in /proc, or of a duplicate of a descriptor. The rest is recorded by the
library that the rank preloads (host_state.h). docs/checkpoints.md has a table of all kinds. Those
that can be set again are not here, but in settings.py, inherited.py, multicast.py, descriptors.py.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import socket
import stat
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rankfold import records
from rankfold.interpose.launcher.criu.command import named
from rankfold.interpose.launcher.rank import process
from rankfold.interpose.launcher.rank.sandbox import semaphore_sets

_RECORD = records.host_state()
_KINDS = _RECORD.enums["rf_host_kind"]
_MAPPED = "/memfd:rankfold-host-state-1"  # RF_HOST_NAME, in /proc/PID/maps
_INHERITED = {_KINDS[f"RF_HOST_{name}"] for name in ("KEY", "SEALED", "NO_TSC", "NO_NEW_CODE")}
_GETOWN_EX = 16
_OWNER = struct.Struct("=ii")
_WALL_CLOCKS = ("0", "8", "11")  # realtime, its alarm, TAI: ClockID in /proc/PID/timers


@dataclass(frozen=True)
class Noted:
    """An object in a process's record (struct rf_host_object)."""

    kind: int
    what: int
    value: int


@dataclass(frozen=True)
class Record:
    """The record of the preloaded library in a process."""

    full: bool
    objects: tuple[Noted, ...]


_EMPTY = Record(False, ())


def hindrances(pid: int) -> list[str]:
    """State of a process that cannot be saved: the rest of a sentence about the process, with a
    remedy. The process may run."""
    record = _record(pid)
    hindrances = _of_directories(pid)
    if record.full:
        hindrances.append("has more keys, SEM_UNDO adjustments and the like than can be recorded")
    for kind, describe in _HINDRANCES.items():
        if objects := [each for each in record.objects if each.kind == _KINDS[kind]]:
            hindrances += describe(pid, objects)
    return hindrances


def find_in_memory(pid: int) -> list[str]:
    """The same, of its memory. Takes tens of milliseconds per gigabyte."""
    hindrances = []
    if (at := _bound(pid)) is not None:
        hindrances.append(
            f"has memory with a NUMA policy of its own (mbind, at {at}), which would be lost: "
            "set the policy of the whole process (numactl, set_mempolicy), or unmap it"
        )
    if _locks_memory(pid) and (at := _locked_on_fault(pid)) is not None:
        hindrances.append(
            f"has memory that is locked page by page (MLOCK_ONFAULT, at {at}), and would be locked "
            "as a whole: munlock it, or use mlock"
        )
    return hindrances


def passing(pids: Iterable[int]) -> list[str]:
    """Temporary obstacles of frozen processes."""
    hindrances = []
    for pid in pids:
        for number in process.opened(pid, "socket:"):
            with contextlib.suppress(OSError), process.socket_of(pid, number) as sock:
                if _has_unread_datagrams(sock):
                    address, port = sock.getsockname()[:2]
                    hindrances.append(
                        f"process {named(pid)} has not read the datagrams of its UDP socket on "
                        f"{address}, port {port}, which would be lost"
                    )
        if any(_is_in_call(pid, each) for each in _record(pid).objects):
            hindrances.append(
                f"process {named(pid)} is in a call whose effect a checkpoint would lose, such as "
                "semop with SEM_UNDO"
            )
    return hindrances


# ---- what the library has recorded ----


def _record(pid: int) -> Record:
    """An empty one if the process has recorded nothing, or does not load the library."""
    layout, size = _RECORD.structs["rf_host_state"], _RECORD.constants["RF_HOST_BYTES"]
    with contextlib.suppress(OSError):
        for begin in _record_addresses(pid):
            with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
                known = _RECORD.unpack(layout, os.pread(memory.fileno(), size, begin))
            objects = tuple(
                Noted(each["kind"], each["what"], each["value"])
                for each in known["objects"]
                if each["kind"] and (each["pid"] == pid or each["kind"] in _INHERITED)
            )
            return Record(bool(known["full"]), objects)
    return _EMPTY


def _record_addresses(pid: int) -> Iterator[int]:
    with open(f"/proc/{pid}/maps", "rb") as maps:
        for line in maps:
            if _MAPPED.encode() in line:
                yield int(line.partition(b"-")[0], 16)


def _is_in_call(pid: int, noted: Noted) -> bool:
    """Whether a thread is in a call, or has just left it and not recorded its effect yet. If a
    signal handler has left the call by longjmp, the thread makes other calls by now."""
    if noted.kind != _KINDS["RF_HOST_CALL"]:
        return False
    with contextlib.suppress(OSError, IndexError):
        shown = Path(f"/proc/{pid}/task/{noted.what}/syscall").read_text().split()[0]
        return not shown.isdigit() or int(shown) == noted.value
    return False


def _keys(_pid: int, objects: list[Noted]) -> list[str]:
    keys = ", ".join(str(each.what) for each in objects[:3])
    return [
        f"has added keys to a keyring ({keys}), which would be lost: keyctl_unlink or "
        "keyctl_revoke removes one"
    ]


def _adjustments(pid: int, objects: list[Noted]) -> list[str]:
    existing = semaphore_sets(pid)
    held = {each.what >> 32 for each in objects}
    return [
        f"has changed the semaphore set {which} with SEM_UNDO, which would be lost: it can be "
        "saved once it has undone that"
        for which in sorted(held & existing)
    ]


def _wall_timers(pid: int, objects: list[Noted]) -> list[str]:
    try:
        timers = Path(f"/proc/{pid}/timers").read_text()
    except OSError:
        return []
    clocks = re.findall(r"^ClockID:\s*(\d+)", timers, re.MULTILINE)
    is_due = any(each.value >= time.time() for each in objects)
    if not is_due or not set(clocks) & set(_WALL_CLOCKS):
        return []
    return [
        "has a timer at an absolute time of the wall clock (timer_settime with TIMER_ABSTIME), "
        "which would expire late: use a timerfd, or a relative time"
    ]


def _always(text: str) -> Callable[[int, list[Noted]], list[str]]:
    return lambda _pid, _objects: [text]


_HINDRANCES: dict[str, Callable[[int, list[Noted]], list[str]]] = {
    "RF_HOST_KEY": _keys,
    "RF_HOST_UNDO": _adjustments,
    "RF_HOST_WALL_TIMER": _wall_timers,
    "RF_HOST_LOCKS_NEXT": _always(
        "locks all memory that it maps from now on (MCL_FUTURE), which would be lost: it must call "
        "munlockall, or mlockall with MCL_CURRENT only"
    ),
    "RF_HOST_SEALED": _always(
        "has sealed memory (mseal), which would no longer be sealed: it must not call mseal"
    ),
    "RF_HOST_NO_TSC": _always(
        "may not read the time-stamp counter (PR_SET_TSC), which would be lost: it must set "
        "PR_TSC_ENABLE"
    ),
    "RF_HOST_NO_NEW_CODE": _always(
        "may not make memory executable (PR_SET_MDWE), which would be lost: run it without that, "
        "in systemd with MemoryDenyWriteExecute=no"
    ),
}


# ---- what the kernel shows ----


def _of_directories(pid: int) -> list[str]:
    """Directories with F_NOTIFY. The kernel shows only that they have an owner for signals."""
    hindrances = []
    for number in process.opened(pid, "/"):
        with contextlib.suppress(OSError), process.descriptor(pid, number) as taken:
            owner = _OWNER.unpack(fcntl.fcntl(taken, _GETOWN_EX, bytes(_OWNER.size)))[1]
            if owner and stat.S_ISDIR(os.fstat(taken).st_mode):
                where = os.readlink(f"/proc/{pid}/fd/{number}")
                hindrances.append(
                    f"gets signals for changes in {where} (F_NOTIFY), which would be lost: it must "
                    f"close descriptor {number}, or use inotify"
                )
    return hindrances


def _has_unread_datagrams(sock: socket.socket) -> bool:
    if sock.family not in (socket.AF_INET, socket.AF_INET6) or sock.type != socket.SOCK_DGRAM:
        return False
    poll = select.poll()  # sees a datagram without bytes, and takes no error from the socket
    poll.register(sock, select.POLLIN | select.POLLRDHUP)
    events = dict(poll.poll(0)).get(sock.fileno(), 0)
    return bool(events & select.POLLIN) and not events & select.POLLRDHUP


def _bound(pid: int) -> str | None:
    """The address of a mapping whose NUMA policy is not that of the process.

    Memory that prefers the local node, as OpenBLAS and so NumPy set it, needs no policy: without
    one a page comes from the local node, too, unless the process has chosen otherwise."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/numa_maps") as maps:
        usual = None
        for line in maps:
            address, policy = line.split()[:2]
            usual = usual or policy
            if policy not in (usual, "local"):
                return address
    return None


def _locks_memory(pid: int) -> bool:
    with contextlib.suppress(OSError):
        locked = re.search(r"^VmLck:\s*(\d+)", Path(f"/proc/{pid}/status").read_text(), re.M)
        return bool(locked and int(locked[1]))
    return False


def _locked_on_fault(pid: int) -> str | None:
    address = ""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps") as maps:
        for line in maps:
            if match := re.match(r"([0-9a-f]+)-", line):
                address = match[1]
            elif line.startswith("VmFlags:") and {"lo", "lf"} <= set(line.split()):
                return address
    return None

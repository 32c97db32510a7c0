"""Saves descriptors that CRIU does not restore completely: expired timers and semaphores.

A periodic timerfd that has expired is not armed until a process reads it or queries the remaining
time; CRIU would restore it disarmed. So before a dump we query each timerfd: the kernel arms it
again and counts all its periods. A timerfd that expires between that query and the dump is set to
its next period in the images.

CRIU restores an eventfd without EFD_SEMAPHORE, which can only be set at creation. So in the images
each semaphore becomes a file that CRIU inherits, and the launcher makes it when a restore starts.
The kernel shows which eventfds are semaphores since Linux 6.5.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from rankfold.interpose.launcher.criu.images import Field, decoded, encoded, entries, rewrite
from rankfold.interpose.launcher.rank import process
from rankfold.interpose.launcher.rank.sandbox import libc

_FILES = "files.img"
# Fields of file_entry, fdinfo_entry, eventfd_file_entry, reg_file_entry, timerfd_entry and
# task_kobj_ids_entry.
_TYPE, _ID, _OF_REGULAR, _OF_EVENT, _OF_TIMER = 1, 2, 3, 8, 12
_INFO_ID, _INFO_TYPE, _INFO_FD = 1, 3, 4
_EVENT_FLAGS, _EVENT_OWNER, _EVENT_COUNT = 2, 3, 4
_FIRST_S, _FIRST_NS, _PERIOD_S, _PERIOD_NS = 7, 8, 9, 10
_REGULAR, _EVENT = 1, 6  # types
_IDS_FILES = 2

Semaphore = tuple[int, int, int]  # id of the file in CRIU's images, count, flags of the descriptor


def settle(pids: Iterable[int]) -> None:
    """Make the kernel count the periods of all timers and arm them. The processes are frozen."""
    left = ctypes.create_string_buffer(32)
    for pid in pids:
        for number in process.opened(pid, "anon_inode:[timerfd]"):
            with contextlib.suppress(OSError), process.descriptor(pid, number) as timer:
                libc.timerfd_gettime(timer, left)


def semaphores(pids: Iterable[int]) -> dict[int, set[int]]:
    """Numbers of the descriptors that are semaphores, per process."""
    ids = {
        pid: {
            number
            for number in process.opened(pid, "anon_inode:[eventfd]")
            if "\neventfd-semaphore: 1\n" in _info(pid, number)
        }
        for pid in pids
    }
    return {pid: numbers for pid, numbers in ids.items() if numbers}


def repair(folder: Path, of: dict[int, set[int]]) -> tuple[Semaphore, ...]:
    """Change CRIU's images: arm the timers, and let CRIU inherit the semaphores, which are
    returned. `of`: as from `semaphores`."""
    infos: dict[Path, set[int]] = {}
    for pid, numbers in of.items():
        infos.setdefault(folder / f"fdinfo-{_table(folder, pid)}.img", set()).update(numbers)
    ids = {
        info[_INFO_ID]
        for path, numbers in infos.items()
        for info in map(dict, map(decoded, entries(path)))
        if info[_INFO_FD] in numbers
    }
    repaired: list[Semaphore] = []
    if (folder / _FILES).exists():
        rewrite(folder / _FILES, lambda entry: _repaired(entry, ids, repaired))
    for path in folder.glob("fdinfo-*.img") if ids else ():
        rewrite(path, lambda info: _inheriting(info, ids))
    return tuple(repaired)


def opened(wanted: Iterable[Semaphore]) -> Iterator[str]:
    """Make the semaphores, and yield for each the argument with which CRIU inherits it. Raises
    OSError."""
    for id, count, flags in wanted:
        fd = os.eventfd(0, os.EFD_SEMAPHORE | flags & os.O_NONBLOCK)
        if count:
            os.eventfd_write(fd, count)
        yield f"fd[{fd}]:{_name(id)}"


def _name(id: int) -> str:
    return f"rankfold-semaphore-{id}"


def _repaired(entry: bytes, ids: set[int], repaired: list[Semaphore]) -> bytes:
    fields = decoded(entry)
    known = dict(fields)
    if _OF_TIMER in known:
        armed = _armed(decoded(known[_OF_TIMER]))
        return encoded([(n, armed if n == _OF_TIMER else value) for n, value in fields])
    if known[_TYPE] != _EVENT or known[_ID] not in ids:
        return entry
    id, event = known[_ID], dict(decoded(known[_OF_EVENT]))
    repaired.append((id, event[_EVENT_COUNT], event[_EVENT_FLAGS]))
    owner, name = event[_EVENT_OWNER], f"/{_name(id)}".encode()
    regular = encoded([(1, id), (2, event[_EVENT_FLAGS]), (3, 0), (5, owner), (6, name)])
    return encoded([(_TYPE, _REGULAR), (_ID, id), (_OF_REGULAR, regular)])


def _armed(fields: list[Field]) -> bytes:
    """A periodic timer that is not armed expires again after its next period."""
    known = dict(fields)
    if not (known[_FIRST_S] or known[_FIRST_NS]):
        first = {_FIRST_S: known[_PERIOD_S], _FIRST_NS: known[_PERIOD_NS]}
        fields = [(number, first.get(number, value)) for number, value in fields]
    return encoded(fields)


def _inheriting(info: bytes, ids: set[int]) -> bytes:
    fields = decoded(info)
    if dict(fields)[_INFO_ID] not in ids:
        return info
    return encoded([(n, _REGULAR if n == _INFO_TYPE else value) for n, value in fields])


def _table(folder: Path, pid: int) -> int:
    """The number of the fdinfo-*.img with a process's descriptors."""
    (ids,) = entries(folder / f"ids-{pid}.img")
    return int(dict(decoded(ids))[_IDS_FILES])


def _info(pid: int, number: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/fdinfo/{number}").read_text()
    return ""

"""Restores timerfds at an absolute time of the wall clock, which CRIU restores late: with the
remaining time that they had."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import re
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rankfold.interpose.launcher.rank import process
from rankfold.interpose.launcher.rank.sandbox import check, libc

_ABSOLUTE = 1  # TFD_TIMER_ABSTIME
_SET_TICKS = 0x40085400  # TFD_IOC_SET_TICKS
_SPEC = struct.Struct("=qqqq")  # itimerspec: the period, then the first time
_TICK = struct.Struct("=Q")
_NS = 10**9
_TRIES = 3
# ALARM clocks are refused by CRIU.
_SHOWN = re.compile(r"clockid: 0\nticks: (\d+)\nsettime flags: 0(\d+)")


class Timer(NamedTuple):
    """A timer that is armed: when it expires next, its period (0: none), in nanoseconds; the flags
    with which it was set; and how often it has expired unread."""

    due: int
    period: int
    flags: int
    ticks: int


def timers_of(pid: int) -> Iterator[tuple[int, Timer]]:
    """The timers of a process, each with its descriptor."""
    for number in process.opened(pid, "anon_inode:[timerfd]"):
        with contextlib.suppress(OSError), process.descriptor(pid, number) as taken:
            if timer := _shown(pid, number, taken):
                yield number, timer


def restore(taken: int, timer: Timer) -> None:
    """Set a timer again. It has expired for the periods that have passed. Raises OSError."""
    due, ticks = timer.due, timer.ticks
    if timer.period and (late := time.time_ns() - due) >= 0:
        missed = late // timer.period + 1
        due, ticks = due + missed * timer.period, ticks + missed
    spec = _SPEC.pack(*divmod(timer.period, _NS), *divmod(due, _NS))
    check(libc.timerfd_settime(taken, timer.flags, spec, None), "set a timer")
    if ticks:
        fcntl.ioctl(taken, _SET_TICKS, _TICK.pack(ticks))


def _shown(pid: int, number: int, taken: int) -> Timer | None:
    """None: it is not such a timer, or not armed. Raises OSError."""
    timer = None
    for _ in range(_TRIES):
        due, period = _due(taken)
        match = _SHOWN.search(Path(f"/proc/{pid}/fdinfo/{number}").read_text())
        if not match or not due or not int(match[2], 8) & _ABSOLUTE:
            return None
        timer = Timer(due, period, int(match[2], 8), int(match[1]))
        if due > time.time_ns():  # it has not expired between the two looks
            break
    return timer


def _due(taken: int) -> tuple[int, int]:
    """When it expires next, and its period; 0: never. Has the kernel count what has passed."""
    left = ctypes.create_string_buffer(_SPEC.size)
    check(libc.timerfd_gettime(taken, left), "read a timer")
    period_s, period_ns, s, ns = _SPEC.unpack(left.raw)
    remaining = s * _NS + ns
    return time.time_ns() + remaining if remaining else 0, period_s * _NS + period_ns

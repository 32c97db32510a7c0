"""Restarts the system calls that a freeze interrupts.

The freezer wakes each thread from the call in which it waits, and so does CRIU. The kernel restarts
most calls when the rank continues. But `epoll_wait`, `semtimedop`, `recv` with a timeout and others
return EINTR; and so do the calls that the kernel would resume (`poll`, `nanosleep`, …), once CRIU
has seized the thread. A program without signal handlers need not expect EINTR. So in a frozen rank
we stop such a thread with ptrace and set the call's result to ERESTARTNOHAND: then the kernel
restarts it, unless a signal with a handler has arrived.

CRIU itself sets all calls back to before the instruction: then a signal that arrives before the
rank continues would interrupt none (`alarm(5); pause()` would never return). So when CRIU has
finished, each thread's registers are set back to what the freeze left.

A restarted call waits its whole timeout again, so it may end late, never early. A call that looks
the same from freeze to freeze (same thread, instruction, stack and arguments) for as long as its
timeout is left alone and returns EINTR: otherwise a call whose timeout is longer than the interval
between saves would never end. `sleep` is exact: it has the kernel write the remaining time to where
the kernel reads the timeout.

For x86-64; on other architectures this module does nothing. The tracing process may be killed at
any point: the kernel then releases its threads, each with either result.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import pickle
import platform
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass

from rankfold.control import Message
from rankfold.interpose.launcher.criu.images import RESTARTED
from rankfold.interpose.launcher.rank import process
from rankfold.interpose.launcher.rank.sandbox import check, libc

_GETREGS, _SETREGS, _DETACH, _SEIZE, _INTERRUPT = 12, 13, 17, 0x4206, 0x4207
_WALL = 0x40000000  # wait also for threads that are not our children
_STOPS_S = 1.0  # a frozen thread stops immediately
_SYSCALL_BYTES = 2  # length of the syscall instruction
_USER_CS = 0x33  # code segment of 64-bit code
_RESTART_BLOCK, _RESTART_NO_HANDLER = -516, -514  # results that only the kernel sees
_NS = 10**9

# By x86-64 call number: which argument is the timeout, in milliseconds (negative: none) or as the
# address of a timespec (NULL: none); or the calls whose first argument is a socket, which may have
# a timeout.
_NANOSLEEP, _CLOCK_NANOSLEEP, _FUTEX = 35, 230, 202
_MILLISECONDS = {7: 2, 232: 3, 281: 3}
_TIMESPECS = {
    _NANOSLEEP: 0,
    _CLOCK_NANOSLEEP: 2,
    _FUTEX: 3,
    128: 2,
    208: 4,
    220: 3,
    333: 4,
    441: 3,
}
_REMAINDERS = {_NANOSLEEP: 1, _CLOCK_NANOSLEEP: 3}
_RECEIVES, _SENDS = (0, 19, 43, 45, 47, 288, 299), (1, 20, 44, 46, 307)
_SO_RCVTIMEO, _SO_SNDTIMEO = 20, 21
_TIMEOUTS = dict.fromkeys(_RECEIVES, _SO_RCVTIMEO) | dict.fromkeys(_SENDS, _SO_SNDTIMEO)
_FUTEX_COMMAND, _FUTEX_WAIT = 127, 0


@dataclass(frozen=True)
class Wait:
    """A thread's call, as the kernel shows it: number, arguments, stack pointer, instruction.
    `waited`: nanoseconds for which it has run unchanged so far."""

    thread: int
    call: tuple[int, ...]
    waited: int = 0


def restarted(wait: Wait, before: Wait | None, timeout: int | None, ran: int) -> Wait | None:
    """The record of the call if it is to restart; None: its timeout has passed. `before`: the
    record from the previous freeze; `ran`: how long the rank has run since then. Times are in
    nanoseconds."""
    if timeout is None or before is None or before.call != wait.call or ran >= timeout:
        return wait  # a call that must have ended meanwhile is another one
    waited = before.waited + ran
    return Wait(wait.thread, wait.call, waited) if waited < timeout else None


@dataclass(frozen=True)
class Interrupted:
    """A thread that was in a call when the rank was frozen: the address after the instruction, the
    call's number, and its result."""

    thread: int
    ip: int
    number: int
    result: int


class Calls:
    """The waiting calls of one rank, from freeze to freeze."""

    def __init__(self) -> None:
        self._previous: dict[int, Wait] = {}
        self._interrupted: list[Interrupted] = []
        self._since: int | None = None
        self._report = os.memfd_create("calls", os.MFD_CLOEXEC)

    def repair(self, pids: set[int]) -> Message:
        """Make interrupted calls restart. Runs in a process of its own while the rank is frozen;
        `keep` then reads what it found."""
        ran = 0 if self._since is None else time.monotonic_ns() - self._since
        waits: list[Wait] = []
        interrupted: list[Interrupted] = []
        if platform.machine() == "x86_64":
            for pid in pids:
                _repair(pid, self._previous, ran, waits, interrupted)
        os.ftruncate(self._report, 0)
        os.pwrite(self._report, pickle.dumps((waits, interrupted)), 0)
        return {}

    def keep(self) -> None:
        waits, self._interrupted = pickle.loads(
            os.pread(self._report, os.fstat(self._report).st_size, 0)
        )
        self._previous = {each.thread: each for each in waits}

    def restore_registers(self) -> None:
        """Restore the registers that `repair` left. Runs in a process of its own, when CRIU has
        finished and the rank is frozen again."""
        for each in self._interrupted:
            with contextlib.suppress(OSError), _stopped(each.thread) as registers:
                if (registers.rip, registers.rax) == (each.ip - _SYSCALL_BYTES, each.number):
                    registers.rip, registers.orig_rax = each.ip, each.number
                    registers.rax = each.result
                    _ptrace(_SETREGS, each.thread, ctypes.byref(registers))

    def thawed(self) -> None:
        """Note the time at which the rank was thawed."""
        self._since = time.monotonic_ns()

    def forget(self) -> None:
        """Forget all calls: the rank is gone."""
        self._previous, self._interrupted, self._since = {}, [], None


# ---- in a process of its own -----------------------------------------------------------------


class _Registers(ctypes.Structure):
    """struct user_regs_struct of x86-64."""

    _fields_ = tuple(
        (name, ctypes.c_int64 if name in ("rax", "orig_rax") else ctypes.c_uint64)
        for name in (
            "r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs eflags rsp "
            "ss fs_base gs_base ds es fs gs"
        ).split()
    )


def _repair(
    pid: int, known: dict[int, Wait], ran: int, waits: list[Wait], interrupted: list[Interrupted]
) -> None:
    for thread in process.threads(pid):
        wait = _shown(pid, thread)
        if wait is None:
            continue
        with contextlib.suppress(OSError), _stopped(thread) as registers:
            number = registers.orig_rax
            if registers.cs != _USER_CS or number != wait.call[0]:
                continue
            try:
                if number in RESTARTED and registers.rax in (-errno.EINTR, _RESTART_BLOCK):
                    again = restarted(wait, known.get(thread), _timeout(pid, wait.call), ran)
                    if again:
                        registers.rax = _RESTART_NO_HANDLER
                        _ptrace(_SETREGS, thread, ctypes.byref(registers))
                        waits.append(again)
            finally:  # CRIU interrupts the call again, whether its timeout could be read or not
                interrupted.append(Interrupted(thread, registers.rip, number, registers.rax))


def _shown(pid: int, thread: int) -> Wait | None:
    """The call that the freeze has interrupted in a thread (proc_pid_syscall(5)). None: the thread
    runs, or its call cannot be interrupted."""
    place = f"/proc/{pid}/task/{thread}"
    try:
        with open(f"{place}/syscall") as file, open(f"{place}/stat", errors="replace") as stat:
            words, state = file.read().split(), stat.read().rpartition(")")[2].split()[0]
    except OSError:
        return None
    if len(words) < 9 or state == "D":
        return None
    return Wait(thread, (int(words[0]), *(int(each, 16) for each in words[1:])))


def _timeout(pid: int, call: tuple[int, ...]) -> int | None:
    """The timeout of a call in nanoseconds; None: without limit, or the kernel updates the
    remaining time."""
    number, *arguments = call
    if number in _MILLISECONDS:
        milliseconds = ctypes.c_int32(arguments[_MILLISECONDS[number]]).value
        return None if milliseconds < 0 else milliseconds * 10**6
    if number == _FUTEX and arguments[1] & _FUTEX_COMMAND != _FUTEX_WAIT:
        return None  # an absolute time, not a duration
    if number in _TIMESPECS:
        address = arguments[_TIMESPECS[number]]
        if address == 0 or (number in _REMAINDERS and arguments[_REMAINDERS[number]] == address):
            return None
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            seconds, nanoseconds = struct.unpack("<qq", os.pread(memory.fileno(), 16, address))
        return int(seconds * _NS + nanoseconds)
    return _socket_timeout(pid, arguments[0], _TIMEOUTS[number]) if number in _TIMEOUTS else None


def _socket_timeout(pid: int, number: int, option: int) -> int | None:
    with process.socket_of(pid, number) as theirs:
        raw = theirs.getsockopt(socket.SOL_SOCKET, option, 16)
    seconds, microseconds = struct.unpack("<qq", raw)
    return (seconds * _NS + microseconds * 1000) or None


@contextlib.contextmanager
def _stopped(thread: int) -> Iterator[_Registers]:
    """Trace and stop the thread until the end of the block. Raises OSError, also if another process
    traces it."""
    registers = _Registers()
    _ptrace(_SEIZE, thread)
    try:
        _ptrace(_INTERRUPT, thread)
        _await_stop(thread)
        _ptrace(_GETREGS, thread, ctypes.byref(registers))
        yield registers
    finally:
        with contextlib.suppress(OSError):
            _ptrace(_DETACH, thread)


def _await_stop(thread: int) -> None:
    deadline = time.monotonic() + _STOPS_S
    while os.waitpid(thread, os.WNOHANG | _WALL)[0] == 0:
        if time.monotonic() > deadline:
            raise TimeoutError(f"thread {thread} does not stop")
        time.sleep(0.0001)


def _ptrace(request: int, thread: int, data: object = None) -> None:
    check(libc.ptrace(request, thread, None, data), f"trace thread {thread}")

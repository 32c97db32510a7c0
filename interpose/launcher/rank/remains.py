"""The processes that remain of a rank when its first process has exited: the process in which the
rank continues, if it is a daemon; otherwise processes that are killed and listed in the log.

A container ends with its first process. A program that makes itself a daemon forks and exits before
it computes, so its rank continues in the child. That is the process that uses the device or, while
no process of the rank has used it yet, one that the first process forked and that still runs the
same program. Programs that the rank has started (resource trackers, monitors, a shell's background
jobs) do not keep it alive.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from rankfold import service
from rankfold.interpose.launcher import handshake
from rankfold.interpose.launcher.config import Config
from rankfold.interpose.launcher.rank import process
from rankfold.interpose.launcher.rank.workers import Workers
from rankfold.log import area

log = area(__file__)

HELPERS_EXIT_S = (
    0.5  # helpers that notice the end of their parent exit by themselves within this time
)
EXEC_S = 0.1  # time for a child that was just forked to execute another program
KILL_REPORT_S = 2.0  # after SIGKILL: by then the kernel is holding a process up
_POLL_S, _POLL_MAX_S = 0.002, 1.0
_SEARCHES_MAX = 10
_FLAGS, _FORKED_NO_EXEC = 6, 0x40  # word of /proc/PID/stat after the name, and a bit of it
_SHOWN = 100  # characters of a command line


class Launcher(Protocol):
    """The part of `Launcher` that this module uses."""

    config: Config
    namespaced: bool
    host_proc: int
    server: service.Server
    workers: Workers
    client_listener: handshake.ClientListener


class Remains:
    """The remains of one rank. `killed`: descriptions of the processes that were killed after its
    exit. `ending`: why requests about the rank are refused; empty: it has not exited."""

    def __init__(self, launcher: Launcher):
        self.launcher = launcher
        self.killed: list[str] = []
        self.ending = ""
        self._reported_late = False

    def successor(self, first: process.Started) -> process.Started | None:
        """The process in which the rank continues after `first` has exited with status 0, or
        None."""
        pid = self._find_successor()
        if pid is not None and self.launcher.client_listener.user() is None:
            time.sleep(EXEC_S)
            if pid in self._living():  # otherwise it has exited and is reaped next
                pid = self._find_successor()
        if pid is None:
            return None
        proc = self.launcher.host_proc
        name = described(pid, proc, self.launcher.client_listener.user())
        try:
            found = process.Started(pid, process.host_pid(pid, proc), first.mounts)
        except OSError:  # it has exited since and is not reaped yet
            return None
        self.report(
            f"the first process of the rank has exited with 0; the rank continues in {name}"
        )
        return found

    def _find_successor(self) -> int | None:
        listener, previous = self.launcher.client_listener, None
        for _ in range(_SEARCHES_MAX):  # a process may fork and exit during the search
            pids = self._living()
            pid = successor(pids, listener.user(), listener.channel is not None)
            if pid is not None or (previous is not None and pids <= previous):
                break
            previous = pids
        return pid

    def kill(self, exit_status: int, then: Callable[[], None]) -> None:
        """Kill the processes left of a rank that has exited; call `then` when none is left."""
        until = time.monotonic() + HELPERS_EXIT_S
        while (remaining := self._living()) and time.monotonic() < until:
            time.sleep(_POLL_S)
        self.killed = self._described(remaining)
        self.ending = "the rank has exited"
        if remaining:
            names = ", ".join(self.killed)
            text = f"the rank has exited; these were still running and are killed: {names}"
            if exit_status == 0:
                self.report(text)
            else:  # not in the rank's log: its last lines show why it failed
                log.warning("%s", text)
        self.launcher.workers.forget()
        self._await_killed(then, time.monotonic(), _POLL_S)

    def _await_killed(self, then: Callable[[], None], since: float, pause_s: float) -> None:
        if process.killed_all(self.launcher.namespaced):
            then()
            return
        if not self._reported_late and time.monotonic() - since > KILL_REPORT_S:
            self._reported_late = True
            names = ", ".join(self._described(set(process.descendants(os.getpid()))))
            self.ending += f", and the kernel has not yet released {names}, which was killed"
            self.report(f"{self.ending}: its exit is reported after that")
        next_s = min(2 * pause_s, _POLL_MAX_S)
        self.launcher.server.after(pause_s, lambda: self._await_killed(then, since, next_s))

    def _living(self) -> set[int]:
        """The running processes of the rank."""
        ours = self.launcher.workers.pids()
        return set(process.descendants(os.getpid())) & process.living() - set(ours)

    def _described(self, pids: set[int]) -> list[str]:
        user = self.launcher.client_listener.user()
        return [described(pid, self.launcher.host_proc, user) for pid in sorted(pids)]

    def report(self, text: str) -> None:
        """Write a message to the rank's log and to the launcher's."""
        log.warning("%s", text)
        path = self.launcher.config.log("err")
        with contextlib.suppress(OSError), open(path, "a") as err:
            err.write(f"rankfold: {text}\n")


def successor(pids: set[int], user: int | None, used: bool) -> int | None:
    """The one of `pids`, all processes left of a rank, that replaces its first process. `user`: the
    process that uses the device; `used`: some process of the rank has used it."""
    parents = process.parents()
    if user in pids:
        return _top(user, parents)
    if used:
        return None
    forked = (pid for pid in sorted(pids) if parents.get(pid) == os.getpid())
    return next(filter(_runs_its_parents_program, forked), None)


def described(pid: int, proc: int, user: int | None = None) -> str:
    """A description: command line, pid in the /proc opened as `proc`, and whether it uses the
    device."""
    command, number = b"", pid
    with contextlib.suppress(OSError):
        number = process.host_pid(pid, proc)
        command = Path(f"/proc/{pid}/comm").read_bytes()  # a zombie has only this one
        command = Path(f"/proc/{pid}/cmdline").read_bytes() or command
    text = process.printable(command.strip(b"\0\n").replace(b"\0", b" "))
    text = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    return f"{text} (pid {number}{', uses the device' if pid == user else ''})"


def _top(pid: int | None, parents: dict[int, int]) -> int | None:
    """The child of this process that is `pid` or has it below it."""
    while pid is not None and (parent := parents.get(pid)) != os.getpid():
        pid = parent
    return pid


def _runs_its_parents_program(pid: int) -> bool:
    with contextlib.suppress(OSError, IndexError, ValueError):
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        flags = int(stat.rpartition(b")")[2].split()[_FLAGS])
        return flags & _FORKED_NO_EXEC != 0
    return False

"""The parent of all processes: it starts one stage after the other.

The next stage's processes run the script up to its loop of epochs while those of the stage before
still train. These save their state and exit; the parent then passes the folder on. A stage that is
killed starts again from the newest saved state.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import select
import shutil
import signal
import sys
from pathlib import Path
from typing import NamedTuple

from .host import blocks
from .process import Script, work
from .sealing import check, seal
from .stage import Stage

PR_SET_PDEATHSIG = 1
SAVED = re.compile(r"step-(\d+)")
ATTEMPTS = 3  # from one saved state


class Plan(NamedTuple):
    """The arguments of a run. `counts`: from which step on how many processes; the first from 0."""

    world: int
    counts: tuple[tuple[int, int], ...]
    every: int | None
    folder: Path
    script: Script

    def processes(self, step: int) -> int:
        return [count for start, count in self.counts if start <= step][-1]

    def end(self, step: int) -> int | None:
        """The next step after `step` at which the number of processes changes."""
        return next((start for start, _ in self.counts if start > step), None)


def newest(folder: Path) -> tuple[int, Path] | None:
    """The newest saved state: its step, and where it is."""
    states = [
        (int(name[1]), path)
        for path in (folder.iterdir() if folder.is_dir() else ())
        if (name := SAVED.fullmatch(path.name))
    ]
    return max(states, default=None)


class Running:
    """The processes of a stage."""

    def __init__(self, plan: Plan, step: int, continues: bool, name: str) -> None:
        self.step = step
        self.count = plan.processes(step)
        self.reports, report = os.pipe()
        pipes = {each: os.pipe() for each in range(self.count)} if continues else {}
        self._go = {each: write for each, (_, write) in pipes.items()}
        self.stage = Stage(
            plan.world,
            self.count,
            plan.folder,
            plan.end(step),
            plan.every,
            report,
            {each: read for each, (read, _) in pipes.items()},
        )
        self.saved: dict[int, int] = {}  # by step, the number of processes that have saved it
        self.living: dict[int, int] = {}  # by pidfd, the index
        self._pids: dict[int, int] = {}
        self.child: int | None = None  # in a child: its exit status
        parent = os.getpid()
        for index in range(self.count):
            pid = os.fork()
            if pid == 0:
                self.child = self._begin(plan, index, name, parent)
                return
            self.living[descriptor := os.pidfd_open(pid)] = index
            self._pids[descriptor] = pid
        for descriptor in (report, *self.stage.go.values()):
            os.close(descriptor)

    def _begin(self, plan: Plan, index: int, name: str, parent: int) -> int:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        for descriptor in self._go.values():
            os.close(descriptor)
        if os.getppid() != parent:
            return 1
        return work(self.stage, plan.script, index, plan.folder / name)

    def go(self, folder: Path) -> None:
        for descriptor in self._go.values():
            with contextlib.suppress(BrokenPipeError):  # the process has failed: see Parent
                os.write(descriptor, os.fsencode(folder))

    def exited(self, descriptor: int) -> int:
        """The exit status of the process that has ended; negative: the signal that killed it."""
        del self.living[descriptor]
        os.close(descriptor)
        return os.waitstatus_to_exitcode(os.waitpid(self._pids.pop(descriptor), 0)[1])

    def kill(self) -> None:
        for pid in self._pids.values():
            os.kill(pid, signal.SIGKILL)
        for descriptor in list(self.living):
            self.exited(descriptor)
        self.close()

    def close(self) -> None:
        for descriptor in (self.reports, *self._go.values()):
            os.close(descriptor)


class Parent:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._started = 0
        self._failures = 0
        self._next: Running | None = None

    def _start(self, step: int, continues: bool) -> Running:
        self._started += 1
        name = f"rendezvous-{self._started}"
        (self._plan.folder / name).unlink(missing_ok=True)  # of a run that was killed
        return Running(self._plan, step, continues, name)

    def _prepare(self, step: int) -> Running:
        if self._next is None:
            self._next = self._start(step, continues=True)
        return self._next

    def run(self) -> int:
        """Returns the exit status of the run; in a child, of that process."""
        saved = newest(self._plan.folder)
        if saved:
            check(saved[1])
        current = self._start(saved[0] if saved else 0, continues=saved is not None)
        if current.child is not None:
            return current.child
        if saved:
            current.go(saved[1])
        while True:
            status = self._follow(current)
            if self._next is not None and self._next.child is not None:
                return self._next.child
            latest = newest(self._plan.folder)
            if status == 0 and (latest is None or not current.stage.ends(latest[0])):
                return self._end(0)
            if status > 0 or (status < 0 and not self._again(latest)):
                return self._end(status if status > 0 else 128 - status)
            assert latest is not None
            if status < 0:
                check(latest[1])
            if status < 0 and self._next is not None:
                self._next.kill()
                self._next = None
            current = self._prepare(latest[0])
            if current.child is not None:
                return current.child
            current.go(latest[1])
            self._next = None

    def _again(self, latest: tuple[int, Path] | None) -> bool:
        """Whether to continue from saved state after processes were killed."""
        self._failures += 1
        if latest is None or self._failures >= ATTEMPTS:
            return False
        print(f"continuing from step {latest[0]}", file=sys.stderr)
        return True

    def _end(self, status: int) -> int:
        if self._next is not None:
            self._next.kill()
        if status == 0:
            shutil.rmtree(self._plan.folder)
        return status

    def _follow(self, current: Running) -> int:
        """Waits for the processes of a stage. Returns 0, or the status of the first that failed."""
        poll = select.poll()
        for descriptor in (current.reports, *current.living):
            poll.register(descriptor, select.POLLIN)
        text = b""
        while current.living:
            ready = dict(poll.poll())
            if current.reports in ready:
                data = os.read(current.reports, 4096)
                *lines, text = (text + data).split(b"\n")
                for line in lines:
                    if self._reported(current, line.decode()):
                        return 0
                if not data:
                    poll.unregister(current.reports)  # all writers have exited
                continue  # what a process has reported counts before its exit
            for descriptor in ready:
                poll.unregister(descriptor)
                index = current.living[descriptor]
                status = current.exited(descriptor)
                if status != 0:
                    self._failed(current, index, status)
                    current.kill()
                    return status
        current.close()
        return 0

    def _failed(self, current: Running, index: int, status: int) -> None:
        ranks = ", ".join(map(str, blocks(self._plan.world, current.count)[index]))
        reason = f"exited with {status}" if status > 0 else f"was killed by signal {-status}"
        logs = self._plan.script.logs
        print(f"process {index} (ranks {ranks}) {reason}; see {logs}", file=sys.stderr)

    def _reported(self, current: Running, line: str) -> bool:
        """True in a child that this has started."""
        subject, *values = line.split()
        if subject == "prepare" and current.stage.end is not None:
            return self._prepare(current.stage.end).child is not None
        if subject == "saved":
            step = int(values[0])
            current.saved[step] = current.saved.get(step, 0) + 1
            if current.saved[step] == current.count:
                self._commit(step)
        return False

    def _commit(self, step: int) -> None:
        """All processes have saved their state. It replaces older ones."""
        self._failures = 0
        folder = self._plan.folder
        if self._plan.every is not None:
            seal(folder / f"unfinished-{step}")
        (folder / f"unfinished-{step}").rename(folder / f"step-{step}")
        for path in folder.iterdir():
            if (name := SAVED.fullmatch(path.name)) and int(name[1]) != step:
                shutil.rmtree(path)

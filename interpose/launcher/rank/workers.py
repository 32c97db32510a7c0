"""The launcher's worker processes, and the functions to call when they end."""

from __future__ import annotations

import gc
import json
import os
import signal
from collections.abc import Callable

from rankfold.control import Message
from rankfold.interpose.launcher.rank import process
from rankfold.log import area

log = area(__file__)


class Workers:
    """Children of the launcher that are not the rank's. The code that reaps them calls `ended`."""

    def __init__(self) -> None:
        self._awaited: dict[int, Callable[[int], None]] = {}

    def pids(self) -> list[int]:
        return list(self._awaited)

    def start(self, step: Callable[[], Message], then: Callable[[Message | None], None]) -> int:
        """Run `step` in a process of its own, then call `then` with its result: a few hundred bytes
        as JSON; None if the process was killed or failed. Returns its pid. Raises OSError."""
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            process.child(lambda: _report(step, write_end))
        os.close(write_end)

        def collect(_status: int) -> None:
            with os.fdopen(read_end) as pipe:
                text = pipe.read()
            then(json.loads(text) if text else None)

        self.await_end(pid, collect)
        return pid

    def kill(self, pid: int) -> None:
        """Kill a worker that takes too long; no effect if it has ended."""
        if pid in self._awaited:
            os.kill(pid, process.KILL)

    def await_end(self, pid: int, then: Callable[[int], None]) -> None:
        """Call `then` with a child's exit code, negative for a signal, once it has ended."""
        self._awaited[pid] = then

    def ended(self, pid: int, status: int) -> None:
        """A child has been reaped with this wait status."""
        if then := self._awaited.pop(pid, None):
            then(os.waitstatus_to_exitcode(status))

    def forget(self) -> None:
        """Drop all functions that wait for workers; the caller ends the workers."""
        self._awaited.clear()


def _report(step: Callable[[], Message], pipe: int) -> None:
    gc.disable()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.write(pipe, json.dumps(step()).encode())
    os._exit(0)

"""Brings a rank to a standstill: its processes are in a frozen cgroup, get no signal for it, and
are in a state that CRIU can save.

That means: interrupted calls will restart (interrupted.py), no process waits for a child of vfork,
and everything sent to other ranks has arrived there.
"""

from __future__ import annotations

import contextlib
import glob
import time
from collections.abc import Callable
from typing import Any

from rankfold import messages
from rankfold.control import ControlError, Message
from rankfold.interpose.launcher.criu import command, sockets
from rankfold.interpose.launcher.files.tracker import Tracker
from rankfold.interpose.launcher.freeze import freezer, interrupted
from rankfold.interpose.launcher.rank import process
from rankfold.interpose.launcher.rank.workers import Workers
from rankfold.log import area
from rankfold.service import Request

log = area(__file__)

FREEZE_S = 10.0  # a process that waits for a disk or the like stops when the disk has answered
LOOK_AGAIN_S = 0.001
ARRIVE_S = 0.25  # data sent within the machine arrives immediately, if the other end has space


class Quiesce:
    """Freezes and thaws one rank. `after` calls a function after a number of seconds."""

    def __init__(
        self,
        name: str,
        workers: Workers,
        tracker: Tracker,
        after: Callable[[float, Callable[[], None]], None],
    ):
        self.freezer = freezer.Freezer(name)
        self.frozen = False
        self.calls = interrupted.Calls()
        self._workers, self._tracker, self._after = workers, tracker, after
        self._requests: list[Request[Any]] = []  # freeze requests to answer when the rank is frozen

    @property
    def freezing(self) -> bool:
        """Whether the rank is frozen or about to be."""
        return self.frozen or bool(self._requests)

    def pids(self) -> set[int]:
        """The rank's processes: all of the namespace except the launcher and its workers."""
        ours = {1, *self._workers.pids()}
        return {pid for pid in process.living() if pid not in ours}

    def stop(self, request: Request[messages.Freeze]) -> None:
        """Freeze all processes of the rank; reply to the request when they are frozen, or refuse it
        when they cannot be."""
        try:
            if not self._requests:
                self.freezer.freeze(self.pids)
        except freezer.CannotFreeze as error:
            self.resume()
            raise ControlError("unavailable", str(error)) from error
        self._requests.append(request)
        if len(self._requests) == 1:
            until = time.monotonic() + FREEZE_S
            self._await(lambda: self._repair_calls(until), self._fail, until)

    def resume(self) -> None:
        """Thaw all processes of the rank. They leave the cgroup afterwards, while they run. Raises
        ControlError."""
        self._tracker.read()
        self.frozen = False
        try:
            self.freezer.resume()
        except OSError as error:
            raise ControlError("failed", f"the rank cannot be thawed: {error}") from error
        self.calls.thawed()
        self._after(0.0, self._leave)

    def _leave(self) -> None:
        """Remove the cgroup, unless the rank is to be frozen again."""
        if self.freezing:
            return
        try:
            self.freezer.leave()
        except OSError as error:
            log.warning("the rank stays in %s: %s", self.freezer.name, error)

    def hold(self, then: Callable[[], None], otherwise: Callable[[], None]) -> None:
        """CRIU has frozen the rank: call `then` when all processes are frozen, or `otherwise` after
        a timeout."""

        def on_frozen() -> None:
            self.frozen = True
            then()

        self._await(on_frozen, otherwise, time.monotonic() + FREEZE_S)

    def refreeze(self, then: Callable[[], None], otherwise: Callable[[], None]) -> None:
        """Freeze the cgroup again, if it was not frozen, and call `then` or `otherwise` as `hold`
        does; neither, if the rank has ended."""
        try:
            self.freezer.refreeze()
        except OSError:
            return
        self._await(then, otherwise, time.monotonic() + FREEZE_S)

    def refuse(self, error: ControlError) -> None:
        """Refuse the requests that wait for the freeze."""
        waiting, self._requests = self._requests, []
        for request in waiting:
            request.refuse(error)

    def drop(self) -> None:
        """No process of the rank is left: remove its cgroup."""
        self._tracker.read()
        self.frozen = False
        self.calls.forget()
        try:
            self.freezer.drop()
        except OSError as error:
            log.warning("%s is left: %s", self.freezer.name, error)

    # ---- on the way there ---------------------------------------------------------------

    def _repair_calls(self, until: float) -> None:
        """Make interrupted calls restart, whatever comes next."""
        pids, requests = self.pids(), self._requests
        if not requests:
            return

        def repaired(reply: Message | None) -> None:
            if self._requests is not requests:  # it was thawed
                return
            if reply is not None:
                self.calls.keep()
            else:
                log.warning(
                    "waiting system calls may fail with EINTR: the process that restarts them "
                    "was killed"
                )
            self._await(lambda: self._need_seizable(until), self._fail, until)

        pid = self._workers.start(lambda: self.calls.repair(pids), repaired)
        self._after(max(0.0, until - time.monotonic()), lambda: self._workers.kill(pid))

    def _need_seizable(self, until: float) -> None:
        """A process in vfork counts as frozen, but CRIU would wait for it: let all continue until
        the child has executed a program. A running thread (R) in the cgroup may be about to enter
        vfork."""
        if not self._requests:
            return
        if not any(_is(pid, "DR") for pid in self.pids()):
            self._await_arrival()
        else:
            self.freezer.resume()
            self.calls.thawed()
            self._await_started(until)

    def _await_started(self, until: float) -> None:
        if not self._requests:
            return
        if time.monotonic() > until:
            self._fail()
        elif any(_is(pid, "D") for pid in self.pids()):
            self._after(LOOK_AGAIN_S, lambda: self._await_started(until))
        else:
            try:
                self.freezer.refreeze()
            except OSError:  # the rank has ended
                return
            self._await(lambda: self._repair_calls(until), self._fail, until)

    def _await_arrival(self, until: float | None = None) -> None:
        """Finish the freeze when everything that the rank sent to others has arrived, or after a
        timeout."""
        until = until or time.monotonic() + ARRIVE_S
        if not self._requests:
            return
        if time.monotonic() < until and any(sockets.connections_of(self.pids()).values()):
            self._after(LOOK_AGAIN_S, lambda: self._await_arrival(until))
        else:
            self._finish()

    def _finish(self) -> None:
        self._tracker.read()
        self.frozen = True
        waiting, self._requests = self._requests, []
        for request in waiting:
            request.reply()

    def _fail(self) -> None:
        who = ", ".join(command.named(pid) for pid in sorted(self.pids()) if _is(pid, "D"))
        self.resume()
        text = (
            f"not all processes are frozen after {FREEZE_S:.0f} s: {who} waits for a disk, or for "
            "a child that has not started its program"
        )
        self.refuse(ControlError("failed", text))

    def _await(self, then: Callable[[], None], otherwise: Callable[[], None], until: float) -> None:
        """Check until all processes are frozen or the time is over; stop if the rank has ended."""
        try:
            frozen = self.freezer.frozen()
        except OSError:
            return
        if frozen:
            then()
        elif time.monotonic() > until:
            otherwise()
        else:
            self._after(LOOK_AGAIN_S, lambda: self._await(then, otherwise, until))


def _is(pid: int, states: str) -> bool:
    """Whether a thread of a process is in one of these states. D: in an uninterruptible call; R: it
    runs, which no frozen thread does."""
    for task in glob.iglob(f"/proc/{pid}/task/*/stat"):
        with contextlib.suppress(OSError), open(task, errors="replace") as file:
            if file.read().rpartition(")")[2].split()[0] in states:
                return True
    return False

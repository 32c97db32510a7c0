"""A rank stands still: its processes are in a cgroup that is frozen, with no signal to them, and
in a state that CRIU can take down.

So what the freeze has interrupted is to begin anew (interrupted.py), nobody waits for a child of
vfork, and what they have sent to other ranks has arrived there.
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
from rankfold.interpose.launcher.files.tracker import Touched
from rankfold.interpose.launcher.freeze import freezer, interrupted
from rankfold.interpose.launcher.rank import process
from rankfold.interpose.launcher.rank.workers import Workers
from rankfold.log import area
from rankfold.service import Request

log = area(__file__)

FREEZE_S = 10.0  # a process that waits for a disk or the like stops when it has it
LOOK_AGAIN_S = 0.001
ARRIVE_S = 0.25  # what was sent within the machine arrives at once, if the other end has room


class Standing:
    """`after`: calls a function when so many seconds are over."""

    def __init__(
        self, name: str, workers: Workers, touched: Touched,
        after: Callable[[float, Callable[[], None]], None],
    ):  # fmt: skip
        self.freezer = freezer.Freezer(name)
        self.still = False
        self.calls = interrupted.Calls()
        self._workers, self._touched, self._after = workers, touched, after
        self._asked: list[Request[Any]] = []  # to be answered when it is

    @property
    def begun(self) -> bool:
        """It stands still, or is about to."""
        return self.still or bool(self._asked)

    def pids(self) -> set[int]:
        """The rank's: all of the namespace but the launcher and who works for it."""
        ours = {1, *self._workers.pids()}
        return {pid for pid in process.living() if pid not in ours}

    def stop(self, request: Request[messages.Freeze]) -> None:
        """All processes of the rank; who asked is answered then, or when they will not."""
        try:
            if not self._asked:
                self.freezer.freeze(self.pids)
        except freezer.CannotFreeze as error:
            self.go_on()
            raise ControlError("unavailable", str(error)) from error
        self._asked.append(request)
        if len(self._asked) == 1:
            until = time.monotonic() + FREEZE_S
            self._await(lambda: self._mend_calls(until), self._moves, until)

    def go_on(self) -> None:
        """All of them do. Raises ControlError."""
        self._touched.read()
        self.still = False
        try:
            self.freezer.thaw()
        except OSError as error:
            raise ControlError("failed", f"the rank cannot be thawed: {error}") from error
        self.calls.goes_on()

    def held(self, then: Callable[[], None], otherwise: Callable[[], None]) -> None:
        """Somebody else has frozen them: go on when they stand still, or will not."""

        def still() -> None:
            self.still = True
            then()

        self._await(still, otherwise, time.monotonic() + FREEZE_S)

    def again(self, then: Callable[[], None], otherwise: Callable[[], None]) -> None:
        """As `held`, if they did not. Neither, when the rank has ended."""
        try:
            self.freezer.again()
        except OSError:
            return
        self._await(then, otherwise, time.monotonic() + FREEZE_S)

    def refuse(self, error: ControlError) -> None:
        """Who waits for it waits no more."""
        waiting, self._asked = self._asked, []
        for request in waiting:
            request.refuse(error)

    def drop(self) -> None:
        """Nothing of the rank is left: neither is its cgroup."""
        self._touched.read()
        self.still = False
        self.calls.forget()
        try:
            self.freezer.drop()
        except OSError as error:
            log.warning("%s is left: %s", self.freezer.name, error)

    # ---- on the way there ---------------------------------------------------------------

    def _mend_calls(self, until: float) -> None:
        """What the freeze has interrupted is to begin anew, whatever comes next."""
        pids, asked = self.pids(), self._asked
        if not asked:
            return

        def mended(told: Message | None) -> None:
            if self._asked is not asked:  # it goes on
                return
            if told is not None:
                self.calls.keep()
            else:
                log.warning("calls that wait may fail with EINTR: who mends them was killed")
            self._await(lambda: self._need_seizable(until), self._moves, until)

        pid = self._workers.start(lambda: self.calls.mend(pids), mended)
        self._after(max(0.0, until - time.monotonic()), lambda: self._workers.kill(pid))

    def _need_seizable(self, until: float) -> None:
        """Who is in vfork, or about to wait there, counts as frozen, and CRIU would wait for it:
        all go on until its child has started a program."""
        if not self._asked:
            return
        if not any(_is(pid, "DR") for pid in self.pids()):
            self._arrive()
        else:
            self.freezer.let_go()
            self.calls.goes_on()
            self._await_started(until)

    def _await_started(self, until: float) -> None:
        if not self._asked:
            return
        if time.monotonic() > until:
            self._moves()
        elif any(_is(pid, "D") for pid in self.pids()):
            self._after(LOOK_AGAIN_S, lambda: self._await_started(until))
        else:
            try:
                self.freezer.again()
            except OSError:  # it has ended
                return
            self._await(lambda: self._mend_calls(until), self._moves, until)

    def _arrive(self, until: float | None = None) -> None:
        """Go on when what the rank has sent to others is there, or when it will not be."""
        until = until or time.monotonic() + ARRIVE_S
        if not self._asked:
            return
        if time.monotonic() < until and any(sockets.of(self.pids()).values()):
            self._after(LOOK_AGAIN_S, lambda: self._arrive(until))
        else:
            self._stands()

    def _stands(self) -> None:
        self._touched.read()
        self.still = True
        waiting, self._asked = self._asked, []
        for request in waiting:
            request.reply()

    def _moves(self) -> None:
        who = ", ".join(command.named(pid) for pid in sorted(self.pids()) if _is(pid, "D"))
        self.go_on()
        text = (
            f"not all stand still after {FREEZE_S:.0f} s: {who} waits for a disk, or for its child "
            "that has not started its program"
        )
        self.refuse(ControlError("failed", text))

    def _await(self, then: Callable[[], None], otherwise: Callable[[], None], until: float) -> None:
        """Look until all stand still, or the time is over; not when the rank has ended."""
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
    """Whether a thread of a process is in one of these states. D: in a call that nothing
    interrupts; R: it runs, which no frozen thread does."""
    for task in glob.iglob(f"/proc/{pid}/task/*/stat"):
        with contextlib.suppress(OSError), open(task, errors="replace") as file:
            if file.read().rpartition(")")[2].split()[0] in states:
                return True
    return False

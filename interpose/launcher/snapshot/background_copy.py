"""Copies the image into a snapshot while its rank runs.

A snapshot need not wait for the rank's device memory, which is in an image that the launcher holds:
pages that are overwritten meanwhile are first copied aside (copy_on_write.py). A process of our own
copies the image, gives way to the ranks, and is killed if it makes no progress. Then only the
snapshot is lost.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from dataclasses import dataclass, field

from rankfold import messages
from rankfold.control import ControlError, Message
from rankfold.interpose.launcher.files.tracker import Tracker
from rankfold.interpose.launcher.rank import process
from rankfold.interpose.launcher.rank.progress import Stuck
from rankfold.interpose.launcher.rank.workers import Workers
from rankfold.interpose.launcher.snapshot import snapshot
from rankfold.log import area
from rankfold.service import Request

log = area(__file__)

NICE = 10  # the copying process gives way to the rank,
AFTER_S = 0.1  # and to the other ranks, which are still frozen


@dataclass
class _Copy:
    """A copy that runs or is planned. `waiting`: snapshots to take after it. `ends`: functions that
    end the rank, to call after it."""

    folder: str
    image: int  # a descriptor
    lock: int  # a descriptor of the folder: readers that need the whole snapshot wait for the lock
    rank_thawed: bool = False  # the rank runs again
    started: bool = False
    waiting: list[Request[messages.Snapshot]] = field(default_factory=list)
    ends: list[Callable[[], None]] = field(default_factory=list)


class BackgroundCopy:
    """Copies one image at a time. `after` calls a function after a number of seconds;
    `snapshot_again` takes a snapshot that has waited."""

    def __init__(
        self,
        workers: Workers,
        tracker: Tracker,
        after: Callable[[float, Callable[[], None]], None],
        snapshot_again: Callable[[Request[messages.Snapshot]], None],
    ):
        self._workers, self._tracker, self._after, self._snapshot_again = (
            workers,
            tracker,
            after,
            snapshot_again,
        )
        self._copy: _Copy | None = None

    def expect(self, folder: str, image: int) -> None:
        """Plan the copy: the snapshot in `folder` lacks the image, which is copied once the rank
        runs again. Raises OSError."""
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._copy = _Copy(folder, os.dup(image), lock)
        except OSError:
            os.close(lock)
            raise

    def rank_thawed(self) -> None:
        """The rank runs again: begin the copy soon."""
        if self._copy:
            self._copy.rank_thawed = True
            self._after(AFTER_S, self._begin)

    def postpones(self, request: Request[messages.Snapshot]) -> bool:
        """Whether the snapshot must wait for the running copy; if so, it starts by itself
        afterwards."""
        if self._copy is None or not self._copy.rank_thawed:
            return False
        self._copy.waiting.append(request)
        self._begin()
        return True

    def before_end(self, then: Callable[[], None]) -> None:
        """Call `then`, which ends the rank, when no copy needs the image any more: the snapshot is
        not lost with the rank."""
        if self._copy is None:
            then()
        else:
            self._copy.ends.append(then)
            self._begin()

    def refuse(self, error: ControlError) -> None:
        """Refuse the snapshots that wait."""
        if self._copy:
            waiting, self._copy.waiting = self._copy.waiting, []
            for request in waiting:
                request.refuse(error)

    def forget(self) -> None:
        """Drop the copy; the snapshot stays without the image."""
        if self._copy:
            os.close(self._copy.lock)
            os.close(self._copy.image)
            self._copy = None

    def _begin(self) -> None:
        copy = self._copy
        if copy is None or copy.started:
            return
        copy.started = True

        def copied(reply: Message | None) -> None:
            if reply is None or "message" in reply:
                why = (reply or {}).get("message") or "the copying process was killed"
                log.warning("%s: %s", copy.folder, why)
            self._tracker.read()
            self._tracker.workers.clear()
            self._finish(copy)

        try:
            pid = self._workers.start(lambda: _copied(copy.folder, copy.image), copied)
        except OSError as error:
            copied({"message": str(error)})
            return
        self._tracker.workers.add(pid)
        self._watch(copy, pid)

    def _watch(self, copy: _Copy, pid: int) -> None:
        """Kill the copying process when it makes no progress."""
        work = Stuck(lambda: {pid})

        def look() -> None:
            if self._copy is not copy:
                return
            if work.look():
                os.kill(pid, process.KILL)
            self._after(work.pause_s, look)

        look()

    def _finish(self, copy: _Copy) -> None:
        self.forget()
        for end in copy.ends:
            end()
        for request in copy.waiting:
            self._snapshot_again(request)


def _copied(folder: str, image: int) -> Message:
    """Copy the image; runs in a process of its own."""
    try:
        os.nice(NICE)
        snapshot.copy_image_later(folder, image)
    except OSError as error:
        return {"message": str(error)}
    return {}

"""Pages that the parent and the processes of a stage share: at which step they save and exit, and
which workers wait for others, and which one of each process runs.

The parent cannot know which step the processes begin while it decides. So each worker that begins a
step notes it here, under a lock, and the parent chooses the step after the last that anyone has
begun: no worker is past it, and each meets it.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import time
from collections.abc import Iterator
from typing import NamedTuple

NEVER = -1
BEGUN, END, SAVE, MOVED = range(4)  # places on the first page
RANKS = MOVED + 1  # from here on two places per rank:
CALLS, WAITS = range(2)
# and one per process, with the rank that runs, or has run last.


class Marks(NamedTuple):
    """Steps, or NEVER. From `end` on: save and exit. At `save`, or the next step that can: save."""

    end: int
    save: int


class Cut:
    def __init__(self, end: int | None, world: int) -> None:
        self._file = os.memfd_create("cut")
        self._world = world
        pages = -(-8 * (RANKS + 3 * world) // mmap.PAGESIZE) * mmap.PAGESIZE
        os.ftruncate(self._file, pages)
        self._page = mmap.mmap(self._file, pages)
        self._steps = memoryview(self._page).cast("q")
        self._steps[MOVED] = time.monotonic_ns()
        self._steps[BEGUN] = NEVER
        self._steps[END] = NEVER if end is None else end
        self._steps[SAVE] = NEVER
        for process in range(world):
            self._steps[RANKS + 2 * world + process] = NEVER

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """A lock of this process's, which its end releases: another process may be killed here."""
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)

    def begin(self, step: int) -> Marks:
        """Called by each worker before it begins a step."""
        with self._locked():
            self._steps[BEGUN] = max(self._steps[BEGUN], step)
            return Marks(self._steps[END], self._steps[SAVE])

    @property
    def begun(self) -> int:
        """The last step that a worker has begun."""
        return self._steps[BEGUN]

    def continue_from(self, step: int) -> None:
        """The stage begins at this step."""
        self._steps[BEGUN] = step

    def end_now(self) -> int:
        """The processes save and exit before the step that this returns."""
        with self._locked():
            if not NEVER != self._steps[END] <= self._steps[BEGUN]:  # else some are there already
                self._steps[END] = self._steps[BEGUN] + 1
            return self._steps[END]

    def save_now(self) -> int:
        """The processes save before the step that this returns, and continue. Not called again
        until all have saved."""
        with self._locked():
            self._steps[SAVE] = max(self._steps[BEGUN], 0) + 1  # the first step has no state yet
            return self._steps[SAVE]

    def no_end(self) -> None:
        """The processes that wait at the end continue."""
        with self._locked():
            self._steps[END] = NEVER

    def ends(self, step: int) -> bool:
        return NEVER != self._steps[END] <= step

    # ---- which workers wait: without a lock, because each place has one writer ----

    def called(self, rank: int) -> None:
        """The worker calls a collective."""
        self._steps[RANKS + 2 * rank + CALLS] += 1
        self._steps[MOVED] = time.monotonic_ns()

    def waits(self, rank: int, waits: bool) -> None:
        """Whether the worker waits for others from now on."""
        self._steps[RANKS + 2 * rank + WAITS] = waits
        self._steps[MOVED] = time.monotonic_ns()

    def runs(self, process: int, rank: int) -> None:
        """The worker has the turn of its process from now on."""
        self._steps[RANKS + 2 * self._world + process] = rank

    def running(self, process: int) -> int | None:
        """The rank that runs, or has run last. None: the process has begun none yet."""
        rank = self._steps[RANKS + 2 * self._world + process]
        return None if rank == NEVER else rank

    def quiet_s(self) -> float:
        """Seconds since a worker last called a collective, or began or ceased to wait."""
        return max(0.0, (time.monotonic_ns() - self._steps[MOVED]) / 1e9)

    def awaited(self) -> list[int]:
        """The ranks that wait for no other one: those that others wait for are among them. A
        worker alone in its process waits inside PyTorch, where only the number of its calls shows
        that it is ahead of others."""
        places = [RANKS + 2 * rank for rank in range(self._world)]
        fewest = min(self._steps[place + CALLS] for place in places)
        return [
            rank
            for rank, place in enumerate(places)
            if not self._steps[place + WAITS] and self._steps[place + CALLS] == fewest
        ]

    def close(self) -> None:
        self._steps.release()
        self._page.close()
        os.close(self._file)

"""Logical workers of a process are threads. One runs at a time. They meet to exchange values.

Only the worker that has the turn calls these methods, so they need no lock.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from .errors import NoOneCanContinue, Stopped


def _closed() -> threading.Lock:
    """A gate that one thread waits at and another opens. A semaphore, which is Python code, is
    slower."""
    gate = threading.Lock()
    gate.acquire()
    return gate


class Turns:
    """Gives the turn to one worker after another, in the order in which they can continue."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self._gates = {rank: _closed() for rank in ranks}
        self._ready = deque(ranks)
        self._waiting: dict[int, str] = {}
        self._ended: list[int] = []
        self.stopping: str | None = None
        self.running: int | None = None  # who has the turn

    def begin(self) -> None:
        """The first worker gets the turn. Called once, by the thread that started the workers."""
        self._next()

    def enter(self, rank: int) -> None:
        """Waits for this worker's first turn."""
        self._gates[rank].acquire()
        self.running = rank
        self._go_on()

    def wait(self, rank: int, subject: str) -> None:
        """Gives up the turn until another worker wakes this one.

        Raises NoOneCanContinue if no worker could, Stopped if another one has failed."""
        self._go_on()
        self._waiting[rank] = subject
        if not self._ready and self.stopping is None:
            text = self._stuck()
            self.stop(text)
            self._ready.remove(rank)
            raise NoOneCanContinue(text)
        self._next()
        self._gates[rank].acquire()
        self.running = rank
        self._go_on()

    def wake(self, ranks: Sequence[int]) -> None:
        for rank in ranks:
            if self._waiting.pop(rank, None) is not None:
                self._ready.append(rank)

    def leave(self, rank: int) -> None:
        """The worker's script has ended."""
        self._ended.append(rank)
        if not self._ready and self._waiting:
            self.stop(self._stuck())
        self._next()

    def stop(self, reason: str) -> None:
        """Every other worker raises Stopped when it gets its turn. The first reason counts."""
        self.stopping = self.stopping or reason
        self.wake(sorted(self._waiting))

    def _go_on(self) -> None:
        if self.stopping is not None:
            raise Stopped(self.stopping)

    def _next(self) -> None:
        if self._ready:
            self._gates[self._ready.popleft()].release()

    def _stuck(self) -> str:
        waiting = [
            f"rank {rank} waits for {event}" for rank, event in sorted(self._waiting.items())
        ]
        ended = [f"rank {rank} has ended" for rank in sorted(self._ended)]
        return "no logical worker can continue: " + ", ".join(waiting + ended)


class _Meeting:
    def __init__(self) -> None:
        self.values: dict[int, Any] = {}
        self.waiting: list[int] = []
        self.left = 0
        self.acted = False
        self.result: Any = None


class Meetings:
    """Where all workers of the process bring a value, and get what one made of the values."""

    def __init__(
        self, ranks: Sequence[int], wait: Callable[[int, str], None], turns: Turns
    ) -> None:
        self._count = len(ranks)
        self._wait = wait
        self._turns = turns
        self._open: dict[tuple[Any, ...], _Meeting] = {}

    def bring(
        self,
        rank: int,
        key: tuple[Any, ...],
        value: Any,
        act: Callable[[dict[int, Any]], Any],
        source: int | None = None,
    ) -> Brought:
        """The worker that comes last calls `act` with the values of all. If the result depends on
        one worker, `source`, that one does when it comes. Returns at once."""
        meeting = self._open.setdefault(key, _Meeting())
        if not meeting.acted:
            meeting.values[rank] = value
        if rank == source if source is not None else len(meeting.values) == self._count:
            meeting.result = act(meeting.values)
            meeting.acted = True
            meeting.values = {}  # they may be large, and some worker may come late
            self._turns.wake(meeting.waiting)

        return Brought(self, meeting, rank, key)

    def take(self, meeting: _Meeting, rank: int, key: tuple[Any, ...]) -> Any:
        while not meeting.acted:
            meeting.waiting.append(rank)
            self._wait(rank, " ".join(map(str, key)))
        meeting.left += 1
        if meeting.left == self._count:
            del self._open[key]
        return meeting.result


class Brought:
    """A worker's part in a meeting. It is called once: the call waits for the result."""

    def __init__(
        self, meetings: Meetings, meeting: _Meeting, rank: int, key: tuple[Any, ...]
    ) -> None:
        self._meetings, self._meeting, self._rank, self._key = meetings, meeting, rank, key

    @property
    def waits(self) -> bool:
        """Whether a call lets other workers run."""
        return not self._meeting.acted

    def __call__(self) -> Any:
        return self._meetings.take(self._meeting, self._rank, self._key)

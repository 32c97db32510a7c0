"""Actions in progress concurrently with the loop: one at a time per subject.

An action is a generator (executor.py) that the loop begins and resumes. It makes decisions and
writes the journal in the loop's thread only, and the loop does not wait for it between two steps.
It yields everything that may block (a request to a proxy, the start of a launcher) as calls. They
run in threads of their own, and when the last one has returned, the action gets all results. The
planner leaves the subjects that are in flight alone. Threads are daemons: a reconciler that ends
does not wait for them, and the next one finds in the journal what was begun.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rankfold.reconciler import actions

WORKERS = 8  # concurrent calls of one action: a snapshot takes a core for a while

Call = Callable[[], Any]
Steps = Generator[Sequence[Call], list[Any], None]  # gets results, or what calls raised


@dataclass(frozen=True)
class Outcome:
    """An action that has ended. error: the exception that it raised."""

    action: actions.Action
    error: Exception | None


@dataclass
class _Flight:
    action: actions.Action
    steps: Steps
    results: list[Any] = field(default_factory=list)
    missing: int = 0  # calls that have not returned


class InFlight:
    """All actions that have begun and have not ended."""

    def __init__(self) -> None:
        # Readable when a call has returned. Never closed: a thread may outlive its reader.
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._flights: dict[str, _Flight] = {}
        self._results: queue.SimpleQueue[tuple[_Flight, int, Any]] = queue.SimpleQueue()

    def subjects(self) -> frozenset[str]:
        """The subjects of the actions in flight."""
        return frozenset(self._flights)

    def begin(self, action: actions.Action, steps: Steps) -> Outcome | None:
        """Run an action up to its first calls. Returns its end if it makes none."""
        name = actions.subject(action)
        if name in self._flights:
            raise ValueError(f"an action on {name} is in progress already")
        flight = self._flights[name] = _Flight(action, steps)
        return self._advance(flight, None)

    def collect(self) -> list[tuple[actions.Action, Outcome | None]]:
        """Resume the actions whose calls have all returned; return each, with its end if it
        ended."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fd)
        resumed = []
        with contextlib.suppress(queue.Empty):
            while True:
                flight, index, result = self._results.get_nowait()
                flight.results[index] = result
                flight.missing -= 1
                if flight.missing == 0:
                    resumed.append((flight.action, self._advance(flight, flight.results)))
        return resumed

    def _advance(self, flight: _Flight, results: list[Any] | None) -> Outcome | None:
        error: Exception | None = None
        try:
            calls = next(flight.steps) if results is None else flight.steps.send(results)
            while not calls:
                calls = flight.steps.send([])
            flight.results, flight.missing = [None] * len(calls), len(calls)
            pending: queue.SimpleQueue[tuple[int, Call]] = queue.SimpleQueue()
            for each in enumerate(calls):
                pending.put(each)
            for _ in range(min(WORKERS, len(calls))):
                threading.Thread(target=self._work, args=(flight, pending), daemon=True).start()
            return None
        except StopIteration:
            pass
        except Exception as raised:  # noqa: BLE001 - the loop distinguishes it by its class
            error = raised
        del self._flights[actions.subject(flight.action)]
        return Outcome(flight.action, error)

    def _work(self, flight: _Flight, pending: queue.SimpleQueue[tuple[int, Call]]) -> None:
        while True:
            try:
                index, call = pending.get_nowait()
            except queue.Empty:
                return
            result: Any
            try:
                result = call()
            except Exception as error:  # noqa: BLE001 - the action gets it
                result = error
            self._results.put((flight, index, result))
            os.eventfd_write(self.fd, 1)


def agreed(results: Sequence[object]) -> None:
    """Raise the first exception among the results."""
    for each in results:
        if isinstance(each, Exception):
            raise each

"""Actions under way, beside the loop: one at a time per subject.

An action is a generator (executor.py) that the loop begins and resumes: it decides, and writes the
journal, in the loop's thread alone, and between two steps nobody waits for it. What may block (a
question to a proxy, the start of a launcher) it yields as calls; they run in threads of their own,
and when the last has come back the action gets all results. The planner is told the subjects that
are in flight and leaves them alone. Threads are daemons: a reconciler that ends waits for nobody,
and the next one finds in the journal what was begun.
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

WORKERS = 8  # calls of one action that run at once: a snapshot takes a core for a while

Call = Callable[[], Any]
Steps = Generator[Sequence[Call], list[Any], None]  # gets results; what a call raised among them


@dataclass(frozen=True)
class Landed:
    """An action that has ended. error: what it raised."""

    action: actions.Action
    error: Exception | None


@dataclass
class _Flight:
    action: actions.Action
    steps: Steps
    results: list[Any] = field(default_factory=list)
    missing: int = 0  # calls that have not come back


class InFlight:
    """All actions that have begun and are not over."""

    def __init__(self) -> None:
        # Readable when a call has come back. Never closed: a thread may outlive whoever reads it.
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._flights: dict[str, _Flight] = {}
        self._back: queue.SimpleQueue[tuple[_Flight, int, Any]] = queue.SimpleQueue()

    def subjects(self) -> frozenset[str]:
        """What is being acted on."""
        return frozenset(self._flights)

    def begin(self, action: actions.Action, steps: Steps) -> Landed | None:
        """Run an action up to its first calls. Gives its end if it has none."""
        name = actions.subject(action)
        if name in self._flights:
            raise ValueError(f"an action on {name} is in flight already")
        flight = self._flights[name] = _Flight(action, steps)
        return self._go_on(flight, None)

    def collect(self) -> list[tuple[actions.Action, Landed | None]]:
        """Resume the actions whose calls have all come back: each, and its end if that was it."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fd)
        resumed = []
        with contextlib.suppress(queue.Empty):
            while True:
                flight, index, result = self._back.get_nowait()
                flight.results[index] = result
                flight.missing -= 1
                if flight.missing == 0:
                    resumed.append((flight.action, self._go_on(flight, flight.results)))
        return resumed

    def _go_on(self, flight: _Flight, results: list[Any] | None) -> Landed | None:
        error: Exception | None = None
        try:
            calls = next(flight.steps) if results is None else flight.steps.send(results)
            while not calls:
                calls = flight.steps.send([])
            flight.results, flight.missing = [None] * len(calls), len(calls)
            todo: queue.SimpleQueue[tuple[int, Call]] = queue.SimpleQueue()
            for each in enumerate(calls):
                todo.put(each)
            for _ in range(min(WORKERS, len(calls))):
                threading.Thread(target=self._work, args=(flight, todo), daemon=True).start()
            return None
        except StopIteration:
            pass
        except Exception as raised:  # noqa: BLE001 - the loop distinguishes it by its class
            error = raised
        del self._flights[actions.subject(flight.action)]
        return Landed(flight.action, error)

    def _work(self, flight: _Flight, todo: queue.SimpleQueue[tuple[int, Call]]) -> None:
        while True:
            try:
                index, call = todo.get_nowait()
            except queue.Empty:
                return
            result: Any
            try:
                result = call()
            except Exception as error:  # noqa: BLE001 - the action learns of it
                result = error
            self._back.put((flight, index, result))
            os.eventfd_write(self.fd, 1)


def agreed(results: Sequence[object]) -> None:
    """Raises what the first call has raised that did."""
    for each in results:
        if isinstance(each, Exception):
            raise each

"""Checks whether the background reconciler of a state directory answers, and if not, which process
is responsible.

Its lock shows whether one runs, its socket whether it answers. Neither waits for a long operation:
a reconciler that works answers `hello` within a turn of its loop.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import Struct

from rankfold import __version__, control
from rankfold.legible import legible
from rankfold.reconciler.deadlines import (
    BUSY_ANSWERS_S,
    HUNG_LOOK_S,
    RECONCILER_ANSWERS_S,
    SILENT_AFTER_S,
)
from rankfold.reconciler.layout import Layout, is_locked, lock_holder

_AGAIN_S = 0.02
_STOPPED = "Tt"  # states of a process in /proc/PID/stat
_BUSY = "RD"  # runs, waits for a CPU, or waits for a disk


class Liveness(Struct, frozen=True):
    """The state of the reconciler, as far as it is known.

    runs: a process holds the lock, or listens.
    pid: of that process; 0 if it is not known.
    trouble: why it does not answer, for people; empty: it does, or none runs.
    patient: it may only be busy.
    note: a remark about a reconciler that answers, for people.
    """

    runs: bool = False
    pid: int = 0
    trouble: str = ""
    patient: bool = False
    note: str = ""

    @property
    def answers(self) -> bool:
        return self.runs and not self.trouble


NONE = Liveness()


def query(layout: Layout, within_s: float = SILENT_AFTER_S) -> Liveness:
    """Send `hello`, and wait for the reply for at most `within_s`."""
    deadline = time.monotonic() + within_s
    while True:
        pid = 0
        try:
            left = max(_AGAIN_S, deadline - time.monotonic())
            with control.Client(layout.socket, left) as client:
                pid = client.pid
                hello, _ = client.request(
                    "hello", timeout=max(_AGAIN_S, deadline - time.monotonic())
                )
            return Liveness(True, pid, note=_other_version(pid, hello.get("version")))
        except control.ControlError as error:
            if error.code == "version":
                text = f"the reconciler (process {pid}) {error}; {_way_out(pid)}"
                return Liveness(True, pid, text)
            if error.code not in ("unreachable", "timeout"):  # any other error is an answer, too
                return Liveness(True, pid)
            if error.code == "unreachable" and not is_locked(layout.lock):
                return NONE
        if time.monotonic() >= deadline:
            return _silent(layout, pid, within_s)
        time.sleep(_AGAIN_S)


class BackgroundQuery:
    """`query` in a thread, while the caller queries other processes."""

    def __init__(self, layout: Layout):
        self._found: Liveness | Exception = NONE
        self._thread = threading.Thread(target=self._run, args=(layout,), daemon=True)
        self._thread.start()

    def _run(self, layout: Layout) -> None:
        try:
            self._found = query(layout)
        except Exception as error:  # noqa: BLE001 - `result` raises it
            self._found = error

    def result(self) -> Liveness:
        """Wait for the result. Raises what `query` raised."""
        self._thread.join()
        if isinstance(self._found, Exception):
            raise self._found
        return self._found


def _other_version(pid: int, version: object) -> str:
    """A sentence if a reconciler's version is not ours; empty: it is."""
    if version == __version__:
        return ""
    theirs = f"of version {legible(str(version))}" if version else "older"
    return (
        f"the reconciler (process {pid}) is {theirs}, this command of version {__version__}; "
        "`rankfold stop` ends it: jobs continue, and the next command starts one of its own version"
    )


def _silent(layout: Layout, listener: int, waited_s: float) -> Liveness:
    """listener: pid of the process that listens; 0: none does, or it is not known."""
    pid = listener or lock_holder(layout.lock)
    state, process = process_state(pid), f" (process {pid})" if pid else ""
    text = f"the reconciler{process} is unresponsive: no answer for {waited_s:g} s"
    if is_stopped(pid):
        why = f"a signal has stopped it; `kill -CONT {pid}` lets it continue"
        return Liveness(True, pid, f"{text}: {why}")
    if not listener:
        return Liveness(True, pid, f"{text}: it is starting, or stuck; {_way_out(pid)}", True)
    if state and state in _BUSY:
        return Liveness(True, pid, f"{text}: it is busy, or stuck; {_way_out(pid)}", True)
    return Liveness(True, pid, f"{text}: it is stuck; {_way_out(pid)}")


def _way_out(pid: int) -> str:
    kill = f"`kill -9 {pid}`" if pid else "`kill -9` of the process that holds its lock"
    return f"{kill} ends it: jobs continue, and the next command starts another"


def process_state(pid: int) -> str:
    """The state letter in /proc/PID/stat; empty: there is no such process."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    return ""


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped the process."""
    return (state := process_state(pid)) != "" and state in _STOPPED


# ---- a request that is not answered ------------------------------------------------------------


class Watched(Struct):
    """Why `watching` closed the connection; empty: it did not."""

    why: str = ""


@contextlib.contextmanager
def watching(client: control.Client, hangs: Callable[[], str]) -> Iterator[Watched]:
    """Close a connection when its other side does not answer.

    hangs: returns why the other side is to be given up, or "". A thread calls it repeatedly during
    the context.
    """
    state, over = Watched(), threading.Event()

    def run() -> None:
        while not over.wait(HUNG_LOOK_S):
            why = hangs()
            if why and not over.is_set():
                state.why = why
                client.interrupt()
                return

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        over.set()


def hangs(layout: Layout, notify: Callable[[str], None]) -> str:
    """Why no command should wait for the reconciler any longer; empty: it answers. A reconciler
    that may only be busy gets more time, after a message to `notify`."""
    reconciler = query(layout, RECONCILER_ANSWERS_S)
    if not reconciler.trouble or not reconciler.patient:
        return reconciler.trouble
    notify(f"{reconciler.trouble}; waiting for it")
    return query(layout, BUSY_ANSWERS_S).trouble

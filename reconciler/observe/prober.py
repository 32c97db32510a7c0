"""Queries the state of many processes at once, without waiting for any of them.

It has one connection to each proxy and launcher, with at most one open query. An unresponsive
process keeps its query until it continues or ends, and does not delay others. Everything happens in
the caller's thread, on non-blocking sockets. An answer counts only if its query was sent after the
last action that sent the process a request (`void`): an earlier answer is out of date.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Container, Iterable
from pathlib import Path

from msgspec import Struct

from rankfold import control, peers
from rankfold.reconciler import clock
from rankfold.reconciler.model.values import Json


class Answer(Struct, frozen=True):
    """The answer of a process.

    hello: its reply to `hello`.
    status: its present state; None: it has not answered the open query.
    queried: wall clock of the query.
    waited_s: seconds since then.
    pid: of the listening process; 0 if it is not known.
    heard: when the answer came, fleet time.
    """

    hello: Json
    status: Json | None
    queried: float = 0.0
    waited_s: float = 0.0
    pid: int = 0
    heard: float = 0.0


class Line:
    """The connection to one process, with its open query."""

    def __init__(self, path: Path, selector: selectors.BaseSelector):
        self.path, self.selector = path, selector
        self.hello: Json = {}
        self.status: Json | None = None
        self.queried_at: float | None = None  # CLOCK_MONOTONIC; None: no query is open
        self.queried = 0.0  # wall clock
        self.pid = 0  # of the listening process
        self.heard = 0.0  # fleet time
        self.outdated = False  # the pending answer does not count
        self._channel: control.Channel | None = None
        self._open: dict[int, str] = {}  # id → operation
        self._id = 0

    def query(self) -> None:
        """Send a query unless one is open. If the process cannot be reached, none is open
        afterwards."""
        if self._channel is not None and self.queried_at is not None:
            return
        try:
            if self._channel is None:
                self._connect()
            self._send()
        except BlockingIOError:  # its backlog is full, and it accepts no connection
            self._disconnect()
            self._begin()
        except (OSError, ValueError, peers.Denied, control.ControlError):
            self.close()

    def _begin(self) -> None:
        if self.queried_at is None:
            self.queried_at, self.queried = time.monotonic(), time.time()

    def _connect(self) -> None:
        sock = socket.socket(
            socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        )
        try:
            sock.connect(str(self.path))
            self.pid = peers.credentials(sock)
        except BaseException:
            sock.close()
            raise
        self._channel = control.Channel(sock)
        self.hello = {}
        self.selector.register(sock, selectors.EVENT_READ, self)

    def _send(self) -> None:
        """Send `status`, and `hello` until its reply has a pid (a launcher's has one with its
        rank)."""
        assert self._channel is not None
        for op in ["status"] if self.hello.get("pid") else ["hello", "status"]:
            self._id += 1
            self._channel.send({"id": self._id, "op": op})
            self._open[self._id] = op
        self._begin()

    def read(self) -> None:
        """Process what has arrived."""
        if self._channel is None:
            return
        try:
            alive = self._channel.fill()
            while alive and (frame := self._channel.take()) is not None:
                self._handle(frame)
        except BlockingIOError:
            return
        except (OSError, control.ControlError):
            alive = False  # it has ended, or its answer is malformed
        if not alive:
            self.close()

    def _handle(self, frame: control.Frame) -> None:
        frame.close()
        op = self._open.pop(frame.head.id or 0, "")
        if frame.head.ok is False:
            raise control.ControlError("refused", f"{op} was refused")
        if op == "hello":
            self.hello = frame.decode()
        elif op == "status":
            self.status, self.heard = frame.decode(), clock.now()
        if op and not self._open:
            self.queried_at = None
            if self.outdated:
                self.outdated, self.status = False, None
                self._send()

    def close(self) -> None:
        """Disconnect, and drop the open query."""
        self._disconnect()
        self.queried_at, self.status, self.outdated, self.hello = None, None, False, {}

    def _disconnect(self) -> None:
        if self._channel is not None:
            with contextlib.suppress(KeyError, ValueError):
                self.selector.unregister(self._channel.sock)
            self._channel.close()
            self._channel = None
        self._open.clear()


class Prober:
    """The connections to all processes of a fleet."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._lines: dict[Path, Line] = {}

    def query(
        self, paths: Iterable[Path], within_s: float, hung: Container[Path] = ()
    ) -> dict[Path, Answer]:
        """Query the process behind each of `paths`, and disconnect from all others.

        Waits at most `within_s` for processes that are queried now, and not for those in `hung`. A
        path is missing in the result if no process listens there.
        """
        wanted = list(dict.fromkeys(paths))
        for path in set(self._lines) - set(wanted):
            self._lines.pop(path).close()
        self._listen(0.0)
        lines = [self._lines.setdefault(p, Line(p, self._selector)) for p in wanted]
        awaited = set()
        for line in lines:
            if line.status is None:  # an answer may have arrived since the last look
                new = line.queried_at is None
                line.query()
                if new and line.queried_at is not None and line.path not in hung:
                    awaited.add(line)
        deadline = time.monotonic() + within_s
        while awaited and (left := deadline - time.monotonic()) > 0:
            heard = self._listen(left)
            awaited -= {line for line in heard if line.queried_at is None}
        return {line.path: answer for line in lines if (answer := _take_answer(line))}

    def invalidate(self, paths: Iterable[Path]) -> None:
        """A request is being, or was, sent to these: answers to open queries will be out of
        date."""
        for path in paths:
            if (line := self._lines.get(path)) and line.queried_at is not None:
                line.outdated = True

    def _listen(self, within_s: float) -> list[Line]:
        heard = [key.data for key, _ in self._selector.select(within_s)]
        for line in heard:
            line.read()
        return heard

    def close(self) -> None:
        for line in self._lines.values():
            line.close()
        self._lines.clear()
        self._selector.close()


def _take_answer(line: Line) -> Answer | None:
    if line.status is not None:
        answer = Answer(line.hello, line.status, pid=line.pid, heard=line.heard)
        line.status = None
        return answer
    if line.queried_at is not None:
        return Answer(line.hello, None, line.queried, time.monotonic() - line.queried_at, line.pid)
    return None

"""Requests to a run, over the socket `control` in its folder: one line of JSON each, and one line
as the reply, when the request has been carried out.

A request is {"request": NAME} with NAME among REQUESTS; `scale` and `resume` have "processes", too.
In a fleet `resume` also has "cores": for each process, the numbers of those on which it runs; and
"gpus" on devices of type nvidia: for each process, [name for CUDA_VISIBLE_DEVICES, bytes].
A reply has "error", or what the request asked for.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

SOCKET = "control"
REQUESTS = ("status", "scale", "suspend", "resume", "checkpoint", "cancel")
OF_A_FLEET = ("hold", "release", "ended")  # see docs/elastic.md
LONGEST = 16384  # bytes of a request or a reply


class Refused(Exception):
    """Why a request is not carried out."""


@contextlib.contextmanager
def _address(folder: Path) -> Iterator[str]:
    """The socket's path, which may have 107 bytes."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET}"
    finally:
        os.close(descriptor)


def connected(folder: Path) -> socket.socket:
    """A connection to the run in a folder. Raises OSError if there is none."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        with _address(folder) as address:
            connection.connect(address)
    except OSError:
        connection.close()
        raise
    return connection


def runs(folder: Path) -> bool:
    """Whether a run listens in this folder."""
    try:
        connected(folder).close()
    except OSError:
        return False
    return True


def ask(folder: Path, **request: Any) -> dict[str, Any]:
    """Sends a request and waits for the reply. Raises Refused."""
    try:
        connection = connected(folder)
    except OSError as error:
        raise Refused(f"no run listens at {folder / SOCKET}: {error.strerror}") from None
    line = b""
    with connection, contextlib.suppress(ConnectionError):  # the run is killed meanwhile
        connection.sendall(json.dumps(request).encode() + b"\n")
        with connection.makefile("rb") as answers:
            line = answers.readline(LONGEST)
    if not line.endswith(b"\n"):
        raise Refused(f"the run in {folder} ended before it had answered")
    reply: dict[str, Any] = json.loads(line)
    if "error" in reply:
        raise Refused(reply["error"])
    return reply


class Request(NamedTuple):
    """One request, and where to reply."""

    name: str
    processes: int | None
    connection: socket.socket
    cores: tuple[tuple[int, ...], ...] = ()  # of each process; empty: those of the run
    gpus: tuple[tuple[str, int], ...] = ()  # likewise

    def reply(self, **fields: Any) -> None:
        with contextlib.suppress(OSError):  # who asked has gone
            self.connection.sendall(json.dumps(fields).encode() + b"\n")


def _read(line: bytes, connection: socket.socket) -> Request:
    """Raises Refused."""
    try:
        fields = json.loads(line)
    except ValueError:
        raise Refused("the request is not a line of JSON") from None
    if not isinstance(fields, dict) or fields.get("request") not in (*REQUESTS, *OF_A_FLEET):
        raise Refused(f"the request is none of {', '.join(REQUESTS)}")
    processes = fields.get("processes")
    if processes is not None and type(processes) is not int:
        raise Refused(f"processes must be a number, not {processes!r}")
    if fields["request"] == "scale" and processes is None:
        raise Refused("scale needs a number of processes")
    cores = fields.get("cores", [])
    if not _are_cores(cores) or (cores and len(cores) != processes):
        raise Refused(f"cores must be a list of numbers for each process, not {cores!r}")
    gpus = fields.get("gpus", [])
    if not _are_gpus(gpus) or (gpus and len(gpus) != processes):
        raise Refused(f"gpus must be a list of [name, bytes] for each process, not {gpus!r}")
    of_each = tuple(map(tuple, cores)), tuple((name, memory) for name, memory in gpus)
    return Request(fields["request"], processes, connection, *of_each)


def _are_cores(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(each, list) and each and all(type(core) is int and core >= 0 for core in each)
        for each in value
    )


def _are_gpus(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(each, list)
        and [type(part) for part in each] == [str, int]
        and each[0]
        and each[1] >= 0
        for each in value
    )


class Requests:
    """The socket of a run, and the connections to it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        (folder / SOCKET).unlink(missing_ok=True)  # of a run that was killed
        with _address(folder) as address:
            self._listener.bind(address)
        os.chmod(folder / SOCKET, 0o600)
        self._listener.listen()
        self._texts: dict[socket.socket, bytes] = {}

    def descriptors(self) -> list[int]:
        return [each.fileno() for each in (self._listener, *self._texts)]

    def received(self) -> list[Request]:
        """The requests that have arrived."""
        with contextlib.suppress(BlockingIOError):
            while True:
                connection, _ = self._listener.accept()
                self._texts[connection] = b""
        poll = select.poll()
        connections = {each.fileno(): each for each in self._texts}
        for descriptor in connections:
            poll.register(descriptor, select.POLLIN)
        found = (self._from(connections[descriptor]) for descriptor, _ in poll.poll(0))
        return [each for each in found if each is not None]

    def _from(self, connection: socket.socket) -> Request | None:
        try:
            data = connection.recv(LONGEST)
        except ConnectionError:
            data = b""
        text = self._texts[connection] + data
        line, newline, self._texts[connection] = text.partition(b"\n")
        if newline:
            try:
                return _read(line, connection)
            except Refused as refused:
                Request("", None, connection).reply(error=str(refused))
        elif data and len(text) < LONGEST:
            self._texts[connection] = text
        else:
            del self._texts[connection]
            connection.close()
        return None

    def forget(self) -> None:
        """In a child: the socket is the parent's."""
        for each in (self._listener, *self._texts):
            each.close()

    def close(self) -> None:
        (self._folder / SOCKET).unlink(missing_ok=True)
        self.forget()

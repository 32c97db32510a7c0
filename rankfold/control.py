"""The control protocol: what the reconciler, the proxies and the launchers say to each other.

A Unix stream socket, mode 0600, peer's uid checked. Each message is a length (u32, little endian)
and that many bytes of JSON. A request is ``{"v": 1, "id": n, "op": name, …}``, its reply ``{"v":
1, "id": n, "ok": true, …}`` or ``{"v": 1, "id": n, "ok": false, "error": {"code": …, "message":
…}}``. Replies may come in any order. A message without ``id`` is a notice and gets no reply.
Descriptors travel as SCM_RIGHTS with the message whose ``fds`` counts them.

Every operation is idempotent: asked twice, it answers twice the same.

Operations of a **proxy** (one server process per device)

``hello`` → kind "proxy", device, type, memory (bytes), pid
``status`` → device, type, memory, used (bytes of resident chunks), swap (bytes of host memory
    that hold content which is not resident), switches, swapped_in, swapped_out (bytes since
    start), jobs: a list of {job, epoch, state, reason, cut_at, released_at (CLOCK_MONOTONIC
    seconds or null), ranks: [{rank, state, resident, used, kernels, collectives, records,
    error}]}. A job's state here: "joining" (rendezvous not complete), "running", "stopping"
    (barrier requested), "cut" (consistent cut: nothing in flight), "saved", "failed" (reason says
    why). A rank's state: "waiting" (its launcher has no channel yet), "attached", "exited".
``place`` job, epoch, determinism ("D0"|"D1"), world_size, members: [{rank, device, launcher}]
    (all ranks; launcher: socket path), devices: [{device, socket}] → {}. The proxy claims its
    ranks from their launchers, meets the other devices, and starts to serve as soon as all have
    met. A higher epoch supersedes. Answered when noted; progress is in ``status``.
``barrier`` job, epoch, action ("request" | "withdraw") → {state}. Request: stop at a cut.
    Withdraw: before it is acquired, or after (acquired, then released): go on in place. Who asks
    anew right away asks the device that withdrew, or all; a withdrawal at the job's lowest device
    is known to all when it is answered.
``wait`` job, epoch, states: [..], within_s → {state, reason}. Deferred until the job's state
    is one of them or the time is over; "failed" always ends it.
``detach`` job, epoch, discard (bool) → {saved_bytes}. Only at a cut, unless discard: writes each
    local rank's state and memory into the image its launcher holds, lets the ranks go, frees the
    device. With discard: lets go at once, nothing is saved.
``shutdown`` → {}, then the process ends.
``peer`` job, epoch, device → {} + fds. Between proxies: the lowest device gives the job's shared
    segment. The connection stays open; its end means that the device is lost.

Operations of a **launcher** (one per rank)

``hello`` → kind "launcher", job, rank, pid (of the rank, as this machine's init namespace sees
    it; null before it started), started_at (seconds since the epoch)
``status`` → state ("running" | "exited"), channel (bool), epoch (last claimed), exit_status
``claim`` epoch, device → {} + fds [channel, image]. Deferred until the rank has made its channel.
    The image is a sparse memfd of the launcher's that outlives the proxies: swap space while the
    rank is served, its saved state while it is not. An epoch lower than one already claimed is
    refused. The connection stays open; when the rank ends the launcher sends the notice {"event":
    "exited", "exit_status": n} (negative: killed by that signal) on it.
``signal`` signum → {}. To the rank and all its children.

A launcher writes ``rank-<r>.exit`` (JSON: exit_status, time) atomically into the job's folder,
gives the notices, and ends.

"""

from __future__ import annotations

import array
import contextlib
import json
import os
import selectors
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

VERSION = 1
MESSAGE_BYTES_MAX = 4 << 20
_FDS_MAX = 16

Message = dict[str, Any]


class ControlError(Exception):
    """A request that was refused or could not be delivered. `code` is for programs."""

    def __init__(self, code: str, message: str):
        super().__init__(message)
        self.code = code
        self.message = message


class Channel:
    """One connection: messages in, messages out, with descriptors."""

    def __init__(self, sock: socket.socket):
        self.sock = sock
        self._in = bytearray()
        self._fds: list[int] = []
        self._out = bytearray()

    def close(self) -> None:
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()
        self.sock.close()

    def send(self, message: Message, fds: list[int] | None = None) -> None:
        """Send one message whole. Raises OSError when the peer is gone."""
        body = json.dumps({"v": VERSION, **message, **({"fds": len(fds)} if fds else {})}).encode()
        data = struct.pack("<I", len(body)) + body
        if fds:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds).tobytes())]
            sent = self.sock.sendmsg([data], rights)
            data = data[sent:]
        if data:
            self.sock.sendall(data)

    def fill(self) -> bool:
        """Read what is there (blocks if the socket does). False at the end of the stream."""
        space = socket.CMSG_SPACE(_FDS_MAX * 4)
        data, ancillary, _flags, _addr = self.sock.recvmsg(1 << 16, space, socket.MSG_CMSG_CLOEXEC)
        for level, kind, raw in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                received = array.array("i")
                received.frombytes(raw[: len(raw) - len(raw) % received.itemsize])
                self._fds.extend(received)
        self._in += data
        return bool(data)

    def take(self) -> tuple[Message, list[int]] | None:
        """The next whole message of what was read, or None. Raises ControlError on bad input."""
        if len(self._in) < 4:
            return None
        (length,) = struct.unpack_from("<I", self._in)
        if length > MESSAGE_BYTES_MAX:
            raise ControlError("too_long", f"a message of {length} bytes")
        if len(self._in) < 4 + length:
            return None
        body = bytes(self._in[4 : 4 + length])
        del self._in[: 4 + length]
        try:
            message = json.loads(body)
        except ValueError as error:
            raise ControlError("not_json", f"not JSON: {error}") from error
        if not isinstance(message, dict):
            raise ControlError("not_json", "a message must be a JSON object")
        if message.get("v") != VERSION:
            raise ControlError("version", f"speaks version {message.get('v')!r}, not {VERSION}")
        count = message.pop("fds", 0)
        if not isinstance(count, int) or not 0 <= count <= len(self._fds):
            raise ControlError("fds", "descriptors announced but not sent")
        fds, self._fds = self._fds[:count], self._fds[count:]
        return message, fds


class Client:
    """A connection to a server, one request at a time.

    Raises ControlError("unreachable") when nobody answers at `path`, ("timeout") when the
    reply does not come in time, and the server's own error otherwise.
    """

    def __init__(self, path: str | Path, timeout: float = 10.0):
        self.path = str(path)
        self._id = 0
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            sock.settimeout(timeout)
            sock.connect(self.path)
            check_peer(sock)
        except (OSError, ControlError) as error:
            sock.close()
            raise ControlError("unreachable", f"{self.path}: {error}") from error
        self.channel = Channel(sock)
        self.timeout = timeout

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.channel.close()

    def ask(
        self,
        op: str,
        *,
        timeout: float | None = None,
        fds: list[int] | None = None,
        **arguments: Any,
    ) -> tuple[Message, list[int]]:
        """Send a request, wait for its reply: (reply, descriptors). Notices are dropped."""
        self._id += 1
        limit = self.timeout if timeout is None else timeout
        deadline = time.monotonic() + limit
        try:
            self.channel.sock.settimeout(limit)
            self.channel.send({"id": self._id, "op": op, **arguments}, fds)
            while True:
                while (taken := self.channel.take()) is not None:
                    message, received = taken
                    if message.get("id") != self._id:
                        for fd in received:
                            os.close(fd)
                        continue
                    if not message.get("ok"):
                        error = message.get("error") or {}
                        raise ControlError(error.get("code", "error"), error.get("message", "?"))
                    return message, received
                self.channel.sock.settimeout(max(0.001, deadline - time.monotonic()))
                if not self.channel.fill():
                    raise ControlError("unreachable", f"{self.path}: the server ended")
        except TimeoutError as error:
            raise ControlError(
                "timeout", f"{self.path}: no reply to {op} in {limit:g} s"
            ) from error
        except OSError as error:
            raise ControlError("unreachable", f"{self.path}: {error}") from error


def call(path: str | Path, op: str, *, timeout: float = 10.0, **arguments: Any) -> Message:
    """One request on a connection of its own; descriptors of the reply are closed."""
    with Client(path, timeout) as client:
        reply, fds = client.ask(op, **arguments)
        for fd in fds:
            os.close(fd)
        return reply


def check_peer(sock: socket.socket) -> int:
    """The peer's pid, after checking that it is the same user (or root)."""
    size = struct.calcsize("3i")
    pid, uid, _gid = struct.unpack(
        "3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    )
    if uid not in (os.getuid(), 0):
        raise ControlError("denied", f"the peer is user {uid}")
    return int(pid)


def listen(path: str | Path) -> socket.socket:
    """A listening socket at `path`, mode 0600; a stale one of a dead server is replaced."""
    path = str(path)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    mask = os.umask(0o177)
    try:
        sock.bind(path)
    finally:
        os.umask(mask)
    sock.listen(64)
    return sock


class Request:
    """A request being served. Reply once, now or later, from the server's thread."""

    def __init__(self, server: Server, channel: Channel, message: Message, fds: list[int]):
        self.server, self.channel, self.message, self.fds = server, channel, message, fds
        self.op = str(message.get("op"))

    def __getitem__(self, name: str) -> Any:
        try:
            return self.message[name]
        except KeyError:
            raise ControlError("argument", f"{self.op} needs {name}") from None

    def get(self, name: str, default: Any = None) -> Any:
        return self.message.get(name, default)

    def reply(self, fds: list[int] | None = None, **result: Any) -> None:
        self.server.post(self.channel, {"id": self.message.get("id"), "ok": True, **result}, fds)

    def refuse(self, error: ControlError) -> None:
        body = {"code": error.code, "message": error.message}
        self.server.post(self.channel, {"id": self.message.get("id"), "ok": False, "error": body})


Handler = Callable[[Request], Message | None]


class Server:
    """Serves a socket in one thread, beside other descriptors and timers.

    A handler returns the reply's fields, or None if it replies later through the Request.
    ControlError raised in a handler is sent to the client; nothing a client sends ends the server.
    """

    def __init__(self, path: str | Path, handlers: dict[str, Handler]):
        self.path = str(path)
        self.handlers = handlers
        self.selector = selectors.DefaultSelector()
        self._listener = listen(path)
        self._channels: set[Channel] = set()
        self._stopping = False
        self._timers: list[tuple[float, Callable[[], None]]] = []
        self.on_close: Callable[[Channel], None] = lambda _channel: None
        self.add(self._listener, self._accept)

    def add(self, file: Any, callback: Callable[[], None]) -> None:
        """Call `callback` whenever `file` (anything with a descriptor) can be read."""
        self.selector.register(file, selectors.EVENT_READ, callback)

    def remove(self, file: Any) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self.selector.unregister(file)

    def after(self, seconds: float, callback: Callable[[], None]) -> None:
        """Call `callback` once, `seconds` from now."""
        self._timers.append((time.monotonic() + seconds, callback))

    def stop(self) -> None:
        self._stopping = True

    def run(self) -> None:
        """Serve until `stop`; then close everything and remove the socket."""
        try:
            while not self._stopping:
                self._turn()
        finally:
            for channel in list(self._channels):
                self._drop(channel)
            self._listener.close()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)
            self.selector.close()

    def _turn(self) -> None:
        now = time.monotonic()
        wait = min((due - now for due, _ in self._timers), default=None)
        for key, _events in self.selector.select(None if wait is None else max(0.0, wait)):
            key.data()
        now = time.monotonic()
        due = [entry for entry in self._timers if entry[0] <= now]
        self._timers = [entry for entry in self._timers if entry[0] > now]
        for _when, callback in due:
            callback()

    def post(self, channel: Channel, message: Message, fds: list[int] | None = None) -> None:
        """Send to a client; one that is gone or does not read is dropped."""
        if channel not in self._channels:
            return
        try:
            channel.sock.settimeout(5.0)
            channel.send(message, fds)
        except OSError:
            self._drop(channel)

    def _accept(self) -> None:
        sock, _ = self._listener.accept()
        try:
            check_peer(sock)
        except (ControlError, OSError):
            sock.close()
            return
        channel = Channel(sock)
        self._channels.add(channel)
        self.add(sock, lambda: self._readable(channel))

    def _readable(self, channel: Channel) -> None:
        try:
            alive = channel.fill()
            while channel in self._channels and (taken := channel.take()) is not None:
                self._dispatch(Request(self, channel, *taken))
        except (OSError, ControlError):
            alive = False
        if not alive:
            self._drop(channel)

    def _dispatch(self, request: Request) -> None:
        try:
            handler = self.handlers.get(request.op)
            if handler is None:
                raise ControlError("unknown_op", f"unknown operation {request.op!r}")
            result = handler(request)
            if result is not None:
                request.reply(**result)
        except ControlError as error:
            request.refuse(error)
        except (KeyError, TypeError, ValueError, OSError) as error:
            request.refuse(ControlError("bad_request", f"{request.op}: {error!r}"))
        finally:
            for fd in request.fds:
                with contextlib.suppress(OSError):
                    os.close(fd)

    def _drop(self, channel: Channel) -> None:
        if channel in self._channels:
            self._channels.discard(channel)
            self.remove(channel.sock)
            self.on_close(channel)
            channel.close()


class Outgoing:
    """A request to another server, made from inside a Server's thread without waiting.

    Connects now and again every 50 ms until `patience` seconds are over; then sends the request.
    The connection stays open after the reply: `on_notice` hears what comes later, `on_end` (once)
    that the other side has gone or refused, with the reason. Descriptors of the reply belong to
    `on_reply`.
    """

    def __init__(
        self,
        server: Server,
        path: str,
        request: Message,
        *,
        on_reply: Callable[[Message, list[int]], None],
        on_end: Callable[[str], None],
        on_notice: Callable[[Message], None] = lambda _message: None,
        patience: float = 10.0,
    ):
        self.server, self.path, self.request = server, path, request
        self.on_reply, self.on_end, self.on_notice = on_reply, on_end, on_notice
        self._deadline = time.monotonic() + patience
        self._channel: Channel | None = None
        self._closed = False
        self._connect()

    def close(self) -> None:
        """Hang up; no callback comes any more."""
        self._closed = True
        if self._channel:
            self.server.remove(self._channel.sock)
            self._channel.close()
            self._channel = None

    def _connect(self) -> None:
        if self._closed:
            return
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            sock.settimeout(5.0)
            sock.connect(self.path)
            check_peer(sock)
            channel = Channel(sock)
            channel.send({"id": 1, **self.request})
        except (OSError, ControlError) as error:
            sock.close()
            if time.monotonic() < self._deadline:
                self.server.after(0.05, self._connect)
            else:
                self._end(f"{self.path}: {error}")
            return
        self._channel = channel
        self.server.add(sock, self._readable)

    def _end(self, reason: str) -> None:
        if not self._closed:
            self.close()
            self.on_end(reason)

    def _readable(self) -> None:
        channel = self._channel
        if channel is None:
            return
        try:
            alive = channel.fill()
            while not self._closed and (taken := channel.take()) is not None:
                self._hear(*taken)
        except (OSError, ControlError) as error:
            self._end(f"{self.path}: {error}")
            return
        if not alive:
            self._end(f"{self.path}: the other side ended")

    def _hear(self, message: Message, fds: list[int]) -> None:
        if message.get("id") != 1:
            for fd in fds:
                os.close(fd)
            self.on_notice(message)
        elif message.get("ok"):
            self.on_reply(message, fds)
        else:
            error = message.get("error") or {}
            self._end(str(error.get("message", "refused")))

"""The control protocol between the reconciler, the proxies and the launchers.

It uses a Unix stream socket of mode 0600. A client must run as the same user and must not be a
rank's process (rankfold/peers.py). rankfold/messages.py defines the messages and their form. This
module has connections and the client side; rankfold/service.py has the server side.
"""

from __future__ import annotations

import array
import contextlib
import errno
import os
import socket
import struct
import time
from collections import deque
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from rankfold import peers
from rankfold.messages import FDS_MAX, VERSION, Fault, Head
from rankfold.plural import count

MESSAGE_BYTES_MAX = 4 << 20

Message = dict[str, Any]
T = TypeVar("T")

_head = msgspec.json.Decoder(Head)


class ControlError(Exception):
    """A request that was refused or could not be delivered. `code` is for programs."""

    def __init__(self, code: str, message: str):
        super().__init__(message)
        self.code = code
        self.message = message


def expect(kind: type[T], reply: object) -> T:
    """Convert a reply to `kind`. Raises ControlError("nonsense")."""
    try:
        return msgspec.convert(reply, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise ControlError("nonsense", f"the reply is not a {kind.__name__}: {error}") from error


def decode(decoder: msgspec.json.Decoder[T], body: bytes, code: str) -> T:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise ControlError(code, str(error)) from error


def encode(message: Message) -> bytes:
    """Encode a message with its length in front. Raises ControlError if it cannot be encoded."""
    try:
        body = msgspec.json.encode({"v": VERSION, **message})
    except UnicodeError as error:
        raise ControlError("argument", f"a text is not UTF-8: {error}") from error
    if len(body) > MESSAGE_BYTES_MAX:
        raise ControlError("too_long", f"a message of {count(len(body), 'byte')}")
    return struct.pack("<I", len(body)) + body


def refusal(number: int | None, error: ControlError) -> Message:
    return {"id": number, "ok": False, "error": {"code": error.code, "message": error.message}}


class Frame(msgspec.Struct, frozen=True):
    """One message as received: its head is checked, the rest is not. We own its descriptors."""

    head: Head
    body: bytes
    fds: list[int]

    def decode(self, kind: Any = Message) -> Any:
        """The whole message as `kind`. Raises ControlError("nonsense")."""
        return decode(msgspec.json.Decoder(kind), self.body, "nonsense")

    def close(self) -> None:
        close_all(self.fds)


def close_all(fds: list[int]) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
    fds.clear()


class Channel:
    """One connection: sends and receives messages with descriptors."""

    def __init__(self, sock: socket.socket):
        self.sock = sock
        self._in = bytearray()
        self._fds: list[int] = []
        self._out: deque[tuple[bytes, list[int]]] = deque()
        self.unsent = 0  # bytes in _out

    def close(self) -> None:
        close_all(self._fds)
        for _data, fds in self._out:
            close_all(fds)
        self._out.clear()
        self.sock.close()

    def send(self, message: Message, fds: list[int] | None = None) -> None:
        """Send one whole message. Raises OSError if the peer is gone or does not take it in time (a
        non-blocking socket: at once), ControlError."""
        self.queue(encode({**message, **({"fds": len(fds)} if fds else {})}), fds)
        if not self.flush():
            raise BlockingIOError(errno.EAGAIN, "the peer does not accept the message")

    def queue(self, data: bytes, fds: list[int] | None = None) -> None:
        """Queue `data` for `flush`, with duplicates of the descriptors."""
        self._out.append((data, [os.dup(fd) for fd in fds or ()]))
        self.unsent += len(data)

    def flush(self) -> bool:
        """Send what is queued. Returns False if the socket accepts no more now. Raises OSError."""
        while self._out:
            data, fds = self._out[0]
            rights = array.array("i", fds).tobytes()
            try:
                sent = self.sock.sendmsg(
                    [data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if fds else []
                )
            except BlockingIOError:
                return False
            close_all(fds)
            self.unsent -= sent
            if sent < len(data):
                self._out[0] = (data[sent:], [])
            else:
                self._out.popleft()
        return True

    def fill(self) -> bool:
        """Read available data (blocks if the socket does). Returns False at the end of the stream.

        Raises ControlError for more descriptors than a message may have, or than this process can
        hold.
        """
        space = socket.CMSG_SPACE(FDS_MAX * 4)
        data, ancillary, flags, _addr = self.sock.recvmsg(1 << 16, space, socket.MSG_CMSG_CLOEXEC)
        for level, kind, raw in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                received = array.array("i")
                received.frombytes(raw[: len(raw) - len(raw) % received.itemsize])
                self._fds.extend(received)
        if flags & socket.MSG_CTRUNC or len(self._fds) > FDS_MAX:
            raise ControlError("fds", "more descriptors than a message may have")
        self._in += data
        return bool(data)

    @property
    def partial(self) -> bool:
        """Whether part of a message has been received, but not all of it."""
        return bool(self._in)

    def take(self) -> Frame | None:
        """Return the next whole message that was read, or None. Raises ControlError on bad
        input."""
        if len(self._in) < 4:
            return None
        (length,) = struct.unpack_from("<I", self._in)
        if length > MESSAGE_BYTES_MAX:
            raise ControlError("too_long", f"a message of {count(length, 'byte')}")
        if len(self._in) < 4 + length:
            return None
        body = bytes(self._in[4 : 4 + length])
        del self._in[: 4 + length]
        head = decode(_head, body, "not_json")
        if head.v != VERSION:
            raise ControlError("version", f"has protocol version {head.v}, not {VERSION}")
        fds, self._fds = self._fds[: head.fds], self._fds[head.fds :]
        frame = Frame(head, body, fds)
        if len(fds) != head.fds or (self._fds and not self._in):
            frame.close()
            raise ControlError("fds", "a message arrived without the descriptors that it announced")
        return frame


class Client:
    """A connection to a server, one request at a time.

    Raises ControlError("unreachable") if no server answers at `path`, ("timeout") if the reply does
    not come in time, and otherwise the server's own error.
    """

    def __init__(self, path: str | Path, timeout: float = 10.0):
        self.path = str(path)
        self._id = 0
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            sock.settimeout(timeout)
            sock.connect(self.path)
            self.pid = peers.credentials(sock)  # of the server; 0: not known here
        except (OSError, ValueError, peers.Denied) as error:
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

    def interrupt(self) -> None:
        """Called from another thread: make a pending request fail, as if the server had ended."""
        with contextlib.suppress(OSError):
            self.channel.sock.shutdown(socket.SHUT_RDWR)

    def request(
        self,
        op: str,
        *,
        timeout: float | None = None,
        fds: list[int] | None = None,
        **arguments: Any,
    ) -> tuple[Message, list[int]]:
        """Send a request and wait for its reply: (reply, descriptors). Notices are dropped.

        A caller that relies on the reply's fields passes it to `expect`.
        """
        self._id += 1
        limit = self.timeout if timeout is None else timeout
        deadline = time.monotonic() + limit
        try:
            self.channel.sock.settimeout(limit)
            with contextlib.suppress(BrokenPipeError):  # its reason for closing may be readable
                self.channel.send({"id": self._id, "op": op, **arguments}, fds)
            while True:
                while (frame := self.channel.take()) is not None:
                    if (answer := self._answer(frame)) is not None:
                        return answer
                if (left := deadline - time.monotonic()) <= 0:  # notices may arrive forever
                    raise TimeoutError
                self.channel.sock.settimeout(left)
                if not self.channel.fill():
                    raise ControlError(
                        "unreachable", f"{self.path}: the server closed the connection"
                    )
        except TimeoutError as error:
            raise ControlError(
                "timeout", f"{self.path}: timed out: no reply to {op} in {limit:g} s"
            ) from error
        except OSError as error:
            raise ControlError("unreachable", f"{self.path}: {error}") from error

    def _answer(self, frame: Frame) -> tuple[Message, list[int]] | None:
        """The reply, if it is to our request. Raises ControlError if it is a refusal."""
        head = frame.head
        ours = head.id == self._id or (head.id is None and head.ok is False)
        if not ours or not head.ok:
            frame.close()
        if not ours:
            return None
        if not head.ok:
            fault = head.error or Fault("error", "refused without a reason")
            raise ControlError(fault.code, fault.message)
        try:
            return frame.decode(), frame.fds
        except ControlError:
            frame.close()
            raise


def call(path: str | Path, op: str, *, timeout: float = 10.0, **arguments: Any) -> Message:
    """Make one request on a connection of its own; descriptors of the reply are closed."""
    with Client(path, timeout) as client:
        reply, fds = client.request(op, **arguments)
        close_all(fds)
        return reply

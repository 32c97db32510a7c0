"""A server of the control protocol: one thread that accepts, checks, dispatches and answers.

No input stops it. Data that is not a message of the protocol is refused and ends the sender's
connection. A client that sends nothing, stops in the middle of a message or does not read its
replies loses its connection after `PATIENCE_S`. When descriptors are short, connections that never
made a request are closed first. A socket whose name was removed is made again under that name.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import operator
import os
import selectors
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from rankfold import paths, peers
from rankfold.control import (
    MESSAGE_BYTES_MAX,
    Channel,
    ControlError,
    Frame,
    Message,
    decode,
    encode,
    refusal,
)
from rankfold.log import area
from rankfold.messages import Operation

UNSENT_BYTES_MAX = 4 * MESSAGE_BYTES_MAX  # bytes of unsent replies to one client
PATIENCE_S = 10.0
ACCEPT_AGAIN_S = 0.1  # while there is no descriptor for another connection
NAME_AGAIN_S = 1.0  # between two checks that a socket still has its name

log = area(__file__)

T = TypeVar("T")
M = TypeVar("M", bound=Operation)

_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def _encode_reply(message: Message) -> bytes:
    """Encode a reply. Text that is not valid UTF-8, as names of files may be, is written with
    ``?``."""
    try:
        return encode(message)
    except ControlError as error:
        if error.code != "argument":
            return encode(refusal(message.get("id"), error))
    return encode(json.loads(json.dumps(message, ensure_ascii=False).encode(errors="replace")))


def listen(path: str | Path, mode: int = 0o600) -> socket.socket:
    """Return a listening socket at `path`; replaces a stale socket of a dead server."""
    path = str(path)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    os.fchmod(sock.fileno(), 0o600)  # Linux gives the file this mode, less the umask of our threads
    sock.bind(path)
    if mode != 0o600:
        os.chmod(path, mode)
    sock.listen(64)
    sock.setblocking(False)
    return sock


class Request(Generic[M]):
    """A request being served. The handler replies once, now or later, in the server's thread."""

    def __init__(self, server: Server, channel: Channel, message: M, fds: list[int]):
        self.server, self.channel, self.message, self.fds = server, channel, message, fds

    def reply(self, fds: list[int] | None = None, **result: Any) -> None:
        self.server.post(self.channel, {"id": self.message.id, "ok": True, **result}, fds)

    def refuse(self, error: ControlError) -> None:
        self.server.post(self.channel, refusal(self.message.id, error))


Handler = Callable[[Request[Any]], Message | None]


class Listener:
    """Accepts connections to a server's socket, and survives a shortage of descriptors.

    A socket lives for weeks, often in /tmp. If its name is removed there, it gets its name again,
    in folders that are private again; clients with the old socket (a rank has it in a mount) still
    reach us. That does not happen if the folder that the server serves is gone: its name may belong
    to another server by now.

    `admit` gets each connection, non-blocking, and owns it. `free_space` closes a connection that
    no client needs; False if there is none. `mode`: of the socket's file.
    """

    def __init__(
        self,
        server: Server,
        path: str | Path,
        admit: Callable[[socket.socket], None],
        free_space: Callable[[], bool],
        mode: int = 0o600,
    ):
        self.server, self.admit, self.free_space = server, admit, free_space
        self.path, self.mode = Path(path), mode
        self._folder = _Folder(self.path.parent)
        self._sockets: list[socket.socket] = []
        self._closed, self._trouble = False, ""
        self._listen()
        server.after(NAME_AGAIN_S, self._restore_name)

    def close(self) -> None:
        self._closed = True
        for sock in self._sockets:
            self.server.remove(sock)
            sock.close()
        self._folder.close()

    def _listen(self) -> None:
        sock = listen(self.path, self.mode)
        self._sockets.append(sock)
        self.server.add(sock, lambda: self._accept(sock))

    def _restore_name(self) -> None:
        """Make the socket's name again if it was removed; another server's socket of that name is
        left alone."""
        if self._closed:
            return
        if not os.path.lexists(self.path):
            try:
                self._name_again()
                self._trouble = ""
                log.warning("%s was removed, and has been created again", self.path)
            except OSError as error:
                if self._trouble != (text := str(error)):
                    self._trouble = text
                    log.warning("%s was removed, and no process can connect: %s", self.path, text)
        self.server.after(NAME_AGAIN_S, self._restore_name)

    def _name_again(self) -> None:
        """Make the socket's name again. Raises OSError."""
        serves = self.server.serves
        if serves and not serves.is_there():
            raise FileNotFoundError(f"{serves.path} was removed, too")
        if not self._folder.is_there() and not peers.identified():  # ranks would see another folder
            raise PermissionError(
                "this kernel (before 6.5) cannot distinguish ranks from other processes"
            )
        paths.private_again(self.path.parent)
        self._listen()

    def _accept(self, listening: socket.socket) -> None:
        try:
            sock, _ = listening.accept()
        except OSError as error:
            if error.errno in _NO_DESCRIPTORS and not self.free_space():
                self._pause(listening)
            return  # otherwise the client hung up before we accepted
        sock.setblocking(False)
        self.admit(sock)

    def _pause(self, listening: socket.socket) -> None:
        """Pause accepting, as no connection can be closed; new ones wait in the socket's queue."""
        self.server.remove(listening)
        self.server.after(ACCEPT_AGAIN_S, lambda: self._accept_again(listening))

    def _accept_again(self, listening: socket.socket) -> None:
        if not self._closed:
            self.server.add(listening, lambda: self._accept(listening))


class _Folder:
    """A folder's present inode, held open so that its number is not reused."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def is_there(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._fd), os.stat(self.path))
        except OSError:
            return False

    def close(self) -> None:
        os.close(self._fd)


@dataclass
class _Visit:
    """A server's record of a connection. Times are CLOCK_MONOTONIC."""

    since: float = field(default_factory=time.monotonic)
    spoke: bool = False  # it has made a request
    hung_since: float | None = None  # in the middle of a message, or with unread replies
    ending: bool = False  # nothing more is read; closed when its replies are sent


class Server:
    """Serves a socket in one thread, together with other descriptors and timers.

    `handlers`: the function for each operation. It gets the checked request, and returns the
    reply's fields, or None if it replies later through the Request. A ControlError raised in a
    handler is sent to the client. Any other exception is a defect of ours: it is logged, answered
    as "internal", and ends the connection. `gate` decides which peers may connect. `serves`: the
    folder of what the server serves, None if it has none.
    """

    def __init__(
        self,
        path: str | Path,
        handlers: Mapping[type[Operation], Handler],
        gate: peers.Gate | None = None,
        serves: str | Path | None = None,
    ):
        self.path = str(path)
        self.gate = gate or peers.Gate()
        self.serves = _Folder(serves) if serves else None
        self._handlers = dict(handlers)
        self._names = {str(kind.__struct_config__.tag) for kind in handlers}
        union: Any = functools.reduce(operator.or_, handlers)
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(union)
        self.selector = selectors.DefaultSelector()
        self._visits: dict[Channel, _Visit] = {}
        self._stopping = self._sweeping = False
        self._denied = ""
        self._timers: list[tuple[float, Callable[[], None]]] = []
        self.on_close: Callable[[Channel], None] = lambda _channel: None
        self._listener = Listener(self, path, self._admit, self._free_space)

    def add(self, file: Any, callback: Callable[[], None], write: bool = False) -> None:
        """Call `callback` whenever `file` (anything with a descriptor) can be read (or written)."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if write else 0)
        self.selector.register(file, events, callback)

    def remove(self, file: Any) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self.selector.unregister(file)

    def after(self, seconds: float, callback: Callable[[], None]) -> None:
        """Call `callback` once, `seconds` from now."""
        self._timers.append((time.monotonic() + seconds, callback))

    def expedite(self, callback: Callable[[], None]) -> None:
        """If `callback` waits for its time (`after`), call it in the next turn."""
        self._timers = [(0.0 if each == callback else due, each) for due, each in self._timers]

    def stop(self) -> None:
        self._stopping = True

    def clients(self) -> int:
        """How many connections are open."""
        return len(self._visits)

    def run(self) -> None:
        """Serve until `stop`; then close everything and remove the socket."""
        try:
            while not self._stopping:
                self._turn()
        finally:
            for channel in list(self._visits):
                self._drop(channel)
            self._listener.close()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)
            self.selector.close()
            self.gate.close()
            if self.serves:
                self.serves.close()

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

    # ---- connections

    def _admit(self, sock: socket.socket) -> None:
        channel = Channel(sock)
        try:
            self.gate.check(sock)
        except (peers.Denied, OSError) as error:
            self.refused(str(error))
            with contextlib.suppress(OSError):
                channel.queue(encode(refusal(None, ControlError("denied", str(error)))))
                channel.flush()
            channel.close()
            return
        self._visits[channel] = _Visit()
        self.add(sock, lambda: self._ready(channel))
        if not self._sweeping:
            self._sweeping = True
            self.after(PATIENCE_S / 2, self._sweep)

    def refused(self, reason: str) -> None:
        """Log a refused connection; repeated attempts are logged once."""
        if reason != self._denied:
            self._denied = reason
            log.warning("%s: refused a connection: %s", self.path, reason)

    def _sweep(self) -> None:
        """Close connections whose clients do nothing with them."""
        patient = time.monotonic() - PATIENCE_S
        for channel, visit in list(self._visits.items()):
            silent = not visit.spoke and visit.since < patient
            if silent or (visit.hung_since is not None and visit.hung_since < patient):
                self._drop(channel)
        self._sweeping = bool(self._visits)
        if self._sweeping:
            self.after(PATIENCE_S / 2, self._sweep)

    def _free_space(self) -> bool:
        for channel, visit in self._visits.items():  # the oldest first
            if not visit.spoke:
                self._drop(channel)
                return True
        return False

    def _drop(self, channel: Channel) -> None:
        if self._visits.pop(channel, None) is not None:
            self.remove(channel.sock)
            self._logged(lambda: self.on_close(channel))
            channel.close()

    def _logged(self, step: Callable[[], None]) -> bool:
        """Run `step`. Logs an exception, a defect of ours, and does not pass it on."""
        try:
            step()
        except Exception:
            log.exception("%s: an internal error of rankfold", self.path)
            return False
        return True

    # ---- messages

    def _ready(self, channel: Channel) -> None:
        self._flush(channel)  # before reading: the client may be waiting for our reply
        visit = self._visits.get(channel)
        if visit is None or visit.ending:
            return
        try:
            alive = channel.fill()
            while channel in self._visits and (frame := channel.take()) is not None:
                self._dispatch(channel, visit, frame)
        except (BlockingIOError, InterruptedError):
            return
        except ControlError as error:
            self._end(channel, refusal(None, error))
            return
        except OSError:
            alive = False
        if not alive:
            self._drop(channel)
        else:
            self._note(channel)

    def _dispatch(self, channel: Channel, visit: _Visit, frame: Frame) -> None:
        number = frame.head.id
        try:
            request = Request(self, channel, self._read(frame), frame.fds)
            visit.spoke = True
            result = self._handlers[type(request.message)](request)
            if result is not None:
                request.reply(**result)
        except ControlError as error:
            self.post(channel, refusal(number, error))
        except Exception as error:
            log.exception("%s: an internal error in serving %s", self.path, frame.head.op)
            kind = type(error).__name__  # not its text: that may be a value of an environment
            text = f"{frame.head.op}: an internal error of rankfold ({kind}); its log says where"
            self._end(channel, refusal(number, ControlError("internal", text)))
        finally:
            frame.close()

    def _read(self, frame: Frame) -> Operation:
        """Decode and check a request. Raises ControlError naming what is wrong."""
        head = frame.head
        if head.op not in self._names:
            raise ControlError("unknown_op", f"unknown operation {head.op!r:.80}")
        try:
            message: Operation = decode(self._decoder, frame.body, "argument")
        except ControlError as error:
            raise ControlError("argument", f"{head.op}: {error.message}") from error
        if message.takes_fds != len(frame.fds):
            text = f"{head.op} takes {message.takes_fds} descriptors, not {len(frame.fds)}"
            raise ControlError("fds", text)
        return message

    def post(self, channel: Channel, message: Message, fds: list[int] | None = None) -> None:
        """Send to a client; a client that is gone or does not read is dropped."""
        if channel not in self._visits:
            return
        try:
            channel.queue(_encode_reply({**message, **({"fds": len(fds)} if fds else {})}), fds)
        except OSError:  # no descriptor is left to duplicate one for the message
            self._drop(channel)
            return
        if channel.unsent > UNSENT_BYTES_MAX:
            self._drop(channel)
        else:
            self._flush(channel)

    def _end(self, channel: Channel, last_words: Message) -> None:
        """Send a last message, then close the connection."""
        self.post(channel, last_words)
        if channel in self._visits:
            self._visits[channel].ending = True
            self._flush(channel)

    def _flush(self, channel: Channel) -> None:
        if channel not in self._visits:
            return
        try:
            channel.flush()
        except OSError:
            self._drop(channel)
            return
        if self._visits[channel].ending and not channel.unsent:
            self._drop(channel)
            return
        self._note(channel)

    def _note(self, channel: Channel) -> None:
        """Note since when the connection hangs, and select the events to wait for."""
        visit = self._visits.get(channel)
        if visit is None:
            return
        if not (channel.partial or channel.unsent or visit.ending):
            visit.hung_since = None
        elif visit.hung_since is None:
            visit.hung_since = time.monotonic()
        events = 0 if visit.ending else selectors.EVENT_READ
        if channel.unsent:
            events |= selectors.EVENT_WRITE
        key = self.selector.get_key(channel.sock)
        if key.events != events:
            self.selector.modify(channel.sock, events, key.data)


class Outgoing(Generic[T]):
    """A request to another server, made in a Server's thread without waiting.

    Tries to connect every 50 ms until `patience` seconds have passed, then sends the request. The
    connection stays open after the reply, which must be a `reply` with `descriptors` descriptors;
    these belong to `on_reply`. `on_notice` gets later messages. `on_end` is called once, with the
    reason, when the server ends the connection, refuses (`refused` has the code then), or sends
    something that is not a message.
    """

    def __init__(
        self,
        server: Server,
        path: str,
        request: Message,
        *,
        reply: type[T],
        descriptors: int,
        on_reply: Callable[[T, list[int]], None],
        on_end: Callable[[str], None],
        on_notice: Callable[[Frame], None] = lambda _frame: None,
        patience: float = 10.0,
    ):
        self.server, self.path, self.request = server, path, request
        self.kind, self.descriptors = reply, descriptors
        self.on_reply, self.on_end, self.on_notice = on_reply, on_end, on_notice
        self._deadline = time.monotonic() + patience
        self._channel: Channel | None = None
        self._closed = False
        self.refused = ""
        self._connect()

    def close(self) -> None:
        """Close the connection; no callback is called afterwards."""
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
            sock.setblocking(False)  # if the server's queue is full, connect fails and is retried
            sock.connect(self.path)
            peers.credentials(sock)
            channel = Channel(sock)
            channel.queue(encode({"id": 1, **self.request}))
            if not channel.flush():
                raise OSError(errno.EAGAIN, "the peer does not accept requests")
        except (OSError, ValueError, ControlError, peers.Denied) as error:
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
            while not self._closed and (frame := channel.take()) is not None:
                self._handle_frame(frame)
        except BlockingIOError:
            return
        except (OSError, ControlError) as error:
            self._end(f"{self.path}: {error}")
            return
        except Exception as error:
            log.exception("%s: an internal error after its reply", self.path)
            self._end(f"{self.path}: an internal error of rankfold: {error!r}")
            return
        if not alive:
            self._end(f"{self.path}: the peer closed the connection")

    def _handle_frame(self, frame: Frame) -> None:
        head = frame.head
        if head.ok is False and head.id in (1, None):
            frame.close()
            self.refused = head.error.code if head.error else "refused"
            self._end(head.error.message if head.error else "refused")
        elif head.id != 1:
            frame.close()
            self.on_notice(frame)
        else:
            self._take(frame)

    def _take(self, frame: Frame) -> None:
        try:
            reply: T = frame.decode(self.kind)
            if len(frame.fds) != self.descriptors:
                text = f"it brought {len(frame.fds)} descriptors, not {self.descriptors}"
                raise ControlError("nonsense", text)
        except ControlError:
            frame.close()
            raise
        self.on_reply(reply, frame.fds)

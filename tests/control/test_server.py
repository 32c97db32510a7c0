"""Promise: a server survives clients that misbehave, and errors of its own handlers."""

from __future__ import annotations

import errno
import itertools
import logging
import os
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from rankfold import control, messages, peers, service
from rankfold.control import Client, ControlError
from support.fleet import until

Request = service.Request[Any]


class Text(messages.Operation, frozen=True, tag="text"):
    """→ {text}: so many bytes."""

    bytes: messages.Size


class Break(messages.Operation, frozen=True, tag="break"):
    """A handler with a fault."""


@contextmanager
def serving(path: Path, serves: Path | None = None) -> Iterator[service.Server]:
    """A server in a thread of this process, with a handler that has a fault."""

    def broken(_request: Request) -> control.Message:
        raise ZeroDivisionError("a fault of ours")

    server = service.Server(
        path,
        {
            messages.Hello: lambda _request: {"kind": "test"},
            messages.DebugText: lambda _request: {"text": "\udcff"},
            Text: lambda request: {"text": "x" * request.message.bytes},
            Break: broken,
        },
        serves=serves,
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        with suppress(ControlError), Client(path):
            pass  # only wakes it up
        thread.join()


def refusal(ask: Callable[[], object]) -> str:
    with pytest.raises(ControlError) as caught:
        ask()
    return caught.value.code


def raw(path: Path, data: bytes) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(20)
    sock.connect(str(path))
    sock.sendall(data)
    return sock


def framed(body: bytes) -> bytes:
    return struct.pack("<I", len(body)) + body


def test_a_fault_of_a_handler_costs_its_connection_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "s"
    with serving(path), Client(path) as other, Client(path) as client:
        other.request("hello")
        assert refusal(lambda: client.request("break")) == "internal"
        assert refusal(lambda: client.request("hello")) == "unreachable"
        assert other.request("hello")[0]["kind"] == "test"
    (record,) = [r for r in caplog.records if r.levelno >= logging.ERROR]
    assert record.exc_info and record.exc_info[0] is ZeroDivisionError


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"v":1,"id":1,"op":' + b"[" * 100_000,
        b'{"v":1,"id":1,"op":"hello","x":' + b'{"a":' * 100_000,
        b'{"v":Infinity}',
        b'{"v":1,"id":1,"op":"hello","x":NaN}',
        b'{"v":1,"id":%d}' % 2**70,
        b'{"v":1,"id":1,"op":"\\ud800"}',
        b'{"v":1,"id":1,"op":"\xff"}',
        b'{"v":2,"id":1,"op":"hello"}',
        b'{"v":1,"id":1,"op":"hello","fds":1}',
        b"null",
        b"",
    ],
    ids=lambda body: repr(body[:40]),
)
def test_an_invalid_message_is_answered_and_closes_its_connection(
    tmp_path: Path, body: bytes
) -> None:
    path = tmp_path / "s"
    with serving(path), Client(path) as other, Client(path) as client:
        client.channel.sock.sendall(framed(body))
        client.channel.sock.settimeout(20)
        assert client.channel.fill()
        frame = client.channel.take()
        assert frame is not None and frame.head.id is None and frame.head.error is not None
        assert not client.channel.fill()
        assert other.request("hello")[0]["kind"] == "test"


def test_wrong_fields_are_named_and_the_connection_continues(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with serving(path), Client(path) as client:
        for wrong in ({}, {"bytes": "1"}, {"bytes": 2**70}, {"bytes": 1.5}, {"bytes": 1, "x": 1}):
            assert refusal(lambda: client.request("text", **wrong)) == "argument"  # noqa: B023
        assert refusal(lambda: client.request("nonsense")) == "unknown_op"
        with pytest.raises(ControlError, match=r"text: .*got `str` - at `\$.bytes`"):
            client.request("text", bytes="1")
        assert refusal(lambda: client.request("hello", fds=[0])) == "fds"
        assert client.request("text", bytes=3)[0]["text"] == "xxx"


def test_descriptors_that_were_not_announced_are_closed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with serving(path):
        before = len(os.listdir("/proc/self/fd"))
        for announced, count in ((0, 1), (0, messages.FDS_MAX), (0, 200), (9, 5)):
            with raw(path, b"") as sock:
                hello = framed(b'{"v":1,"id":1,"op":"hello","fds":%d}' % announced)
                socket.send_fds(sock, [hello], [0] * count)
                while sock.recv(1 << 16):
                    pass
        with Client(path) as client:
            client.request("hello")
            assert len(os.listdir("/proc/self/fd")) <= before + 2


def test_text_that_is_no_utf8_is_sent_with_question_marks(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with serving(path), Client(path) as client:
        assert client.request("dump")[0]["text"] == "?"
        assert refusal(lambda: client.request("hello", x="\udcff")) == "argument"


def test_a_client_that_does_not_take_replies_delays_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "PATIENCE_S", 1000.0)
    path, size = tmp_path / "s", control.MESSAGE_BYTES_MAX // 2
    with serving(path) as server, Client(path) as other, Client(path) as deaf:
        for number in range(1 + service.UNSENT_BYTES_MAX // size):
            deaf.channel.send({"id": number, "op": "text", "bytes": size})
        assert other.request("hello")[0]["kind"] == "test"
        other.request("text", bytes=size)
        turns = 0
        while server.clients() > 1:  # it has had too much on its account
            other.request("hello")
            assert (turns := turns + 1) < 1000


def test_notices_do_not_put_off_the_end_of_a_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It times out although there is more to read, as if they arrived forever."""
    notices = framed(b'{"v":1,"op":"exited"}') * 3000  # more than is read at once
    with (
        service.listen(tmp_path / "s") as listener,
        Client(tmp_path / "s") as client,
        listener.accept()[0] as server,
    ):
        server.sendall(notices + framed(b'{"v":1,"id":1,"ok":true}'))
        times = itertools.chain([0.0], itertools.repeat(11.0))
        monkeypatch.setattr(time, "monotonic", lambda: next(times))
        assert refusal(lambda: client.request("hello", timeout=10)) == "timeout"


def test_a_socket_that_takes_nothing_and_must_not_block_is_an_error(tmp_path: Path) -> None:
    with service.listen(tmp_path / "s") as listener, socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(tmp_path / "s"))
        sock.setblocking(False)
        channel = control.Channel(sock)
        with pytest.raises(BlockingIOError, match="does not accept the message"):
            while True:
                channel.send({"id": 1, "op": "hello", "text": "x" * 100_000})
        assert listener.fileno() >= 0


def test_a_reply_that_is_too_long_is_a_refusal(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with serving(path), Client(path) as client:
        size = control.MESSAGE_BYTES_MAX
        assert refusal(lambda: client.request("text", bytes=size)) == "too_long"
        assert client.request("hello")[0]["kind"] == "test"


def test_the_silent_and_those_in_mid_message_are_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "PATIENCE_S", 0.1)
    path = tmp_path / "s"
    with serving(path), Client(path) as idle:
        idle.request("hello")
        hello = framed(b'{"v":1,"id":1,"op":"hello"}')
        with (
            raw(path, b"") as silent,
            raw(path, hello[:-1]) as half,
            raw(path, hello * 2 + b"x") as torn,
        ):
            for sock in (silent, half, torn):
                while sock.recv(1 << 16):
                    pass
        assert idle.request("hello")[0]["kind"] == "test", "who has asked once may be idle"


def test_without_descriptors_strangers_go_and_the_rest_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`accept` finds no descriptor: never called again and again, and no known client is lost."""
    path = tmp_path / "s"
    with serving(path) as server, Client(path) as known:
        known.request("hello")
        short, calls = threading.Event(), 0
        short.set()
        accept = socket.socket.accept

        def without(sock: socket.socket) -> tuple[socket.socket, Any]:
            nonlocal calls
            calls += 1
            if short.is_set():
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return accept(sock)

        with raw(path, b"") as stranger:
            while server.clients() < 2:
                known.request("hello")
            monkeypatch.setattr(socket.socket, "accept", without)
            with raw(path, framed(b'{"v":1,"id":1,"op":"hello"}')) as late:
                assert stranger.recv(1) == b"", "it never said anything"
                while calls < 3:
                    assert known.request("hello")[0]["kind"] == "test"
                asked = 0
                while calls < 5:
                    known.request("hello")
                    asked += 1
                assert asked > 2, "the server rests between two attempts"
                short.clear()
                assert late.recv(4), "it has waited, and is served"
        assert server.clients() >= 1


@pytest.fixture
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "NAME_AGAIN_S", 0.02)


def listens(path: Path) -> bool:
    """A socket has its name before it accepts connections."""
    try:
        Client(path).close()
    except ControlError:
        return False
    return True


@pytest.mark.usefixtures("looks_often")
@pytest.mark.parametrize("what", ["socket", "folder", "both folders"])
def test_a_removed_socket_is_made_again(tmp_path: Path, what: str) -> None:
    """By its name, and by what has the old one; who is connected notices nothing."""
    path = tmp_path / "user" / "fleet" / "socket"
    path.parent.mkdir(mode=0o700, parents=True)
    path.parent.parent.chmod(0o700)
    gone = {"socket": path, "folder": path.parent, "both folders": path.parent.parent}[what]
    with serving(path), Client(path) as before:
        old = os.open(path, os.O_PATH)
        gone.rename(tmp_path / "removed")  # all of it at once: the server looks again and again
        until(lambda: listens(path))
        for where in (path, f"/proc/self/fd/{old}"):
            with Client(where) as client:
                assert client.request("hello")[0]["kind"] == "test"
        assert before.request("hello")[0]["kind"] == "test"
        for folder in (path.parent, path.parent.parent):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        os.close(old)
    assert not path.exists()


@pytest.mark.usefixtures("looks_often")
@pytest.mark.parametrize("inner", [True, False], ids=["its folder", "the one above"])
def test_a_socket_is_not_made_in_a_folder_of_another_user(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, inner: bool
) -> None:
    """In /tmp any user may be faster than we are. It is said once."""
    path = tmp_path / "user" / "fleet" / "socket"
    path.parent.mkdir(mode=0o700, parents=True)
    path.parent.parent.chmod(0o700)
    folder = path.parent if inner else path.parent.parent
    with serving(path), caplog.at_level(logging.WARNING):
        folder.chmod(0o777)  # as unsafe as another user's
        path.unlink()
        until(lambda: caplog.records)
        time.sleep(0.1)
        why = f"{folder} must be a folder of your own with mode 0700"
        if not inner:
            why = f"other users may change files in {folder}"
        assert [record.getMessage() for record in caplog.records] == [
            f"{path} was removed, and no process can connect: {why}"
        ]
        folder.chmod(0o700)
        until(lambda: listens(path))


@pytest.mark.usefixtures("looks_often")
def test_another_servers_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with serving(path):
        other = service.listen(path)
        number = path.stat().st_ino
        time.sleep(0.1)
        assert path.stat().st_ino == number
        other.close()


@pytest.mark.usefixtures("looks_often")
@pytest.mark.parametrize("again", [False, True], ids=["gone", "another"])
def test_a_server_of_what_is_gone_takes_no_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, again: bool
) -> None:
    """A user who removed a fleet's folder and starts another fleet there can use the same names."""
    state, path = tmp_path / "state", tmp_path / "socket"
    state.mkdir()
    with serving(path, serves=state), caplog.at_level(logging.WARNING):
        state.rename(tmp_path / "removed")
        if again:
            state.mkdir()
        path.unlink()
        until(lambda: caplog.records)
        time.sleep(0.1)
        assert f"{state} was removed, too" in caplog.text and not path.exists()
        if again:
            state.rmdir()
        (tmp_path / "removed").rename(state)
        until(lambda: listens(path))


@pytest.mark.usefixtures("looks_often")
def test_where_ranks_cannot_be_recognised_no_folder_is_made_that_they_would_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Before Linux 6.5 a mount hides the sockets from them, and it goes with the folder."""
    monkeypatch.setattr(peers, "identified", lambda: False)
    path = tmp_path / "fleet" / "socket"
    path.parent.mkdir(mode=0o700)
    with serving(path), caplog.at_level(logging.WARNING):
        path.unlink()
        until(lambda: listens(path))
        path.parent.rename(tmp_path / "removed")
        until(lambda: "before 6.5" in caplog.text)
        path.parent.mkdir(mode=0o700)  # by another server
        time.sleep(0.1)
        assert not path.exists()
        path.parent.rmdir()
        (tmp_path / "removed").rename(path.parent)


def test_a_scheduled_call_can_be_made_at_once(tmp_path: Path) -> None:
    server, called = service.Server(tmp_path / "socket", {messages.Hello: lambda _: {}}), []
    server.after(3600, server.stop)
    server.after(7200, lambda: called.append("another"))
    server.expedite(server.stop)
    server.run()
    assert called == []

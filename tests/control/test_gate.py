"""Refused: a process of another PID namespace, and one that has exited. The mark of ranks."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from rankfold import peers
from support import privileges


def in_child(step: Callable[[], None]) -> int:
    """`step` in a process of its own; its exit status."""
    pid = os.fork()
    if pid == 0:
        try:
            step()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.fixture
def listener(tmp_path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(tmp_path / "s"))
    sock.listen()
    return sock


def met(listener: socket.socket, as_what: Callable[[], None], stays: bool = True) -> str:
    """Why a child that connects, after it made itself something, is not let in; empty if it is."""
    path, (read_end, write_end) = listener.getsockname(), os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            as_what()
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect(path)
                if stays:
                    os.read(read_end, 1)
        finally:
            os._exit(0)
    sock, _ = listener.accept()
    if not stays:
        os.waitpid(pid, 0)
    gate = peers.Gate()
    try:
        gate.check(sock)
    except peers.Denied as denied:
        return str(denied)
    finally:
        gate.close()
        sock.close()
        listener.close()
        os.write(write_end, b"x")
        if stays:
            os.waitpid(pid, 0)
        os.close(write_end)
        os.close(read_end)
    return ""


@pytest.mark.parametrize("before", [resource.RLIM_INFINITY, peers.RANK_LIMIT_US + 1, 10**9])
def test_the_mark_is_set_whatever_limit_there_was(before: int) -> None:
    def marked() -> None:
        resource.setrlimit(resource.RLIMIT_RTTIME, (10**6, before))
        peers.mark()
        soft, hard = resource.getrlimit(resource.RLIMIT_RTTIME)
        assert (soft, hard) == (10**6, min(before % 2**64, peers.RANK_LIMIT_US))

    assert in_child(marked) == 0


def test_a_process_of_another_pid_namespace_is_not(listener: socket.socket) -> None:
    privileges.need_namespaces()
    clone_newpid = 0x20000000

    def inside() -> None:
        import ctypes

        assert ctypes.CDLL(None).unshare(clone_newpid) == 0
        if (pid := os.fork()) > 0:  # its first process continues
            os.waitpid(pid, 0)
            os._exit(0)

    assert "its own pid namespace" in met(listener, inside)


def test_one_that_has_ended_is_not(listener: socket.socket) -> None:
    assert "has exited" in met(listener, lambda: None, stays=False)

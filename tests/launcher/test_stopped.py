"""Promise: a process that a signal has stopped is reported, whatever its program calls itself."""

from __future__ import annotations

import ctypes
import os
import signal
import time

from rankfold.interpose.launcher.rank import process

PR_SET_NAME = 15


def named(name: bytes, stops: bool) -> int:
    """The pid of a child of that name, which is stopped or waits."""
    if pid := os.fork():
        return pid
    ctypes.CDLL(None).prctl(PR_SET_NAME, name, 0, 0, 0)
    if stops:
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(60)
    os._exit(0)


def test_a_name_deceives_no_reader_and_no_terminal() -> None:
    proc = os.open("/proc", os.O_RDONLY)
    pids = [named(b"\x1b[2J) S (", True), named(b"runs) T (", False)]
    try:
        os.waitpid(pids[0], os.WUNTRACED)
        found = process.stopped(proc)
        assert [each for each in found if str(pids[0]) in each] == [f"?[2J) S ( (pid {pids[0]})"]
        assert not [each for each in found if str(pids[1]) in each]
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(proc)

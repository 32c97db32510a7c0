"""Promise: a proxy whose loop hangs says so, with the thread; the call that waits for it returns
when the loop continues."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from support.patience import scaled
from support.ring_client import device

STOPS = """
import ctypes, os, signal, sys
ptrace, thread = ctypes.CDLL(None, use_errno=True).ptrace, int(sys.argv[1])
SEIZE, INTERRUPT, DETACH, ALL = 0x4206, 0x4207, 17, 0x40000000
for request in (SEIZE, INTERRUPT):
    if ptrace(request, thread, None, None):
        sys.exit(os.strerror(ctypes.get_errno()))
os.waitpid(thread, ALL)
print("stopped", flush=True)
sys.stdin.read()
ptrace(DETACH, thread, None, None)
"""


def loop_of_this_process() -> int:
    (found,) = (
        int(task.name)
        for task in Path("/proc/self/task").iterdir()
        if (task / "comm").read_text() == "device-loop\n"
    )
    return found


def test_a_loop_that_hangs_is_reported(capfd: pytest.CaptureFixture[str]) -> None:
    found: list[dict[str, int]] = []
    told = ""
    with device() as native:
        native.status()  # the loop has begun
        thread = loop_of_this_process()
        asking = threading.Thread(target=lambda: found.append(native.status()))
        with subprocess.Popen(
            [sys.executable, "-c", STOPS, str(thread)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as stopping:
            assert stopping.stdin and stopping.stdout and stopping.stdout.readline() == "stopped\n"
            asking.start()
            while "a turn" not in told:
                asking.join(0.05)
                assert asking.is_alive(), "the loop is stopped"
                told += capfd.readouterr().err
            stopping.stdin.close()
            asking.join(scaled(20))
    assert f"(thread {thread}) has not ended for 2 s" in told and len(found) == 1

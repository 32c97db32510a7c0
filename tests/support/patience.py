"""Time limits of tests, scaled to how busy and how slow this machine is.

A limit only ends a test that would never finish. The numbers in the tests are for two idle cores.
On a machine that also runs a build, the same steps take several times as long.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import time

# Starting this interpreter with these modules takes about 0.07 s on the idle machine.
IDLE_S = 0.1
SAMPLES = 3
MOST = 20.0  # beyond this the machine is of no use for tests


@functools.cache
def calibration() -> float:
    """How much longer a process takes to start here than on the idle machine, at least 1. Measured
    once, when the tests start."""
    began = time.monotonic()
    for _ in range(SAMPLES):
        subprocess.run([sys.executable, "-c", "import asyncio, json, subprocess"], check=True)
    return min(MOST, max(1.0, (time.monotonic() - began) / SAMPLES / IDLE_S))


def factor() -> float:
    """`calibration`, or the processes that compete for a core now if that is more: load may have
    come since."""
    per_core = os.getloadavg()[0] / (os.cpu_count() or 1)
    return min(MOST, max(calibration(), per_core))


def scaled(seconds: float) -> float:
    """A limit of so many seconds on the idle machine, in seconds here."""
    return seconds * factor()


ASKS_LESS = 8


class Pauses:
    """The pauses of a test that asks again and again until something is so.

    Each is `ASKS_LESS` times as long as the question took of this process's CPU time, between
    `least` and `most` seconds: who asks takes that time from what is waited for.
    """

    def __init__(self, least: float, most: float):
        self.least, self.most = least, most
        self._asked = time.thread_time()

    def sleep(self) -> None:
        """After a question."""
        cost = time.thread_time() - self._asked
        time.sleep(min(self.most, max(self.least, ASKS_LESS * cost)))
        self._asked = time.thread_time()

"""Promise: times of events mean something on whatever machine the rank is served.

The other machine is a process whose monotonic clock began elsewhere (a time namespace).
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rankfold.paths import REPOSITORY
from support.privileges import need_namespaces
from support.ring_client import (
    DEVICE_SYNC,
    EVENT_CREATE,
    EVENT_ELAPSED,
    EVENT_RECORD,
    RingClient,
    attach,
    device,
    leave,
    settle,
)

OFFSET_S = 10**7  # between the two clocks
FIRST, SECOND, THIRD = 16, 17, 18


@contextmanager
def served_elsewhere(client: RingClient, job: int) -> Iterator[None]:
    program = [sys.executable, str(Path(__file__).with_name("elsewhere.py"))]
    process = subprocess.Popen(
        [
            "unshare",
            "--time",
            "--monotonic",
            str(OFFSET_S),
            *program,
            str(client.fd),
            str(client.image),
            str(job),
        ],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "tests")},
        text=True,
        pass_fds=[client.fd, client.image],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout
    assert process.stdout.readline() == "serves\n"
    yield
    process.communicate("\n")
    assert process.returncode == 0


def record(client: RingClient, event: int) -> None:
    client.post(EVENT_RECORD, struct.pack("<QQ", event, 1))
    assert client.call(DEVICE_SYNC) == 0


def elapsed_ms(client: RingClient, start: int, end: int) -> float:
    assert client.call(EVENT_ELAPSED, struct.pack("<QQ", start, end)) == 0
    return float(struct.unpack("<f", client.data(4))[0])


def test_elapsed_times_go_with_a_rank_to_a_machine_with_another_clock_and_back() -> None:
    need_namespaces()
    client = RingClient()
    with device() as here:
        attach(here, client)
        for event in (FIRST, SECOND, THIRD):
            client.post(EVENT_CREATE, struct.pack("<QII", event, 0, 0))
        record(client, FIRST)
        here.barrier(1, True)
        settle(here, 1, "cut")
        assert here.job_leave(1)
        settle(here, 1, "saved")
        here.job_close(1)
        with served_elsewhere(client, 2):
            record(client, SECOND)
            there = elapsed_ms(client, FIRST, SECOND)
        attach(here, client, job=3, epoch=3)
        record(client, THIRD)
        assert elapsed_ms(client, FIRST, SECOND) == there
        for ms in (there, elapsed_ms(client, SECOND, THIRD), elapsed_ms(client, FIRST, THIRD)):
            assert 0 <= ms < OFFSET_S * 1e3 / 2
        leave(here, 3)
    client.close()

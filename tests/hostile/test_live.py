"""Promise: whatever a client writes into its channel harms only its own job.

A live proxy core serves a hostile rank next to a good one of another job. The good one's bits are
what they would be without company, and afterwards memory and descriptors are as before.
"""

from __future__ import annotations

import gc
import os
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankfold.proxy.hal.soft.modules import Loader
from rankfold.proxy.native import EXIT_CLEAN, Native, segment_create
from support.answers import answering
from support.ring_client import (
    ALLOC,
    CHUNK,
    DEV_BASE,
    DEVICE_SYNC,
    OFF_BULK,
    OFF_RING,
    RING_BYTES,
    TAIL,
    RingClient,
    attach,
    device,
    leave,
    settle,
)

from .records import (
    COLLECTIVE,
    COMM_INIT,
    FUNCTION_GET,
    KERNELS,
    LAUNCH,
    MODULE_DATA,
    MODULE_LOAD,
    number,
    record,
)

COUNT = 4096  # numbers the good rank works on
HOSTILE, GOOD = 1, 2  # jobs


class Good:
    """A rank that keeps numbers on the device and a copy here, and compares."""

    def __init__(self, native: Native):
        self.client = RingClient()
        attach(native, self.client, job=GOOD)
        self.client.alloc(DEV_BASE, 4 * COUNT)
        self.client.map[OFF_BULK : OFF_BULK + len(KERNELS)] = KERNELS
        self.client.post(MODULE_DATA, struct.pack("<QQII", 16, 0, len(KERNELS), 0))
        assert self.client.call(MODULE_LOAD, struct.pack("<QQII", 16, len(KERNELS), 1, 0)) == 0
        name = struct.pack("<QQII", 16, 17, 1, 7) + b"add_one"
        assert self.client.call(FUNCTION_GET, name) == 0
        body = struct.pack("<QII", 18, 1, 0) + b"good".ljust(128)
        assert self.client.call(COMM_INIT, body) == 0
        self.model = np.arange(COUNT, dtype=np.uint32)
        self.client.map[OFF_BULK : OFF_BULK + 4 * COUNT] = self.model.tobytes()
        upload = self.client.copy(DEV_BASE, 0, 4 * COUNT, places=(0, 1))
        assert self.client.call(4, upload) == 0

    def step(self) -> None:
        """A kernel, a collective of one, and a kernel again."""
        for _ in range(2):
            params = struct.pack("<QI", DEV_BASE, COUNT)
            head = struct.pack("<QQ6I4I", 1, 17, COUNT // 64, 1, 1, 64, 1, 1, 0, 12, 0, 0)
            self.client.post(LAUNCH, head + params)
            self.model += 1
        body = struct.pack("<6QIIiI", 1, 18, DEV_BASE, DEV_BASE, COUNT, 0, 0, 3, 0, 0)
        self.client.post(COLLECTIVE, body)

    def check(self) -> None:
        assert self.client.read(DEV_BASE, 4 * COUNT) == self.model.tobytes()

    def close(self, native: Native) -> None:
        self.step()
        self.check()
        leave(native, GOOD)
        self.client.close()


def send(client: RingClient, r: Random, count: int) -> None:
    """So many records; not more than the ring holds, for a failed job takes none."""
    for _ in range(count):
        if client.head - client.u64(TAIL) > RING_BYTES // 2:
            return
        opcode, slot, body = record(r)
        client.post(opcode, body, slot, number(r, client.seq + 1))


def hostile_client() -> RingClient:
    client = RingClient()
    client.map[OFF_BULK : OFF_BULK + len(KERNELS)] = KERNELS
    return client


def round_of(native: Native, good: Good, misbehave: Callable[[RingClient], None]) -> int:
    """A hostile job comes, does its worst, and is let go: the records that were taken."""
    client = hostile_client()
    attach(native, client, job=HOSTILE)
    client.post(ALLOC, struct.pack("<QQQII", DEV_BASE, 8 << 20, 0, 0, 0))
    misbehave(client)
    good.step()
    good.check()
    status = native.rank_status(HOSTILE, 0)
    leave(native, HOSTILE)
    client.close()
    return status.records if status else 0


def descriptors() -> int:
    """The open descriptors of this process, without those that garbage of earlier tests holds."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


@contextmanager
def next_to_a_good_rank(kernels: Loader) -> Iterator[tuple[Native, Good]]:
    """A device with a good rank; memory and descriptors must be as before in the end."""
    with device() as native, answering(native, kernels):
        good = Good(native)
        open_files = descriptors()
        yield native, good
        assert native.status()["used"] <= CHUNK  # the good rank's
        assert descriptors() == open_files
        good.close(native)
        assert native.status()["used"] == 0


@pytest.mark.slow
@settings(max_examples=15, suppress_health_check=list(HealthCheck))
@given(r=st.randoms(use_true_random=False), counts=st.lists(st.integers(1, 80), max_size=3))
def test_no_record_harms_another_rank(kernels: Loader, r: Random, counts: list[int]) -> None:
    with next_to_a_good_rank(kernels) as (native, good):
        for count in counts:
            round_of(native, good, lambda client: send(client, r, count))  # noqa: B023


def a_hundred_thousand(native: Native, good: Good, seed: int, records: int) -> None:
    r, taken = Random(seed), 0
    while taken < records:
        taken += round_of(native, good, lambda client: send(client, r, 400))


def test_five_thousand_records_in_many_jobs(kernels: Loader) -> None:
    with next_to_a_good_rank(kernels) as (native, good):
        a_hundred_thousand(native, good, 1, 5_000)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(2, 4))
def test_a_hundred_thousand_records_in_many_jobs(kernels: Loader, seed: int) -> None:
    with next_to_a_good_rank(kernels) as (native, good):
        a_hundred_thousand(native, good, seed, 100_000)


class Flipper:
    """Changes bits all over a client's ring, again and again, while the server reads it."""

    def __init__(self, client: RingClient, seed: int):
        self.ring = np.frombuffer(client.map, np.uint8, 1 << 16, OFF_RING)
        sparse = np.random.default_rng(seed).random((8, self.ring.size)) < 0.002
        self.masks = (sparse * np.uint8(1 << seed % 8)).astype(np.uint8)
        self.stop = threading.Event()
        self.passes = 0
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        while not self.stop.is_set():
            np.bitwise_xor(self.ring, self.masks[self.passes % 8], out=self.ring)
            self.passes += 1

    def end(self) -> None:
        self.stop.set()
        self.thread.join()
        del self.ring


def flipped(client: RingClient, r: Random, count: int) -> None:
    flipper = Flipper(client, r.randrange(1000))
    send(client, r, count)
    while not flipper.passes:
        client.ring()
    flipper.end()


def test_a_record_that_changes_while_it_is_read(kernels: Loader) -> None:
    with next_to_a_good_rank(kernels) as (native, good):
        r = Random(5)
        for _ in range(15):
            round_of(native, good, lambda client: flipped(client, r, 200))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_records_that_change_while_they_are_read_for_long(kernels: Loader) -> None:
    with next_to_a_good_rank(kernels) as (native, good):
        r = Random(6)
        for _ in range(1000):
            round_of(native, good, lambda client: flipped(client, r, 300))


def test_a_rank_that_never_takes_what_it_asked_for(kernels: Loader) -> None:
    """Requests without end for the same slot: what waits is bounded, and the good rank
    continues."""

    def flood(client: RingClient) -> None:
        client.block(1)
        for _ in range(1000):
            client.post(DEVICE_SYNC, b"", 1)

    with next_to_a_good_rank(kernels) as (native, good):
        round_of(native, good, flood)


def test_a_send_without_a_receiver_does_not_delay_a_save() -> None:
    """No state can hold it: the job fails, and says why, instead of being saved forever."""
    client = RingClient()
    with device() as native:
        attach(native, client, job=HOSTILE)
        client.alloc(DEV_BASE, 4096)
        assert client.call(COMM_INIT, struct.pack("<QII", 16, 1, 0) + bytes(128)) == 0
        client.post(COLLECTIVE, struct.pack("<6QIIiI", 1, 16, DEV_BASE, 0, 64, 0, 5, 7, 0, 0))
        assert client.call(DEVICE_SYNC) == 0
        native.barrier(HOSTILE, True)
        settle(native, HOSTILE, "cut")
        native.job_leave(HOSTILE)
        settle(native, HOSTILE, "failed")
        status = native.job_status(HOSTILE)
        assert status and "collectives are in progress" in status["reason"]
        leave(native, HOSTILE)
    client.close()


@pytest.mark.parametrize("receiver", [0, 1])
def test_a_send_without_a_receiver_on_two_devices(receiver: int) -> None:
    """To itself: its device says so. To a rank that has ended: it goes nowhere, all are saved."""
    clients = [RingClient(rank, 2) for rank in range(2)]
    segment = segment_create(2)
    with device() as first, device() as second:
        natives = [first, second]
        for native, client in zip(natives, clients, strict=True):
            native.job_open(1, 1, client.rank, 2, [0, 1], segment)
            native.rank_attach(1, client.rank, client.fd, client.image)
            client.alloc(DEV_BASE, 4096)
            client.begin(COMM_INIT, struct.pack("<QII", 16, 2, client.rank) + bytes(128))
        assert [client.finish() for client in clients] == [0, 0]
        body = struct.pack("<6QIIiI", 1, 16, DEV_BASE, 0, 64, 0, 5, 7, receiver, 0)
        clients[0].post(COLLECTIVE, body)
        assert clients[0].call(DEVICE_SYNC) == 0
        if receiver == 1:
            second.rank_exited(1, 1, EXIT_CLEAN)
        for native in natives:
            native.barrier(1, True)
        for native in natives:
            settle(native, 1, "cut")
        for native in natives:
            native.job_leave(1)
        if receiver == 0:
            settle(first, 1, "failed")
            status = first.job_status(1)
            assert status and "rank 0 has sent data that rank 0" in status["reason"]
        else:
            for native in natives:
                settle(native, 1, "saved")
        for native in natives:
            leave(native, 1)
    os.close(segment)
    for client in clients:
        client.close()

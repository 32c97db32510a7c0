"""What runs when: the time slices of ranks whose queues never run dry, and memory under kernels."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
from hostile.records import FUNCTION_GET, KERNELS, LAUNCH, MODULE_DATA, MODULE_LOAD

from rankfold.proxy.hal.soft.modules import Loader
from rankfold.proxy.native import Native
from support.answers import answering
from support.ring_client import (
    CHUNK,
    DEV_BASE,
    DEVICE_SYNC,
    OFF_BULK,
    RETIRED,
    RingClient,
    attach,
    device,
    leave,
    settle,
    until,
)

LAUNCHES = 4000
COUNT = 1 << 17
BODY = struct.pack("<QQ6I4IQI", 1, 17, COUNT // 256, 1, 1, 256, 1, 1, 0, 12, 0, 0, DEV_BASE, COUNT)


@pytest.fixture
def clients() -> Iterator[list[RingClient]]:
    made = [RingClient(rank, 2) for rank in range(2)]
    yield made
    for client in made:
        client.close()


def load(client: RingClient) -> None:
    client.alloc(DEV_BASE, 4 * COUNT)
    client.map[OFF_BULK : OFF_BULK + len(KERNELS)] = KERNELS
    client.post(MODULE_DATA, struct.pack("<QQII", 16, 0, len(KERNELS), 0))
    assert client.call(MODULE_LOAD, struct.pack("<QQII", 16, len(KERNELS), 1, 0)) == 0
    assert client.call(FUNCTION_GET, struct.pack("<QQII", 16, 17, 1, 7) + b"add_one") == 0


def kernels_of(native: Native, rank: int) -> int:
    status = native.rank_status(1, rank)
    assert status is not None
    return status.kernels


def test_memory_stays_mapped_while_anything_runs(
    kernels: Loader, clients: list[RingClient]
) -> None:
    """What is freed is retired at once, but a kernel that came later may run already."""
    client = clients[0]
    with device(speed=0.001) as native, answering(native, kernels):
        attach(native, client)
        load(client)
        client.alloc(DEV_BASE + CHUNK, CHUNK)
        client.post(LAUNCH, BODY)
        assert client.call(DEVICE_SYNC) == 0
        native.barrier(1, True)
        settle(native, 1, "cut")
        client.write(DEV_BASE + CHUNK, b"old")
        seq = client.free(DEV_BASE + CHUNK)
        client.post(LAUNCH, BODY)
        native.barrier(1, False)
        until(lambda: client.u64(RETIRED) == seq, native)
        assert kernels_of(native, 0) == 2 and native.status()["used"] == 2 * CHUNK
        client.alloc(DEV_BASE + CHUNK, CHUNK)  # waits, and is new
        assert client.read(DEV_BASE + CHUNK, 3) == b"\0\0\0"
        client.free(DEV_BASE + CHUNK)
        assert client.call(DEVICE_SYNC) == 0
        until(lambda: native.status()["used"] == CHUNK, native)
        leave(native)


def test_two_ranks_with_endless_queues_both_progress(
    kernels: Loader, clients: list[RingClient]
) -> None:
    with device(quantum_ns=2_000_000) as native, answering(native, kernels):
        native.job_open(1, 1, 0, 1, [0, 0], -1)
        for client in clients:
            native.rank_attach(1, client.rank, client.fd, client.image)
            load(client)
        native.barrier(1, True)  # all launches are there before the first runs
        settle(native, 1, "cut")
        for client in clients:
            for _ in range(LAUNCHES):
                client.post(LAUNCH, BODY)
        native.barrier(1, False)
        # The one that came second gets its turns long before the first has done its work.
        until(lambda: kernels_of(native, 1) > 0, native)
        assert kernels_of(native, 0) < LAUNCHES
        until(lambda: all(kernels_of(native, rank) == LAUNCHES for rank in (0, 1)), native, 60)
        assert native.status()["switches"] > 6
        for client in clients:
            (first,) = struct.unpack("<I", client.read(DEV_BASE, 4))
            assert first == LAUNCHES
        leave(native)

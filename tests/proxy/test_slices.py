"""Time-slicing: ranks whose queues never run dry share the device by time."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
from hostile.records import FUNCTION_GET, KERNELS, LAUNCH, MODULE_DATA, MODULE_LOAD

from rankfold.proxy.hal.soft.modules import Loader
from rankfold.proxy.native import Native
from support.answers import answering
from support.ring_client import DEV_BASE, OFF_BULK, RingClient, device, leave, settle, until

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

"""Promise: ranks with endless work take turns by time slice, and a running kernel's memory stays
resident."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hostile.records import FUNCTION_GET, KERNELS, LAUNCH, MODULE_DATA, MODULE_LOAD

from rankfold.proxy.hal.soft.modules import Loader
from rankfold.proxy.native import Native
from support.answers import answering
from support.ring_client import (
    CHUNK,
    COLLECTIVE,
    COMM_INIT,
    DEV_BASE,
    DEVICE_SYNC,
    EVENT_CREATE,
    EVENT_RECORD,
    OFF_BULK,
    RETIRED,
    STREAM_CREATE,
    STREAM_WAIT,
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
    """Freed memory is retired at once, but a kernel that came later may run already."""
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


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_with_endless_queues_all_progress(kernels: Loader, ranks: int) -> None:
    """Ranks that never meet the active one first in the tree of a sum are prefetched, too."""
    clients = [RingClient(rank, ranks) for rank in range(ranks)]
    with device(quantum_ns=2_000_000) as native, answering(native, kernels):
        native.job_open(1, 1, 0, 1, [0] * ranks, -1)
        for client in clients:
            native.rank_attach(1, client.rank, client.fd, client.image)
            load(client)
            client.write(DEV_BASE + 4, bytes([client.rank]))  # so that nothing is run for all
        native.barrier(1, True)  # all launches are there before the first runs
        settle(native, 1, "cut")
        for client in clients:
            for _ in range(LAUNCHES):
                client.post(LAUNCH, BODY)
        native.barrier(1, False)
        # Those that came later get their turns long before the first has done its work.
        until(lambda: all(kernels_of(native, rank) > 0 for rank in range(1, ranks)), native)
        assert kernels_of(native, 0) < LAUNCHES
        until(
            lambda: all(kernels_of(native, rank) == LAUNCHES for rank in range(ranks)), native, 60
        )
        assert native.status()["switches"] > 3 * ranks
        for client in clients:
            (first,) = struct.unpack("<I", client.read(DEV_BASE, 4))
            assert first == LAUNCHES
        leave(native)
    for client in clients:
        client.close()


# ---- ranks that train --------------------------------------------------------------------------

STEPS, BUCKETS = 10, 3
STREAM, COMM, COMPUTE, COMMUNICATION, COMPUTED, AVERAGED = 1, 20, 30, 31, 40, 50


def launch(client: RingClient, stream: int) -> None:
    client.post(LAUNCH, struct.pack("<Q", stream) + BODY[8:])


def step_of_buckets(client: RingClient) -> None:
    """As examples/gpt: buckets are averaged on a stream concurrent with the backward pass."""
    for bucket in range(BUCKETS):
        launch(client, COMPUTE)
        client.post(EVENT_RECORD, struct.pack("<QQ", COMPUTED + bucket, COMPUTE))
        client.post(STREAM_WAIT, struct.pack("<QQ", COMPUTED + bucket, COMMUNICATION))
        at = DEV_BASE + CHUNK + 4096 * bucket
        body = struct.pack("<6QIIiI", COMMUNICATION, COMM, at, at, 1024, 0, 0, 7, 0, 0)
        client.post(COLLECTIVE, body)
        client.post(EVENT_RECORD, struct.pack("<QQ", AVERAGED + bucket, COMMUNICATION))
    for bucket in range(BUCKETS):
        client.post(STREAM_WAIT, struct.pack("<QQ", AVERAGED + bucket, COMPUTE))
        launch(client, COMPUTE)


def step_in_one(client: RingClient) -> None:
    """Forward and backward pass, all-reduce and update on one stream."""
    launch(client, STREAM)
    at = DEV_BASE + CHUNK
    client.post(COLLECTIVE, struct.pack("<6QIIiI", STREAM, COMM, at, at, 1024, 0, 0, 7, 0, 0))
    launch(client, STREAM)


@contextmanager
def training(
    kernels: Loader, ranks: int, speed: float = 1.0
) -> Iterator[tuple[Native, list[RingClient]]]:
    """Ranks of one device that have all that a step needs, at a cut."""
    clients = [RingClient(rank, ranks) for rank in range(ranks)]
    with device(speed=speed) as native, answering(native, kernels):
        native.job_open(1, 1, 0, 1, [0] * ranks, -1)
        for client in clients:
            native.rank_attach(1, client.rank, client.fd, client.image)
            load(client)
            client.alloc(DEV_BASE + CHUNK, CHUNK)
            for stream in (COMPUTE, COMMUNICATION):
                client.post(STREAM_CREATE, struct.pack("<QIi", stream, 1, 0))
            for event in range(BUCKETS):
                client.post(EVENT_CREATE, struct.pack("<QII", COMPUTED + event, 0, 0))
                client.post(EVENT_CREATE, struct.pack("<QII", AVERAGED + event, 0, 0))
            body = struct.pack("<QII", COMM, ranks, client.rank) + bytes([COMM]) * 128
            client.begin(COMM_INIT, body)
        assert [client.finish() for client in clients] == [0] * ranks
        native.barrier(1, True)  # all of it is there before the first runs
        settle(native, 1, "cut")
        yield native, clients
        leave(native)
    for client in clients:
        client.close()


@pytest.mark.parametrize("step", [step_of_buckets, step_in_one])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_each_rank_has_the_device_once_a_step(
    kernels: Loader, ranks: int, step: Callable[[RingClient], None]
) -> None:
    """The rank that calls a collective last continues behind it, until others have to call the
    next."""
    with training(kernels, ranks) as (native, clients):
        for client in clients:
            for _ in range(STEPS):
                step(client)
            client.begin(DEVICE_SYNC)
        before = native.status()
        native.barrier(1, False)
        assert [client.finish() for client in clients] == [0] * ranks
        after = native.status()
        each = 2 * BUCKETS if step is step_of_buckets else 2
        assert after["kernels"] - before["kernels"] == ranks * STEPS * each
        # The last of one step is the first of the next; and the first comes, and the last ones end.
        assert after["switches"] - before["switches"] <= (ranks - 1) * STEPS + ranks


def order_of_sums(kernels: Loader, ranks: int, steps: int) -> list[list[int]] | None:
    """In which order ranks come to each of so many sums; None: the test was too slow to see it."""
    order: list[list[int]] = [[] for _ in range(steps)]
    clear = True
    with training(kernels, ranks, speed=0.01) as (native, clients):
        for client in clients:
            client.write(DEV_BASE + 4, bytes([client.rank]))  # so that nothing is run for all
            for _ in range(steps):
                step_in_one(client)
        before = [kernels_of(native, rank) for rank in range(ranks)]
        native.barrier(1, False)

        def look() -> bool:
            nonlocal clear
            ran = [kernels_of(native, rank) - before[rank] for rank in range(ranks)]
            for number, came in enumerate(order):  # behind the first kernel of a step
                new = [r for r in range(ranks) if ran[r] > 2 * number and r not in came]
                came += new
                clear &= len(new) < 2
            return all(len(each) == ranks for each in order)

        until(look, native, 60)
    return order if clear else None


@pytest.mark.parametrize("ranks", [4, 8])
def test_ranks_that_meet_in_the_tree_of_a_sum_come_one_after_the_other(
    kernels: Loader, ranks: int
) -> None:
    """So of what they give to it little is there at one time, whoever begins."""
    seen = (order_of_sums(kernels, ranks, 4) for _ in range(20))
    order = next((each for each in seen if each), None)
    assert order, "the machine is too busy to see who comes when"
    for each in order:
        for size in (2, ranks // 2):
            parts = [each[at : at + size] for at in range(0, ranks, size)]
            assert all(len({rank // size for rank in part}) == 1 for part in parts), order

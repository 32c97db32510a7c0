"""Outermost groups of collectives that have to wait: read once, whole or not at all, and right
whatever else happens meanwhile.

Rank 0 is held by the bound on rounds that rank 1 has not matched.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator

import pytest
from hostile.records import COMM_DESTROY, COMM_SPLIT

from rankfold.proxy.native import Native, RankStatus
from support import words
from support.patience import scaled
from support.ring_client import (
    ASYNC_ERROR,
    CHUNK,
    COLLECTIVE,
    COMM_ERROR,
    COMM_ERRORS,
    COMM_INIT,
    DEV_BASE,
    DEVICE_SYNC,
    HOSTFUNC_TAIL,
    STREAM_WAIT,
    TAIL,
    RingClient,
    device,
    leave,
    settle,
    until,
)

WORLD, LATER = 16, 17  # communicators
AHEAD = 2  # rounds that a rank may be ahead of others, where all are alike
INVALID_ARGUMENT, INVALID_USAGE = 4, 5
PLACES = 8  # of 4 floats each


@pytest.fixture
def clients() -> Iterator[list[RingClient]]:
    made = [RingClient(rank, 2) for rank in range(2)]
    yield made
    for client in made:
        client.close()


def joining(client: RingClient, comm: int) -> bytes:
    """The body of a COMM_INIT: all ranks join the communicator `comm`."""
    return struct.pack("<QII", comm, 2, client.rank) + bytes([comm]) * 128


def add_up(client: RingClient, *comms: int, first: int = 0, of: int | None = None) -> None:
    """All-reduces in place, the n-th at place first + n: a group of `of`, or of just these."""
    for n, comm in enumerate(comms, first):
        at = DEV_BASE + n * 16
        left = (first + len(comms) if of is None else of) - n - 1
        client.post(COLLECTIVE, struct.pack("<6QIIiI", 1, comm, at, at, 4, 0, 0, 7, 0, left))


def values(client: RingClient, place: int) -> tuple[float, ...]:
    return struct.unpack("<4f", client.read(DEV_BASE + place * 16, 16))


def status(native: Native, rank: int = 0) -> RankStatus:
    found = native.rank_status(1, rank)
    assert found is not None
    return found


def rounds(client: RingClient, count: int) -> None:
    """So many rounds that change no memory: of no elements."""
    for _ in range(count):
        body = struct.pack("<6QIIiI", 1, WORLD, DEV_BASE, DEV_BASE, 0, 0, 0, 7, 0, 0)
        client.post(COLLECTIVE, body)


def begin(native: Native, clients: list[RingClient], opcode: int = 0, body: bytes = b"") -> None:
    """Both ranks joined; all values are 1 + the rank; rank 0 may issue no more rounds.

    opcode, body: what rank 0 asks for before that; slot 2 waits for the answer.
    """
    native.job_open(1, 1, 0, 1, [0, 0], -1)
    for client in clients:
        native.rank_attach(1, client.rank, client.fd, client.image)
        client.alloc(DEV_BASE, CHUNK)
        client.begin(COMM_INIT, joining(client, WORLD))
    assert [client.finish() for client in clients] == [0, 0]
    for client in clients:
        client.write(DEV_BASE, struct.pack("<f", 1.0 + client.rank) * 4 * PLACES)
        assert client.call(DEVICE_SYNC) == 0
    before = status(native).records
    if opcode:
        clients[0].begin(opcode, body, slot=2)
    rounds(clients[0], AHEAD)
    until(lambda: status(native).records == before + AHEAD + (opcode != 0), native)


def status_after_group(native: Native, client: RingClient, *comms: int) -> RankStatus:
    """Rank 0 has posted this group, it was read, and time has passed: how the rank is."""
    before = status(native)
    add_up(client, *comms)
    until(lambda: status(native).reads > before.reads, native)
    for _ in range(100):  # turns of the proxy's loop
        native.status()
    after = status(native)
    assert after.records == before.records
    return after


def synchronize(*clients: RingClient) -> list[int]:
    for client in clients:
        client.begin(DEVICE_SYNC)
    return [client.finish() for client in clients]


def test_a_group_that_is_held_is_read_once(clients: list[RingClient]) -> None:
    with device() as native:
        begin(native, clients)
        before = status(native)
        after = status_after_group(native, clients[0], *[WORLD] * PLACES)
        assert after.reads == before.reads + PLACES
        rounds(clients[1], AHEAD)
        add_up(clients[1], *[WORLD] * PLACES)
        assert synchronize(*clients) == [0, 0]
        for client in clients:
            assert all(values(client, n) == (3.0,) * 4 for n in range(PLACES))
        leave(native)


def test_a_group_that_arrives_in_parts_is_read_as_it_comes(
    clients: list[RingClient],
) -> None:
    with device() as native:
        begin(native, clients)
        rounds(clients[1], AHEAD)
        assert synchronize(*clients) == [0, 0]
        before = status(native)
        add_up(clients[0], WORLD, WORLD, WORLD, of=4)
        until(lambda: status(native).reads == before.reads + 3, native)
        for _ in range(100):
            native.status()
        assert status(native).reads == before.reads + 3
        add_up(clients[0], WORLD, first=3)
        add_up(clients[1], WORLD, WORLD, WORLD, WORLD)
        assert synchronize(*clients) == [0, 0]
        assert status(native).reads == before.reads + 5  # the last one, and DEVICE_SYNC
        assert [values(clients[1], n) for n in range(4)] == [(3.0,) * 4] * 4
        leave(native)


def test_a_communicator_that_comes_to_be_while_a_group_is_held_is_part_of_it(
    clients: list[RingClient],
) -> None:
    with device() as native:
        begin(native, clients, COMM_INIT, joining(clients[0], LATER))
        status_after_group(native, clients[0], WORLD, LATER)
        assert clients[1].call(COMM_INIT, joining(clients[1], LATER)) == 0
        assert clients[0].finish(2) == 0
        rounds(clients[1], AHEAD)
        add_up(clients[1], WORLD, LATER)
        assert synchronize(*clients) == [0, 0]
        assert clients[0].u32(COMM_ERROR) == 0
        for client in clients:
            assert [values(client, n) for n in range(2)] == [(3.0,) * 4] * 2
        leave(native)


@pytest.mark.parametrize("opcode", [COMM_INIT, COMM_SPLIT])
def test_a_communicator_is_not_destroyed_while_it_joins(
    opcode: int, clients: list[RingClient]
) -> None:
    """Only a hostile rank tries: its job still joins, reaches a cut and continues."""
    split = struct.pack("<QQii", WORLD, LATER, 1, 0)
    with device() as native:
        of = [split if opcode == COMM_SPLIT else joining(client, LATER) for client in clients]
        begin(native, clients, opcode, of[0])
        assert clients[0].call(COMM_DESTROY, struct.pack("<Q", LATER)) == INVALID_USAGE
        assert clients[1].call(opcode, of[1]) == 0
        assert clients[0].finish(2) == 0
        rounds(clients[1], AHEAD)
        assert synchronize(*clients) == [0, 0]
        native.barrier(1, True)
        settle(native, 1, "cut")
        assert native.job_leave(1)
        settle(native, 1, "saved")
        native.job_close(1)


def test_a_communicator_that_is_lost_while_a_group_is_held_is_left_out_of_it(
    clients: list[RingClient],
) -> None:
    with device() as native:
        split = [struct.pack("<QQii", WORLD, LATER, color, 0) for color in (-1, 1)]
        begin(native, clients, COMM_SPLIT, split[0])  # rank 0 will have no part in it
        status_after_group(native, clients[0], LATER, WORLD)
        assert clients[1].call(COMM_SPLIT, split[1]) == 0
        assert clients[0].finish(2) == 0
        rounds(clients[1], AHEAD)
        add_up(clients[1], WORLD, first=1)
        assert synchronize(*clients) == [0, 0]
        assert clients[0].u64(COMM_ERRORS) == LATER << 8 | INVALID_ARGUMENT
        assert [values(clients[0], n) for n in range(2)] == [(1.0,) * 4, (3.0,) * 4]
        leave(native)


def test_a_group_that_is_held_at_a_cut_is_found_in_the_ring(clients: list[RingClient]) -> None:
    with device() as native, device() as elsewhere:
        begin(native, clients)
        status_after_group(native, clients[0], WORLD, WORLD)
        tail = clients[0].u64(TAIL)
        native.barrier(1, True)
        rounds(clients[1], AHEAD)
        settle(native, 1, "cut")
        assert native.job_leave(1)
        settle(native, 1, "saved")
        native.job_close(1)
        assert clients[0].u64(TAIL) == tail
        elsewhere.job_open(1, 2, 0, 1, [0, 0], -1)
        for client in clients:
            elsewhere.rank_attach(1, client.rank, client.fd, client.image)
        add_up(clients[1], WORLD, WORLD)
        assert synchronize(*clients) == [0, 0]
        for client in clients:
            assert [values(client, n) for n in range(3)] == [(3.0,) * 4] * 2 + [
                (1.0 + client.rank,) * 4
            ]
        leave(elsewhere)


def test_a_held_group_outlives_a_cut_that_is_taken_back(clients: list[RingClient]) -> None:
    with device() as native:
        begin(native, clients)
        reads = status_after_group(native, clients[0], WORLD, WORLD).reads
        native.barrier(1, True)
        rounds(clients[1], AHEAD)
        settle(native, 1, "cut")
        native.barrier(1, False)
        add_up(clients[1], WORLD, WORLD)
        assert synchronize(*clients) == [0, 0]
        assert values(clients[0], 0) == values(clients[0], 1) == (3.0,) * 4
        assert status(native).reads == reads + 3  # DEVICE_SYNC and what values() reads
        leave(native)


def test_a_rank_that_fails_while_its_group_is_held(clients: list[RingClient]) -> None:
    with device() as native:
        begin(native, clients)
        status_after_group(native, clients[0], WORLD, WORLD)
        words.store32(clients[0].map, HOSTFUNC_TAIL, 5)  # of none that were called
        clients[0].ring()
        until(lambda: status(native).error != 0, native)
        rounds(clients[1], AHEAD)
        clients[0].begin(DEVICE_SYNC)
        deadline = time.monotonic() + scaled(20)
        while not clients[0].answered() and time.monotonic() < deadline:
            native.hurry(1)
            time.sleep(0.001)
        assert clients[0].finish() == clients[0].u32(ASYNC_ERROR) != 0
        leave(native)


def test_a_rank_that_leaves_while_its_group_is_held(clients: list[RingClient]) -> None:
    with device() as native:
        begin(native, clients)
        status_after_group(native, clients[0], WORLD, WORLD)
        leave(native)
        assert native.status()["used"] == 0


def test_a_failed_rank_gets_its_error_although_no_rank_matches_its_rounds(
    clients: list[RingClient],
) -> None:
    """Its client had sent more groups than may be under way, and waits behind them."""
    with device() as native:
        begin(native, clients)
        client = clients[0]
        client.post(STREAM_WAIT, struct.pack("<QQ", 77, 78))  # there is no such event
        for _ in range(3):
            add_up(client, WORLD)
        assert client.call(DEVICE_SYNC) != 0
        assert client.u32(ASYNC_ERROR) != 0
        leave(native)

"""The order of every request of a rank is checked."""

from __future__ import annotations

import struct
from random import Random

import pytest
from hostile.records import BODIES, FREE_ASYNC, STREAMS

from rankfold.proxy.native import EVENT_RACE, Native
from support.ring_client import (
    CHUNK,
    COPY,
    DEV_BASE,
    DEVICE_SYNC,
    EVENT_CREATE,
    EVENT_QUERY,
    EVENT_RECORD,
    FILL,
    STREAM_CREATE,
    STREAM_DESTROY,
    STREAM_QUERY,
    STREAM_WAIT,
    RingClient,
    device,
    leave,
)

NON_BLOCKING = 1


def checked(native: Native, client: RingClient) -> None:
    """A job whose order is checked has this rank."""
    native.job_open(1, 1, 0, 1, [0], -1)
    native.check_order(1, "certain")
    native.rank_attach(1, 0, client.fd, client.image)


def fill(client: RingClient, stream: int, at: int, count: int) -> None:
    client.post(FILL, struct.pack("<QQQQQII", stream, DEV_BASE + at, count, count, 1, 7, 1))


def races(native: Native) -> list[str]:
    return [e.data.decode() for e in native.events() if e.kind == EVENT_RACE]


def test_a_race_is_reported_once_and_an_event_orders() -> None:
    with device() as native:
        client = RingClient()
        checked(native, client)
        client.alloc(DEV_BASE, CHUNK)
        for stream in (16, 17):
            client.post(STREAM_CREATE, struct.pack("<QIi", stream, NON_BLOCKING, 0))
        client.post(EVENT_CREATE, struct.pack("<QII", 32, 2, 0))
        fill(client, 16, 0, 100)
        client.post(EVENT_RECORD, struct.pack("<QQ", 32, 16))
        client.post(STREAM_WAIT, struct.pack("<QQ", 32, 17))
        fill(client, 17, 50, 100)
        assert client.call(DEVICE_SYNC) == 0
        assert races(native) == []
        for at in (0, 1000, 2000):
            fill(client, 16, at, 100)
            fill(client, 17, at + 50, 100)
        assert client.call(DEVICE_SYNC) == 0
        (told,) = races(native)
        assert "a fill (request 10, stream 0x10) writes 0x200000000000 to 0x200000000064" in told
        assert "a fill (request 11, stream 0x11) writes 0x200000000032 to 0x200000000096" in told
        leave(native, 1)
        client.close()


@pytest.mark.parametrize("seed", range(20))
def test_whatever_a_rank_asks_for_the_check_bears_it(seed: int) -> None:
    r = Random(seed)
    kinds = [
        COPY,
        FILL,
        FREE_ASYNC,
        EVENT_CREATE,
        EVENT_RECORD,
        STREAM_WAIT,
        STREAM_CREATE,
        STREAM_DESTROY,
        STREAM_QUERY,
        EVENT_QUERY,
    ]
    with device() as native:
        client = RingClient()
        checked(native, client)
        client.alloc(DEV_BASE, 8 << 20)
        for stream in set(STREAMS) - {1}:
            client.post(STREAM_CREATE, struct.pack("<QIi", stream, r.randrange(2), 0))
        for _ in range(400):
            opcode = r.choice(kinds)
            if opcode in (STREAM_QUERY, EVENT_QUERY):
                client.call(opcode, BODIES[opcode](r))
            else:
                client.post(opcode, BODIES[opcode](r))
        client.call(DEVICE_SYNC)
        assert all("orders them" in each for each in races(native))
        leave(native, 1)
        client.close()

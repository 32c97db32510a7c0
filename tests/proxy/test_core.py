"""The proxy's core without a program: memory, streams, events, hand-over, and hostile rings."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankfold.proxy.native import EXIT_CLEAN, EXIT_CRASHED, EXIT_REPLACED, Native, NativeError
from rankfold.reconciler.plan.memory import RANKS_ON_A_DEVICE
from support.ring_client import (
    ASYNC_ERROR,
    CHUNK,
    COLLECTIVE,
    COMM_INIT,
    COPY,
    DEV_BASE,
    DEVICE_SYNC,
    EVENT_CREATE,
    EVENT_QUERY,
    EVENT_RECORD,
    EVENT_SYNC,
    FILL,
    RETIRED,
    STREAM_CREATE,
    STREAM_QUERY,
    STREAM_SYNC,
    STREAM_WAIT,
    RingClient,
    attach,
    device,
    hand_over,
    leave,
    settle,
    until,
)

HEAP = 3 * CHUNK
Operation = tuple[str, Any, Any]


@pytest.fixture
def client() -> Iterator[RingClient]:
    made = RingClient()
    yield made
    made.close()


def test_bytes_written_are_bytes_read_across_a_chunk_boundary(client: RingClient) -> None:
    with device() as d:
        attach(d, client)
        client.alloc(DEV_BASE, HEAP)
        client.write(DEV_BASE + CHUNK - 7, b"rankfold" * 4)
        assert client.read(DEV_BASE + CHUNK - 7, 32) == b"rankfold" * 4
        leave(d)


def test_a_copy_between_pitched_rows(client: RingClient) -> None:
    with device() as d:
        attach(d, client)
        client.alloc(DEV_BASE, HEAP)
        client.write(DEV_BASE, bytes(range(256)))
        far = DEV_BASE + CHUNK - 40
        body = client.copy(far, DEV_BASE, 16, height=4, pitches=(32, 64))
        assert client.call(COPY, body) == 0
        read = client.read(far, 128)
        rows = [read[32 * row : 32 * row + 16] for row in range(4)]
        assert rows == [bytes(range(64 * row, 64 * row + 16)) for row in range(4)]
        leave(d)


@pytest.mark.parametrize("element", [1, 2, 4])
def test_fill_writes_elements(client: RingClient, element: int) -> None:
    with device() as d:
        attach(d, client)
        client.alloc(DEV_BASE, HEAP)
        at = DEV_BASE + CHUNK - 8
        client.post(FILL, struct.pack("<5QII", 1, at, 32, 32 // element, 1, 0x01020304, element))
        one = struct.pack("<I", 0x01020304)[:element]
        assert client.read(at - 4, 40) == b"\0" * 4 + one * (32 // element) + b"\0" * 4
        leave(d)


def test_errors_are_answered_and_not_sticky(client: RingClient) -> None:
    with device() as d:
        attach(d, client)
        client.alloc(DEV_BASE, HEAP)
        beyond = client.copy(0, DEV_BASE + HEAP - 8, 4096, places=(1, 0))
        assert client.call(COPY, beyond) == 1  # invalid value
        assert client.call(STREAM_SYNC, struct.pack("<Q", 4711)) == 400  # invalid handle
        assert client.call(999) == 801  # not supported
        assert client.call(DEVICE_SYNC) == 0
        assert client.u32(ASYNC_ERROR) == 0
        leave(d)


def test_a_free_is_retired_when_older_work_is_done(client: RingClient) -> None:
    with device() as d:
        attach(d, client)
        client.alloc(DEV_BASE, HEAP)
        client.write(DEV_BASE, b"x" * 1000)
        seq = client.free(DEV_BASE)
        assert client.call(DEVICE_SYNC) == 0
        assert client.call(COPY, client.copy(0, DEV_BASE, 8, places=(1, 0))) == 1
        assert client.u64(RETIRED) == seq
        leave(d)


def test_memory_that_is_being_freed_may_be_asked_for(client: RingClient) -> None:
    """The client counts what it freed as free, though older work still uses it."""
    with device(memory=2 * CHUNK) as d:
        attach(d, client)
        client.alloc(DEV_BASE, 2 * CHUNK)
        client.block(1)
        client.write(DEV_BASE, b"old")
        client.free(DEV_BASE)
        client.alloc(DEV_BASE + 4 * CHUNK, 2 * CHUNK)
        client.begin(DEVICE_SYNC)
        client.unblock()
        assert client.finish() == 0
        client.write(DEV_BASE + 4 * CHUNK, b"new")
        assert client.read(DEV_BASE + 4 * CHUNK, 3) == b"new"
        leave(d)


def test_a_departed_rank_s_missing_input_reaches_no_rank() -> None:
    """Its collective waits for a neighbour when it crashes: the job fails, no result is made."""
    clients = [RingClient(rank, 2) for rank in range(2)]
    with device() as d:
        d.job_open(1, 1, 0, 1, [0, 0], -1)
        for client in clients:
            d.rank_attach(1, client.rank, client.fd, client.image)
            client.alloc(DEV_BASE, HEAP)
            client.begin(COMM_INIT, struct.pack("<QII", 16, 2, client.rank) + b"\1" * 128)
        assert [client.finish() for client in clients] == [0, 0]
        body = struct.pack("<6QIIiI", 1, 16, DEV_BASE, DEV_BASE, 64, 0, 0, 7, 0, 0)
        clients[0].post(COLLECTIVE, body)
        assert clients[0].call(STREAM_QUERY, struct.pack("<Q", 1)) == 600  # not ready
        d.rank_exited(1, 0, EXIT_CRASHED)
        clients[1].post(COLLECTIVE, body)
        clients[1].begin(DEVICE_SYNC)
        settle(d, 1, "failed")
        assert not clients[1].answered()
        leave(d)
    for client in clients:
        client.close()


def test_a_device_has_addresses_for_as_many_ranks_as_are_placed_there() -> None:
    n = RANKS_ON_A_DEVICE
    clients = [RingClient(rank, n) for rank in range(n)]
    with device(n * CHUNK) as d:
        d.job_open(1, 1, 0, 1, [0] * n, -1)
        for client in clients:
            d.rank_attach(1, client.rank, client.fd, client.image)
            client.alloc(DEV_BASE, CHUNK)
            assert client.call(DEVICE_SYNC) == 0
        leave(d)
    for client in clients:
        client.close()


def test_a_host_function_of_a_rank_that_ended_delays_no_other(client: RingClient) -> None:
    with device() as d:
        attach(d, client)
        client.alloc(DEV_BASE, HEAP)
        client.block(1)
        client.write(DEV_BASE, b"never read")
        d.rank_exited(1, 0, EXIT_CLEAN)
        d.barrier(1, True)
        settle(d, 1, "cut")
        leave(d)


def test_an_event_orders_two_streams(client: RingClient) -> None:
    with device() as d:
        attach(d, client)
        client.alloc(DEV_BASE, HEAP)
        for stream in (16, 17):
            client.post(STREAM_CREATE, struct.pack("<QIi", stream, 1, 0))
        client.post(EVENT_CREATE, struct.pack("<QII", 18, 0, 0))
        for turn in range(50):
            value = bytes([turn]) * 4096
            client.write(DEV_BASE, value, stream=16)
            client.post(EVENT_RECORD, struct.pack("<QQ", 18, 16))
            client.post(STREAM_WAIT, struct.pack("<QQ", 18, 17))
            client.post(COPY, client.copy(DEV_BASE + CHUNK, DEV_BASE, 4096, stream=17))
            assert client.read(DEV_BASE + CHUNK, 4096, stream=17) == value
        assert client.call(EVENT_SYNC, struct.pack("<Q", 18)) == 0
        assert client.call(EVENT_QUERY, struct.pack("<Q", 18)) == 0
        leave(d)


def test_a_stream_that_waits_for_an_event_waits_for_the_record_of_that_moment(
    client: RingClient,
) -> None:
    """One event joins two streams; the second record is over before the first."""
    with device() as d:
        attach(d, client)
        client.alloc(DEV_BASE, HEAP)
        for stream in (16, 17, 18):
            client.post(STREAM_CREATE, struct.pack("<QIi", stream, 1, 0))
        client.post(EVENT_CREATE, struct.pack("<QII", 19, 0, 0))
        client.block(16)
        client.write(DEV_BASE, b"slow", stream=16)
        for stream in (16, 17):
            client.post(EVENT_RECORD, struct.pack("<QQ", 19, stream))
            client.post(STREAM_WAIT, struct.pack("<QQ", 19, 18))
        client.post(COPY, client.copy(DEV_BASE + 64, DEV_BASE, 4, stream=18))
        assert client.call(EVENT_SYNC, struct.pack("<Q", 19)) == 0  # the record of stream 17
        assert client.call(STREAM_QUERY, struct.pack("<Q", 18)) == 600  # not ready
        client.unblock()
        assert client.read(DEV_BASE + 64, 4, stream=18) == b"slow"
        leave(d)


def test_a_fill_of_nothing_is_nothing(client: RingClient) -> None:
    with device() as d:
        attach(d, client)
        client.alloc(DEV_BASE, HEAP)
        for width, height, pitch in ((0, 2, 0), (0, 2**63, 0), (4, 0, 0)):
            body = struct.pack("<5QII", 1, DEV_BASE, pitch, width, height, 0, 4)
            assert client.call(FILL, body) == 0
        leave(d)


def test_replies_come_out_of_order(client: RingClient) -> None:
    """Requests of two threads have slots of their own."""
    with device() as d:
        attach(d, client)
        d.barrier(1, True)
        settle(d, 1, "cut")
        client.begin(DEVICE_SYNC, slot=1)
        client.begin(DEVICE_SYNC, slot=2)
        assert not client.answered(1)
        d.barrier(1, False)
        client.ring()
        assert client.finish(2) == 0
        assert client.finish(1) == 0
        leave(d)


@pytest.mark.several_devices
def test_parked_records_wait_for_the_next_server(client: RingClient) -> None:
    with device() as a, device() as b:
        attach(a, client)
        client.alloc(DEV_BASE, HEAP)
        client.write(DEV_BASE, b"before")
        a.barrier(1, True)
        settle(a, 1, "cut")
        client.write(DEV_BASE + 6, b"between")
        client.begin(DEVICE_SYNC)
        assert a.job_leave(1)
        settle(a, 1, "saved")
        assert not client.answered()
        b.job_open(2, 2, 0, 1, [0], -1)
        b.rank_attach(2, 0, client.fd, client.image)
        assert client.finish() == 0
        assert client.read(DEV_BASE, 13) == b"beforebetween"
        assert a.status()["used"] == 0
        leave(b, 2)


@pytest.mark.several_devices
def test_a_server_without_the_epoch_consumes_nothing(client: RingClient) -> None:
    with device() as a, device() as b:
        attach(a, client)
        b.job_open(2, 2, 0, 1, [0], -1)
        b.rank_attach(2, 0, client.fd, client.image)
        client.alloc(DEV_BASE, HEAP)
        assert client.call(DEVICE_SYNC) == 0
        before = a.rank_status(1, 0)
        assert before is not None
        assert before.records == 0
        with pytest.raises(NativeError, match="epoch 2 has claimed it"):
            a.job_open(3, 1, 0, 1, [0], -1)
            a.rank_attach(3, 0, client.fd, client.image)
        leave(a, 1)
        leave(a, 3)
        leave(b, 2)


def test_a_rank_whose_device_state_is_lost_is_not_served_as_a_fresh_one(
    client: RingClient,
) -> None:
    with device() as d:
        attach(d, client)
        client.alloc(DEV_BASE, HEAP)
        assert client.call(DEVICE_SYNC) == 0
        leave(d)
        with pytest.raises(NativeError, match="is lost"):
            attach(d, client, job=2, epoch=2)
        leave(d, 2)


def test_a_rank_s_next_process_finds_no_memory_of_the_one_before(client: RingClient) -> None:
    after = RingClient()
    with device() as d:
        attach(d, client)
        client.alloc(DEV_BASE, HEAP)
        client.write(DEV_BASE, b"secret")
        assert client.call(DEVICE_SYNC) == 0
        d.rank_exited(1, 0, EXIT_REPLACED)
        until(lambda: d.rank_status(1, 0) is None, d)
        d.rank_attach(1, 0, after.fd, client.image)
        after.alloc(DEV_BASE, HEAP)
        assert after.read(DEV_BASE, 6) == b"\0" * 6
        leave(d)
    after.close()


@pytest.mark.several_devices
@pytest.mark.parametrize("late", [False, True])
def test_a_process_that_is_replaced_during_a_save_begins_anew(
    client: RingClient, late: bool
) -> None:
    """Its program calls exec while its job is moved: what was saved was the earlier program's."""
    after = RingClient()
    with device() as d, device() as to:
        attach(d, client)
        client.alloc(DEV_BASE, HEAP)
        client.write(DEV_BASE, b"secret")
        assert client.call(DEVICE_SYNC) == 0
        d.barrier(1, True)
        settle(d, 1, "cut")
        assert d.job_leave(1)
        if late:
            settle(d, 1, "saved")
        d.rank_exited(1, 0, EXIT_REPLACED)
        settle(d, 1, "saved")
        d.job_close(1)
        to.job_open(2, 2, 0, 1, [0], -1)
        to.rank_attach(2, 0, after.fd, client.image)
        after.alloc(DEV_BASE, HEAP)
        assert after.read(DEV_BASE, 6) == b"\0" * 6
        leave(to, 2)
    after.close()


def test_a_broken_ring_fails_its_job(client: RingClient) -> None:
    with device() as d:
        attach(d, client)
        client.raw(struct.pack("<IHHQ", 63, 1, 0, 1))
        settle(d, 1, "failed")
        leave(d)


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, HEAP - 64), st.binary(min_size=1, max_size=64)),
        st.tuples(st.just("copy"), st.integers(0, HEAP - 256), st.integers(0, HEAP - 256)),
        st.tuples(st.just("fill"), st.integers(0, (HEAP - 256) // 4), st.integers(0, 2**32 - 1)),
        st.tuples(st.just("move"), st.none(), st.none()),
    ),
    max_size=30,
)


@pytest.mark.several_devices
@settings(max_examples=25)
@given(operations=OPERATIONS)
def test_a_client_cannot_tell_that_it_was_handed_over(
    operations: list[Operation],
) -> None:
    """Any sequence, handed over anywhere, leaves the same bytes as a plain array."""
    model = bytearray(HEAP)
    client = RingClient()
    with device() as a, device() as b:
        servers: list[Native] = [a, b]
        job = 1
        attach(a, client)
        client.alloc(DEV_BASE, HEAP)
        for name, x, y in operations:
            if name == "write":
                client.write(DEV_BASE + x, y)
                model[x : x + len(y)] = y
            elif name == "fill":
                body = struct.pack("<5QII", 1, DEV_BASE + 4 * x, 256, 64, 1, y, 4)
                client.post(FILL, body)
                model[4 * x : 4 * x + 256] = struct.pack("<I", y) * 64
            elif name == "copy":
                if abs(x - y) >= 256:
                    client.post(COPY, client.copy(DEV_BASE + x, DEV_BASE + y, 256))
                    model[x : x + 256] = model[y : y + 256]
            else:
                hand_over(servers[0], client, job, servers[1], job + 1)
                servers.reverse()
                job += 1
        for at in range(0, HEAP, 256 << 10):
            assert client.read(DEV_BASE + at, 256 << 10) == model[at : at + (256 << 10)]
        leave(servers[0], job)
    client.close()


RECORDS = st.lists(
    st.tuples(
        st.integers(0, 50),
        st.integers(0, 3),
        st.binary(max_size=200),
        st.none() | st.integers(0, 2**64 - 1),
    ),
    max_size=40,
)


@settings(max_examples=40)
@given(records=RECORDS, sizes=st.lists(st.integers(0, 2**32 - 1), max_size=2))
def test_a_hostile_ring_harms_no_other_rank(
    records: list[tuple[int, int, bytes, int | None]], sizes: list[int]
) -> None:
    """Records that no library would send, next to a rank of another job that works on."""
    hostile, good = RingClient(), RingClient()
    with device() as d:
        attach(d, hostile)
        attach(d, good, job=2)
        good.alloc(DEV_BASE, HEAP)
        good.write(DEV_BASE, b"mine")
        for opcode, slot, body, seq in records:
            hostile.post(opcode, body, slot, seq)
        for size in sizes:
            hostile.raw(struct.pack("<IHHQ", size, 1, 0, 1))
        assert good.read(DEV_BASE, 4) == b"mine"
        assert good.call(DEVICE_SYNC) == 0
        leave(d)
        leave(d, 2)
        assert d.status()["used"] == 0
    hostile.close()
    good.close()

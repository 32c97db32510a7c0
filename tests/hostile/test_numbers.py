"""Promise: numbers that a client counts itself are checked: whoever miscounts harms itself alone.

Records are numbered 1, 2, 3, … over the life of a channel, whoever serves it; host functions that
have returned are counted in the header.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

import pytest

from rankfold.proxy.native import Native
from rankfold.records import channel
from support.ring_client import (
    ALLOC,
    ASYNC_ERROR,
    CHUNK,
    COLLECTIVE,
    COMM_INIT,
    DEV_BASE,
    DEVICE_SYNC,
    FREE,
    HOST_FUNC,
    HOSTFUNC_TAIL,
    RingClient,
    attach,
    device,
    hand_over,
    leave,
    settle,
    until,
)
from support.words import store32

from .records import BODIES, OPCODES

WRONG: dict[str, Callable[[int], int]] = {
    "zero": lambda right: 0,
    "the last one": lambda right: right - 1,
    "skipping one": lambda right: right + 1,
    "far ahead": lambda right: right + 2**40,
    "from the end": lambda right: 2**64 - 1,
}


@contextmanager
def next_to_another_rank() -> Iterator[tuple[Native, RingClient]]:
    """A device with a rank of another job, which must still be served in the end."""
    with device() as native:
        good = RingClient()
        attach(native, good, job=2)
        good.alloc(DEV_BASE, CHUNK)
        good.write(DEV_BASE, b"mine")
        yield native, good
        assert good.read(DEV_BASE, 4) == b"mine"
        assert native.status()["used"] <= CHUNK
        leave(native, 2)
        good.close()


def refused(native: Native, client: RingClient, text: str, job: int = 1) -> None:
    """The job has failed and says why, the rank has its error."""
    settle(native, job, "failed")
    status = native.job_status(job)
    assert status and text in status["reason"]
    assert client.u32(ASYNC_ERROR) == 1  # invalid value
    leave(native, job)
    client.close()


@pytest.mark.parametrize("wrong", WRONG)
def test_a_record_of_any_kind_with_a_wrong_number(wrong: str) -> None:
    r = Random(1)
    with next_to_another_rank() as (native, _):
        for opcode in OPCODES:
            client = RingClient()
            attach(native, client)
            client.alloc(DEV_BASE, 8 << 20)
            assert client.call(DEVICE_SYNC) == 0
            seq = WRONG[wrong](client.seq + 1)
            client.post(opcode, BODIES[opcode](r), 1, seq)
            why = f"rank 0: its request ring is damaged: record 3 has the number {seq}"
            refused(native, client, why)


@pytest.mark.parametrize("wrong", WRONG)
def test_a_free_with_a_wrong_number_that_waits_for_older_work(wrong: str) -> None:
    with next_to_another_rank() as (native, _):
        client = RingClient()
        attach(native, client)
        client.alloc(DEV_BASE, CHUNK)
        client.alloc(DEV_BASE + CHUNK, CHUNK)
        client.block(1)
        client.write(DEV_BASE, b"x" * 1000)
        client.post(FREE, struct.pack("<Q", DEV_BASE), 0, WRONG[wrong](client.seq + 1))
        until(lambda: client.u32(ASYNC_ERROR) != 0, native)
        store32(client.map, HOSTFUNC_TAIL, 1)  # older functions continue
        client.free(DEV_BASE + CHUNK)
        refused(native, client, "its request ring is damaged: record 5 has the number")


def test_every_opcode_is_among_the_records_gone_wrong() -> None:
    """Whole ones, as a rule: what is cut is cut on purpose."""
    assert set(OPCODES) == {o.number for o in channel().opcodes.values()}
    r = Random(1)
    for opcode in channel().opcodes.values():
        assert len(BODIES[opcode.number](r)) + 16 >= opcode.record.size, opcode.name


def test_a_wrong_number_inside_of_a_group() -> None:
    with next_to_another_rank() as (native, _):
        client = RingClient()
        attach(native, client)
        client.alloc(DEV_BASE, CHUNK)
        assert client.call(COMM_INIT, struct.pack("<QII", 16, 1, 0) + bytes(128)) == 0
        for left, seq in ((2, None), (1, None), (0, 4)):
            body = struct.pack("<6QIIiI", 1, 16, DEV_BASE, DEV_BASE, 8, 0, 0, 7, 0, left)
            client.post(COLLECTIVE, body, 0, seq)
        refused(native, client, "record 5 has the number 4")


@pytest.mark.several_devices
@pytest.mark.parametrize("seq", [1, 3, 5])
def test_the_next_server_continues_counting(seq: int) -> None:
    client = RingClient()
    with device() as to, next_to_another_rank() as (native, _):
        attach(native, client)
        client.alloc(DEV_BASE, CHUNK)
        client.write(DEV_BASE, b"before")
        assert client.read(DEV_BASE, 6) == b"before"
        hand_over(native, client, 1, to, 3)
        client.post(ALLOC, struct.pack("<QQQII", DEV_BASE + CHUNK, 1, 0, 0, 0), 0, seq)
        refused(to, client, f"record 4 has the number {seq}", job=3)


@pytest.mark.parametrize("returned", [1, 3, 2**31])
def test_host_functions_that_were_not_requested_have_returned(returned: int) -> None:
    """The rank has its error, and nothing of it waits any more."""
    client = RingClient()
    with next_to_another_rank() as (native, _):
        attach(native, client)
        if returned == 3:
            client.block(1)
        store32(client.map, HOSTFUNC_TAIL, returned)
        client.post(HOST_FUNC, struct.pack("<QQ", 1, 0))
        client.ring()
        until(lambda: client.u32(ASYNC_ERROR) != 0, native)
        assert client.call(DEVICE_SYNC) == 1
        status = native.rank_status(1, 0)
        assert status and "more host functions returned than were called" in status.error_text
        leave(native)
    client.close()

"""Messages and memory between the proxies of a node, through one shared segment."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from support import native

PEER_COLLECTIVE = 2
DEVICES = 3
TIMES = 5000  # more messages than a ring holds


class End:
    """One device's end of the segment."""

    def __init__(self, library: tuple[Any, Any], fd: int, device: int) -> None:
        self.ffi, self.lib = library
        error = self.ffi.new("char[]", 256)
        self.peer = self.lib.peer_new(fd, device, DEVICES, error, 256)
        self.error = self.ffi.string(error).decode()

    def send(self, to: int, number: int) -> None:
        m = self.ffi.new("struct peer_message *")
        self.ffi.buffer(m)[:8] = struct.pack("<Q", number)
        self.lib.peer_send(self.peer, to, PEER_COLLECTIVE, m)

    def receive(self) -> tuple[int, int] | None:
        sender, tag = self.ffi.new("uint32_t *"), self.ffi.new("uint32_t *")
        m = self.ffi.new("struct peer_message *")
        if not self.lib.peer_receive(self.peer, sender, tag, m):
            return None
        assert tag[0] == PEER_COLLECTIVE
        return sender[0], struct.unpack("<Q", self.ffi.buffer(m)[:8])[0]

    def fetch(self, device: int, offset: int, count: int) -> tuple[int, Any]:
        """At once, or an error: never later."""
        place = self.ffi.new("struct hal_ref *")
        return self.lib.peer_fetch(self.peer, device, offset, count, 1, place), place[0]

    def close(self) -> None:
        self.lib.peer_free(self.peer)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    built = native.build(tmp_path_factory.mktemp("peer"), [native.CORE / "peer/peer.c"])
    message = native.structures(native.CORE / "collective/collective.h", "peer_message")
    message = message or "struct peer_message { uint8_t bytes[192]; };"
    message += native.structures(native.REPOSITORY / "proxy/hal/hal.h", "hal_ref")
    return native.load(built, native.CORE / "peer/peer.h", before=message)


@pytest.fixture
def segment(library: tuple[Any, Any]) -> Iterator[int]:
    fd = library[1].peer_segment_create(DEVICES)
    assert fd >= 0
    yield fd
    os.close(fd)


def echo(library: tuple[Any, Any], fd: int) -> None:
    """Device 1 in a process of its own: sends everything back, with its own memory's address."""
    end = End(library, fd, 1)
    offset = end.ffi.new("uint64_t *")
    memory = end.lib.peer_outbox_alloc(end.peer, 100, offset)
    end.ffi.buffer(memory, 5)[:] = b"hello"
    end.send(0, offset[0])
    count = 0
    while count < TIMES:
        got = end.receive()
        if got:
            assert got == (0, count)
            count += 1
            end.send(0, got[1] * 2)
    while end.receive() != (0, TIMES):  # continues the full ring, until all has been heard
        pass
    end.close()


def test_two_processes(library: tuple[Any, Any], segment: int) -> None:
    """In order, none lost, though the rings are full most of the time; and memory is shared."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            echo(library, segment)
            status = 0
        finally:
            os._exit(status)
    end = End(library, segment, 0)
    for number in range(TIMES):  # no sender waits for space
        end.send(1, number)
    heard: list[int] = []
    while len(heard) < TIMES + 1:
        got = end.receive()
        if got:
            assert got[0] == 1
            heard.append(got[1])
    end.send(1, TIMES)
    error, at = end.fetch(1, heard[0], 5)
    assert error == 0 and at.space == end.ffi.NULL
    assert bytes(end.ffi.buffer(end.ffi.cast("uint8_t *", at.addr), 5)) == b"hello"
    end.lib.peer_release(end.peer, 1, at, 5)
    assert heard[1:] == [2 * n for n in range(TIMES)]
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    end.close()


def test_only_sleepers_are_woken(library: tuple[Any, Any], segment: int) -> None:
    a, b = End(library, segment, 0), End(library, segment, 2)
    bell = b.lib.peer_doorbell(b.peer)
    a.send(2, 1)
    assert bell[0] == 0
    b.lib.peer_sleep(b.peer, True)
    a.send(2, 2)
    assert bell[0] == 1
    b.lib.peer_sleep(b.peer, False)
    a.send(2, 3)
    assert bell[0] == 1
    assert [b.receive() for _ in range(4)] == [(0, 1), (0, 2), (0, 3), None]
    a.close()
    b.close()


def test_a_sender_with_more_than_fits_is_woken_whenever_there_is_space(
    library: tuple[Any, Any], segment: int
) -> None:
    a, b = End(library, segment, 0), End(library, segment, 2)
    for number in range(520):  # some more than a ring holds
        a.send(2, number)
    a.lib.peer_sleep(a.peer, True)
    assert a.receive() is None  # continues its full ring, without success
    bell = a.lib.peer_doorbell(a.peer)
    for taken in range(3):  # a wake-up may come before it sleeps: each counts
        assert b.receive() == (0, taken)
        assert bell[0] == taken + 1
    assert a.receive() is None
    assert [b.receive() for _ in range(3, 515)] == [(0, n) for n in range(3, 515)]
    assert a.receive() is None  # all is in the ring: nothing more to wait for
    rung = bell[0]
    assert [b.receive() for _ in range(6)] == [*((0, n) for n in range(515, 520)), None]
    assert bell[0] == rung
    a.close()
    b.close()


def test_outbox_memory_is_given_out_once_and_again(library: tuple[Any, Any], segment: int) -> None:
    a = End(library, segment, 0)
    offset = a.ffi.new("uint64_t *")
    taken: dict[int, int] = {}
    for size in (1, 4096, 5000, 1 << 20, 32 << 20):
        assert a.lib.peer_outbox_alloc(a.peer, size, offset) != a.ffi.NULL
        for other, length in taken.items():
            assert offset[0] + size <= other or other + length <= offset[0]
        taken[offset[0]] = size
    highest = max(taken)
    for at in sorted(taken, key=lambda o: o * 7919 % 13):
        a.lib.peer_outbox_free(a.peer, at, taken[at])
    assert a.lib.peer_outbox_alloc(a.peer, highest, offset) != a.ffi.NULL
    assert offset[0] == 0  # all pieces have grown together again
    assert a.lib.peer_outbox_alloc(a.peer, 1 << 60, offset) == a.ffi.NULL
    a.close()


def test_bounds_and_strangers(library: tuple[Any, Any], segment: int) -> None:
    a = End(library, segment, 0)
    null = a.ffi.NULL
    for device, offset, size in [(3, 0, 1), (1, 2**64 - 1, 2), (1, 1 << 36, 1), (1, 1, 2**64 - 1)]:
        assert a.fetch(device, offset, size)[0] == 4
    a.close()
    stranger = os.memfd_create("stranger", os.MFD_ALLOW_SEALING)
    os.ftruncate(stranger, 1 << 20)
    refused = End(library, stranger, 0)
    assert refused.peer == null and "not the shared segment" in refused.error
    os.close(stranger)
    assert library[1].peer_segment_create(1) < 0

"""Messages and memory between the proxies of a node, through one shared segment."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
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


SOURCE = native.CORE / "peer/peer.c"


def load(folder: Path, source: Path = SOURCE) -> tuple[Any, Any]:
    built = native.build(folder, [source])
    message = native.structures(native.CORE / "collective/collective.h", "peer_message")
    message = message or "struct peer_message { uint8_t bytes[192]; };"
    message += native.structures(native.REPOSITORY / "proxy/hal/hal.h", "hal_ref", "hal_outbox")
    return native.load(built, native.CORE / "peer/peer.h", before=message)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    return load(tmp_path_factory.mktemp("peer"))


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
    memory = end.lib.peer_outbox_alloc(end.peer, 100, 1, offset)
    end.ffi.buffer(end.ffi.cast("uint8_t *", memory), 5)[:] = b"hello"
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
        assert a.lib.peer_outbox_alloc(a.peer, size, 2, offset) != 0
        for other, length in taken.items():
            assert offset[0] + size <= other or other + length <= offset[0]
        taken[offset[0]] = size
    highest = max(taken)
    for at in sorted(taken, key=lambda o: o * 7919 % 13):
        a.lib.peer_outbox_free(a.peer, at, taken[at])
    assert a.lib.peer_outbox_alloc(a.peer, highest, 2, offset) != 0
    assert offset[0] == 0  # all pieces have grown together again
    assert a.lib.peer_outbox_alloc(a.peer, 1 << 60, 2, offset) == 0
    a.close()


SECOND = 1 << 36  # offsets from here on are in the second outbox
ROOM = 1 << 20  # of it


def outbox(end: End, addr: int) -> Any:
    return end.ffi.new("struct hal_outbox *", {"addr": addr, "bytes": ROOM, "fd": -1})


def test_readers_that_have_opened_the_second_outbox_get_what_is_for_them_there(
    library: tuple[Any, Any], segment: int
) -> None:
    """Bytes that another device reads as well are in the first one, and so are bytes that find
    no room."""
    a, b = End(library, segment, 0), End(library, segment, 1)
    offset = a.ffi.new("uint64_t *")

    def given(size: int, readers: int) -> tuple[int, int]:
        return a.lib.peer_outbox_alloc(a.peer, size, readers, offset), offset[0]

    a.lib.peer_outbox_set(a.peer, 0, outbox(a, 0x7000_0000_0000))
    assert given(100, 0b010)[1] < SECOND, "device 1 has not opened it"
    b.lib.peer_outbox_set(b.peer, 0, outbox(b, 0x7100_0000_0000))
    sender, tag = a.ffi.new("uint32_t *"), a.ffi.new("uint32_t *")
    message = a.ffi.new("struct peer_message *")
    assert a.lib.peer_receive(a.peer, sender, tag, message)
    assert (sender[0], tag[0]) == (1, a.lib.PEER_READS)
    a.lib.peer_outbox_opened(a.peer, sender[0])
    first, second = given(5000, 0b010), given(5000, 0b010)
    assert first == (0x7000_0000_0000, SECOND) and second == (0x7000_0000_2000, SECOND + 0x2000)
    assert given(5000, 0b110)[1] < SECOND, "device 2 reads it as well"
    assert given(ROOM, 0b010)[1] < SECOND, "there is less left"
    error, place = b.fetch(0, second[1], 5000)
    assert (error, place.space, place.addr) == (0, b.ffi.NULL, 0x7100_0000_2000)
    for at in (first, second):
        a.lib.peer_outbox_free(a.peer, at[1], 5000)
    assert given(ROOM, 0b010) == (0x7000_0000_0000, SECOND)
    a.close()
    b.close()


def test_bytes_outside_a_second_outbox_are_refused(library: tuple[Any, Any], segment: int) -> None:
    a = End(library, segment, 0)
    for size in (0, 1, ROOM):
        assert a.fetch(1, SECOND + 1, size)[0] == 4, "it is not open"
    a.lib.peer_outbox_set(a.peer, 1, outbox(a, 0x7100_0000_0000))
    for at, size in [
        (SECOND, ROOM + 1),
        (SECOND + ROOM, 1),
        (SECOND + 1, 2**64 - 1),
        (2**64 - 1, 2),
    ]:
        assert a.fetch(1, at, size)[0] == 4
    assert a.fetch(1, SECOND + ROOM - 1, 1)[0] == 0
    assert a.fetch(2, SECOND, 1)[0] == 4
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

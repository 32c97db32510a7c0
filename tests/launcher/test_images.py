"""Changes to a frozen rank: saved registers, parts of its channel."""

from __future__ import annotations

import errno
import os
import random
import struct
from pathlib import Path

import pytest

from rankfold import records
from rankfold.interpose.launcher.criu import images
from rankfold.interpose.launcher.criu.sockets import Connection, _end
from rankfold.interpose.launcher.snapshot import channel
from rankfold.interpose.launcher.snapshot.snapshot import _gap

EPOLL_WAIT, FORK = 232, 57
INTERRUPTED = 2**64 - errno.EINTR
IP = 0x7F0012345680


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def message(field: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return varint(field << 3 | 2) + varint(len(body)) + body


def core(ax: int, call: int, pending: bool = False) -> bytes:
    registers = message(
        2,
        *(number(n, 5) for n in range(1, 11)),
        number(11, ax),
        *(number(n, 6) for n in range(12, 16)),
        number(16, call),
        number(17, IP),
        number(18, 51),
    )
    signals = message(9, message(1, b"x" * 128)) if pending else message(9)
    parts = number(1, 1) + message(2, number(1, 7), registers)
    parts += message(3, number(1, 1)) + message(5, number(1, 0), signals)
    return struct.pack("<III", 1, 2, len(parts)) + parts


@pytest.mark.parametrize(
    ("ax", "call", "pending", "repaired"),
    [
        (INTERRUPTED, EPOLL_WAIT, False, True),
        (INTERRUPTED, EPOLL_WAIT, True, False),
        (INTERRUPTED, FORK, False, False),
        (INTERRUPTED, 2**64 - 1, False, False),
        (3, EPOLL_WAIT, False, False),
    ],
)
def test_only_an_interrupted_call_begins_anew(
    tmp_path: Path, ax: int, call: int, pending: bool, repaired: bool
) -> None:
    path = tmp_path / "core-1001.img"
    before = core(ax, call, pending)
    path.write_bytes(before)
    assert images.repair(tmp_path) == repaired
    after = path.read_bytes()
    assert len(after) == len(before)
    assert (after != before) == repaired
    registers = images.Message(bytearray(after), 12, len(after)).inside(2, 2)
    assert registers is not None
    found = [registers.number(field) for field in (10, 11, 15, 16, 17, 18)]
    expected = [call, IP - 2] if repaired else [ax, IP]
    assert found == [5, expected[0], 6, call, expected[1], 51]


def test_pids_of_criu_are_between_the_ranks() -> None:
    assert _gap({1000, 1001}) == 299
    assert _gap({300, 320, 1000}) == 320
    assert _gap({310, 370, 430, 1000}) == 430


def test_ends_are_read_as_the_kernel_writes_them() -> None:
    assert _end("0100007F:1F90") == ("127.0.0.1", 8080)
    assert _end("0000000000000000FFFF00000100007F:0016") == ("127.0.0.1", 22)
    assert _end("00000000000000000000000001000000:0016") == ("::1", 22)
    connection = Connection("::1", 22, "::2", 23)
    assert not connection.is_ipv4
    assert connection.element(False) == "::1 . 22 . ::2 . 23"
    assert connection.element(True) == "::2 . 23 . ::1 . 22"


@pytest.mark.parametrize("minor", [9, 10])
@pytest.mark.parametrize("seed", range(20))
def test_unconsumed_records_are_kept(seed: int, minor: int) -> None:
    """Records being written behind the ring's head are kept, and so are those that may be: before
    version 1.10 the ring does not say."""
    chance = random.Random(seed)
    tail = chance.randrange(0, 1 << 40, 64)
    used = chance.choice([0, 64, 4096, chance.randrange(0, channel.RING_BYTES, 64)])
    if seed == 0:
        used = channel.RING_BYTES
    making = chance.choice([-64, 0, 64, chance.randrange(0, 2 * channel.RECORD_MAX, 64)])
    busy = chance.getrandbits(64)
    header = records.channel().structs["rf_header"]
    fd = os.memfd_create("channel")
    try:
        end = channel.BULK + channel.BULK_COUNT * channel.BULK_BYTES
        os.pwrite(fd, b"\1" * (end - channel.RING), channel.RING)
        os.pwrite(fd, struct.pack("<Q", tail + used), header["head"].offset)
        os.pwrite(fd, struct.pack("<Q", tail), header["tail"].offset)
        os.pwrite(fd, struct.pack("<Q", busy), header["bulk_busy"].offset)
        os.pwrite(fd, struct.pack("<I", minor), header["minor"].offset)
        os.pwrite(fd, struct.pack("<Q", tail + used + making), header["writing"].offset)
        channel.punch(fd)
        ring = os.pread(fd, channel.RING_BYTES, channel.RING)
        behind = max(making, 0) if minor == 10 else 2 * channel.RECORD_MAX
        kept = min(used + behind, channel.RING_BYTES)
        at = tail % channel.RING_BYTES
        turned = ring[at:] + ring[:at]
        assert turned[:kept] == b"\1" * kept
        assert not any(turned[kept:])
        for slot in range(channel.BULK_COUNT):
            data = os.pread(fd, 16, channel.BULK + slot * channel.BULK_BYTES)
            assert data == bytes([busy >> slot & 1]) * 16
    finally:
        os.close(fd)

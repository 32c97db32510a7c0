"""Damaged images of modules: each is refused with an error that names what is wrong, or is still a
module; none ends or delays the proxy."""

from __future__ import annotations

import random
import re
import struct

import lz4.block
import pytest
import zstandard

from rankfold.proxy.ptx import fatbin
from rankfold.proxy.ptx.errors import INVALID_IMAGE, NO_BINARY_FOR_GPU, ModuleError
from rankfold.proxy.ptx.info import module_info

pytestmark = pytest.mark.unit

PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .global .align 4 .u32 numbers[4] = {1, 2, 3, 4};
.visible .entry kernel(.param .u64 p) {
    .reg .b64 %rd<3>; .reg .b32 %r<3>;
    ld.param.u64 %rd1, [p]; mov.u32 %r1, %tid.x; st.global.u32 [%rd1], %r1; ret; }
"""
ZSTD, LZ4 = 0x8000, 0x2000
CC = (12, 0)


def entry(payload: bytes, flags: int = 0, kind: int = 1, size: int = len(PTX)) -> bytes:
    padded = payload.ljust(-(-len(payload) // 8) * 8, b"\0")
    numbers = (len(padded), len(payload), 0, 0, 0, 70, 0, 0, flags, 0, size)
    return fatbin._ENTRY.pack(kind, 0x101, fatbin._ENTRY.size, *numbers) + padded


def fatbinary(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return struct.pack("<IHHQ", fatbin.MAGIC, 1, 16, len(body)) + body


def lz4_of(text: bytes) -> bytes:
    return bytes(lz4.block.compress(text, store_size=False))


IMAGES = {
    "plain": fatbinary(entry(PTX)),
    "zstd": fatbinary(entry(zstandard.compress(PTX), ZSTD)),
    "LZ4": fatbinary(entry(lz4_of(PTX), LZ4), entry(b"\x7fELF" + bytes(60), kind=2)),
}
HUGE_FRAME = b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 1 << 50) + zstandard.compress(PTX)[6:]


def elf(machine: int, flags: int, abi: int = 7) -> bytes:
    head = b"\x7fELF\2\1\1\x33" + bytes([abi]) + bytes(7)
    return head + struct.pack("<HHIQQQI", 2, machine, 1, 0, 64, 64, flags) + bytes(12)


@pytest.mark.parametrize(
    ("image", "code", "message"),
    [
        (b"\x50\xed\x55\xba", NO_BINARY_FOR_GPU, "it contains nothing"),
        (IMAGES["plain"][:-1], INVALID_IMAGE, "shorter than its header says"),
        (fatbinary(entry(PTX)[:-8]), INVALID_IMAGE, "a damaged entry"),
        (fatbinary(entry(zstandard.compress(PTX)[:-9], ZSTD)), INVALID_IMAGE, "damaged zstd data"),
        (fatbinary(entry(PTX, ZSTD)), INVALID_IMAGE, "damaged zstd data"),
        (fatbinary(entry(HUGE_FRAME, ZSTD)), INVALID_IMAGE, "larger than 256 MiB"),
        (fatbinary(entry(lz4_of(PTX)[:-9], LZ4)), INVALID_IMAGE, "damaged LZ4|ends early"),
        (fatbinary(entry(lz4_of(PTX), LZ4, size=9)), INVALID_IMAGE, "damaged LZ4"),
        (fatbinary(entry(lz4_of(PTX), LZ4, size=1 << 20)), INVALID_IMAGE, "ends early"),
        (fatbinary(entry(lz4_of(PTX), LZ4, size=1 << 60)), INVALID_IMAGE, "larger than 256 MiB"),
        (fatbinary(entry(b"\xff" * 64)), INVALID_IMAGE, "not UTF-8"),
        (elf(190, 0x560556), NO_BINARY_FOR_GPU, "machine code for sm_86, but no PTX.*nvcc -ptx"),
        (elf(190, 0x6007802, 8), NO_BINARY_FOR_GPU, "machine code for sm_120, but no PTX"),
        (elf(62, 0), NO_BINARY_FOR_GPU, "for another processor"),
        (elf(190, 0)[:30], NO_BINARY_FOR_GPU, "ends within its header"),
    ],
)
def test_a_damaged_image_is_refused_by_name(image: bytes, code: int, message: str) -> None:
    with pytest.raises(ModuleError) as refused:
        fatbin.ptx_of(image, CC)
    assert refused.value.code == code
    assert re.search(message, refused.value.message), refused.value.message


def damaged(image: bytes, chance: random.Random) -> bytes:
    """The image with up to four changes, half of them near its headers."""
    data = bytearray(image)
    for _ in range(chance.randint(1, 4)):
        end = len(data) if chance.random() < 0.5 else min(len(data), 120)
        at = chance.randrange(end) if end else 0
        length = chance.choice((1, 2, 4, 8))
        filling = chance.choice((b"\0", b"\xff", b"\x7f", chance.randbytes(1))) * length
        data[at:] = chance.choice(
            (filling + data[at + length :], data[at + length :], b"", filling + data[at:])
        )
    return bytes(data)


@pytest.mark.parametrize("kind", IMAGES)
def test_any_damage_is_an_error_or_harmless(kind: str) -> None:
    """Another exception than ModuleError would end the proxy, and all ranks of its device."""
    chance, refused = random.Random(38), 0
    for _ in range(1500):
        image = damaged(IMAGES[kind], chance)
        try:
            module_info(fatbin.ptx_of(image, CC))
        except ModuleError as error:
            assert error.message
            refused += 1
    assert refused > 500  # the damage reaches what is checked

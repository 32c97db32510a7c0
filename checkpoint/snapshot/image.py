"""A rank's image as its proxy saves it (proxy/core/loop/saved.h): what of it is alive.

By heap offset lies the memory, behind it the state: records, of which some name the live buffers
and the chunks that have content in the image. What no chunk of these holds reads as zeros; what no
buffer holds is nobody's.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

from rankfold import records

GRAIN = 4 << 20  # of what is left out for being empty, from a buffer's start
_RECORD = struct.Struct("<IHHQ")


class Malformed(ValueError):
    """No saved state, or one of another version."""


class Range(NamedTuple):
    """Memory of a live buffer."""

    address: int
    length: int


class Image(NamedTuple):
    """What is alive in an image."""

    ranges: list[Range]  # by address
    state: int  # bytes of header and records, 0: the rank has saved nothing yet
    modules: frozenset[str]  # hashes of those that are not in the state


def heap_offset(address: int) -> int:
    """Where in the image the memory at a device address lies."""
    base: int = records.saved().constants["RF_DEV_BASE"]
    return address - base


def state_offset() -> int:
    """Where in the image the state lies."""
    return records.saved().constants["STATE_OFFSET"]


def look(file: int) -> Image:
    """Of the image with this descriptor. Raises Malformed."""
    saved = records.saved()
    shape = saved.structs["state_header"]
    data = os.pread(file, shape.size, state_offset())
    header = saved.unpack(shape, data.ljust(shape.size, b"\0"))
    if not header["magic"]:
        return Image([], 0, frozenset())
    version = saved.constants["STATE_VERSION"]
    if header["magic"] != saved.constants["STATE_MAGIC"] or header["version"] != version:
        raise Malformed(f"has no saved state of version {version}")
    if header["bytes"] > saved.constants["STATE_BYTES_MAX"]:
        raise Malformed(f"has a saved state of {header['bytes']} bytes")
    first = state_offset() + shape.size
    buffers: list[Range] = []
    chunks: set[int] = set()
    modules: set[str] = set()
    buffer, chunk, module = (saved.opcodes[name] for name in ("BUFFER", "CHUNK", "MODULE"))
    for opcode, body in _records(file, first, header["bytes"]):
        if opcode == buffer.number:
            found = saved.unpack(buffer.record, body)
            buffers.append(Range(found["addr"], found["bytes"]))
        elif opcode == chunk.number:
            chunks.add(saved.unpack(chunk.record, body)["chunk"])
        elif opcode == module.number:
            found = saved.unpack(module.record, body)
            modules |= {found["hash"]} if found["hash"] and not found["image_bytes"] else set()
    alive = list(_alive(buffers, chunks))
    return Image(alive, shape.size + header["bytes"], frozenset(modules))


def _records(file: int, first: int, size: int) -> Iterator[tuple[int, bytes]]:
    """(opcode, the fixed part) of each record, to the last."""
    saved = records.saved()
    by_number, at = saved.by_number(), 0
    while size - at >= _RECORD.size:
        length, number, _, _ = _RECORD.unpack(os.pread(file, _RECORD.size, first + at))
        opcode = by_number.get(number)
        if opcode is None or not opcode.record.size <= length <= size - at:
            break
        if opcode.name == "END":
            return
        yield number, os.pread(file, opcode.record.size, first + at)
        at += length
    raise Malformed(f"its saved state has no record at byte {at}")


def _alive(buffers: list[Range], chunks: set[int]) -> Iterator[Range]:
    """Buffers, without the pieces that lie in no chunk. Pieces count from a buffer's start, so that
    equal buffers are cut alike. Each reaches as far as the allocation: programs read and write a
    little beyond what they asked for, as real devices let them."""
    constants = records.saved().constants
    chunk, align = constants["RF_CHUNK_BYTES"], constants["RF_ALLOC_ALIGN"]
    end = 0
    for address, asked in sorted(buffers):
        offset = heap_offset(address)
        length = -(-asked // align) * align
        if offset < end or asked < 1:
            raise Malformed(f"{asked} bytes at {address:#x} are no live buffer")
        end = offset + length
        start = None
        for at in range(offset, end, GRAIN):
            last = min(at + GRAIN, end) - 1
            there = any(n in chunks for n in range(at // chunk, last // chunk + 1))
            if there and start is None:
                start = at
            if not there and start is not None:
                yield Range(address + start - offset, at - start)
                start = None
        if start is not None:
            yield Range(address + start - offset, end - start)

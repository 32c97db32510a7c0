"""A rank's image as its proxy saves it (proxy/core/loop/saved.h): what of it is alive.

By heap offset lies the memory, behind it the state: records, of which some name the live buffers
and the chunks that have content. What no chunk of these holds reads as zeros; what no buffer holds
is nobody's. What several ranks hold alike may lie in the image of one of them: where a job was
saved and stayed the others' states name it, where a checkpoint was fetched a note beside each.
"""

from __future__ import annotations

import json
import os
import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Set
from pathlib import Path
from typing import NamedTuple

from rankfold import records
from rankfold.plural import count

NOTE = "image.elsewhere"
GRAIN = 4 << 20  # of what is left out for being empty, from a buffer's start
_SAVED = records.saved()
_RECORD = struct.Struct("<IHHQ")
_RECORD_MAX = 4096  # bytes of the fixed part of one
_READ = 1 << 20  # bytes that are read at once


class Malformed(ValueError):
    """No saved state, or one of another version; or no such note."""


class Range(NamedTuple):
    """Memory of a live buffer: all of it, or what of it lies between chunks that hold nothing."""

    address: int
    length: int
    whole: int  # bytes of the buffer


class Elsewhere(NamedTuple):
    """A part of an image, by offset, that lies at the same place of another rank's."""

    begin: int
    end: int
    rank: int


class Image(NamedTuple):
    """What is alive in an image."""

    ranges: list[Range]  # by address
    state: int  # bytes of header and records, 0: the rank has saved nothing yet
    modules: frozenset[str]  # hashes of those that are not in the state
    elsewhere: list[Elsewhere]  # one behind the other
    keys: dict[int, bytes]  # of chunks: equal ones are equal bytes, in all ranks of the job

    def known(self, begin: int, end: int) -> Iterator[tuple[bytes, int, int, int]]:
        """Of each chunk between two offsets the key (nothing: it has none), where the chunk begins,
        and from where to where it lies between them."""
        size = _SAVED.constants["RF_CHUNK_BYTES"]
        for at in range(begin // size * size, end, size):
            yield self.keys.get(at // size, b""), at, max(at, begin), min(at + size, end)

    def pieces(self, begin: int, end: int) -> Iterator[tuple[int | None, int, int]]:
        """Parts of the memory between two offsets: the rank in whose image it lies (None: in this
        one), where it begins and ends."""
        at, n = begin, bisect_right(self.elsewhere, begin, key=lambda each: each.end)
        while n < len(self.elsewhere) and self.elsewhere[n].begin < end:
            first, last, rank = self.elsewhere[n]
            if at < first:
                yield None, at, first
            at, start, n = min(last, end), max(first, begin), n + 1
            yield rank, start, at
        if at < end:
            yield None, at, end


def heap_offset(address: int) -> int:
    """Where in the image the memory at a device address lies."""
    base: int = _SAVED.constants["RF_DEV_BASE"]
    return address - base


def state_offset() -> int:
    """Where in the image the state lies."""
    return _SAVED.constants["STATE_OFFSET"]


def look(file: int) -> Image:
    """Of the image with this descriptor. Raises Malformed."""
    shape = _SAVED.structs["state_header"]
    data = os.pread(file, shape.size, state_offset())
    header = _SAVED.unpack(shape, data.ljust(shape.size, b"\0"))
    if not header["magic"]:
        return Image([], 0, frozenset(), [], {})
    version = _SAVED.constants["STATE_VERSION"]
    if header["magic"] != _SAVED.constants["STATE_MAGIC"] or header["version"] != version:
        raise Malformed(f"has no saved state of version {version}")
    if header["bytes"] > _SAVED.constants["STATE_BYTES_MAX"]:
        raise Malformed(f"has a saved state of {count(header['bytes'], 'byte')}")
    first = state_offset() + shape.size
    buffers: list[tuple[int, int]] = []
    chunks: dict[int, int] = {}  # and with whom they lie
    keys: dict[int, bytes] = {}
    modules: set[str] = set()
    own = -1
    rank, buffer, chunk, module = (
        _SAVED.opcodes[name] for name in ("RANK", "BUFFER", "CHUNK", "MODULE")
    )
    for opcode, body in _records(file, first, header["bytes"]):
        if opcode == rank.number:
            own = _SAVED.unpack(rank.record, body)["rank"]
        elif opcode == buffer.number:
            found = _SAVED.unpack(buffer.record, body)
            buffers.append((found["addr"], found["bytes"]))
        elif opcode == chunk.number:
            found = _SAVED.unpack(chunk.record, body)
            chunks[found["chunk"]] = found["lies_with"]
            if any(found["key"]):
                keys[found["chunk"]] = struct.pack("<2Q", *found["key"])
        elif opcode == module.number:
            found = _SAVED.unpack(module.record, body)
            modules |= {found["hash"]} if found["hash"] and not found["image_bytes"] else set()
    size = _SAVED.constants["RF_CHUNK_BYTES"]
    elsewhere = sorted(
        Elsewhere(n * size, (n + 1) * size, with_) for n, with_ in chunks.items() if with_ != own
    )
    if not header["elsewhere"]:
        elsewhere = []  # they have been brought
    elif header["elsewhere"] != len(elsewhere):
        raise Malformed(f"names {len(elsewhere)} chunks of other ranks, not {header['elsewhere']}")
    alive = list(_alive(buffers, chunks.keys()))
    return Image(alive, shape.size + header["bytes"], frozenset(modules), elsewhere, keys)


def state_version(file: int) -> int:
    """Of the state in the image with this descriptor, 0: the rank has saved nothing yet."""
    shape = _SAVED.structs["state_header"]
    data = os.pread(file, shape.size, state_offset())
    header = _SAVED.unpack(shape, data.ljust(shape.size, b"\0"))
    return int(header["version"]) if header["magic"] == _SAVED.constants["STATE_MAGIC"] else 0


def note(image: Path, elsewhere: Iterable[Elsewhere]) -> None:
    """Beside the image: what of it lies in those of other ranks, in the folders beside its own.
    Raises OSError."""
    text = json.dumps([list(each) for each in elsewhere])
    image.with_name(NOTE).write_text(text)


def noted(image: Path) -> list[Elsewhere]:
    """What `note` wrote beside the image, in order. Raises Malformed, OSError."""
    try:
        text = image.with_name(NOTE).read_text()
    except FileNotFoundError:
        return []
    try:
        found = sorted(Elsewhere(*map(int, each)) for each in json.loads(text))
    except (ValueError, TypeError) as error:
        raise Malformed(f"has an {NOTE} that cannot be read: {error}") from error
    at, end = 0, state_offset()
    for each in found:
        if not at <= each.begin < each.end <= end or each.rank < 0:
            raise Malformed(f"has an {NOTE} with {list(each)}, which is no part of its memory")
        at = each.end
    return found


def own(file: int) -> list[tuple[int, int]]:
    """Where the image has the memory that its rank has, from the first byte to the last: what lies
    in others' it may hold as it was before. An image that is malformed is so in all of it."""
    size = min(os.fstat(file).st_size, state_offset())
    try:
        pieces = look(file).pieces(0, size)
    except Malformed:
        return [(0, size)]
    return [(begin, end) for other, begin, end in pieces if other is None]


def state_range(file: int) -> tuple[int, int]:
    """Where the image has its state, from the first byte to the last that it may have."""
    size = os.fstat(file).st_size
    end = state_offset() + _SAVED.constants["STATE_BYTES_MAX"]
    return min(size, state_offset()), min(size, end)


def whole(header: bytes) -> bytes:
    """The beginning of a state, as it is when nothing lies in other ranks' images any more."""
    field = _SAVED.structs["state_header"]["elsewhere"]
    return header[: field.offset] + bytes(field.size) + header[field.offset + field.size :]


def _records(file: int, first: int, size: int) -> Iterator[tuple[int, bytes]]:
    """(opcode, the fixed part) of each record, to the last."""
    by_number, at, begin, held = _SAVED.by_number(), 0, 0, b""
    while size - at >= _RECORD.size:
        if at + _RECORD_MAX > begin + len(held):
            begin, held = at, os.pread(file, min(_READ, size - at), first + at)
        length, number, _, _ = _RECORD.unpack_from(held, at - begin)
        opcode = by_number.get(number)
        if opcode is None or not opcode.record.size <= length <= size - at:
            break
        if opcode.name == "END":
            return
        yield number, held[at - begin : at - begin + opcode.record.size]
        at += length
    raise Malformed(f"its saved state has no record at byte {at}")


def _alive(buffers: list[tuple[int, int]], chunks: Set[int]) -> Iterator[Range]:
    """Buffers, without the pieces that lie in no chunk. Pieces count from a buffer's start, so that
    equal buffers are cut alike. Each reaches as far as the allocation: programs read and write a
    little beyond what they asked for, as real devices let them."""
    constants = _SAVED.constants
    chunk, align = constants["RF_CHUNK_BYTES"], constants["RF_ALLOC_ALIGN"]
    end = 0
    for address, asked in sorted(buffers):
        offset = heap_offset(address)
        length = -(-asked // align) * align
        if offset < end or asked < 1:
            raise Malformed(f"{count(asked, 'byte')} at {address:#x} are no live buffer")
        end = offset + length
        start = None
        for at in range(offset, end, GRAIN):
            last = min(at + GRAIN, end) - 1
            there = any(n in chunks for n in range(at // chunk, last // chunk + 1))
            if there and start is None:
                start = at
            if not there and start is not None:
                yield Range(address + start - offset, at - start, length)
                start = None
        if start is not None:
            yield Range(address + start - offset, end - start, length)

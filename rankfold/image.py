"""Reads a rank's image as its proxy saves it (proxy/core/loop/saved.h): which parts are in use.

The image has the memory by heap offset, then the state: records. Some records name the live
buffers and the chunks that have content. Memory of a buffer outside of these chunks reads as zeros;
memory outside of all buffers is unused. Content that several ranks share may be in the image of
only one of them: after a save at which the job stayed, the other ranks' states name that rank; in a
fetched checkpoint, a note next to each image does.
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
GRAIN = 4 << 20  # granularity at which empty parts are left out, counted from a buffer's start
_SAVED = records.saved()
_RECORD = struct.Struct("<IHHQ")
_RECORD_MAX = 4096  # largest fixed part of a record, in bytes
_READ = 1 << 20  # bytes per read


class Malformed(ValueError):
    """The file is no saved state, has another version, or has an invalid note."""


class Range(NamedTuple):
    """Memory of a live buffer: all of it, or a part between chunks without content."""

    address: int
    length: int
    whole: int  # bytes of the whole buffer


class Elsewhere(NamedTuple):
    """A part of an image, by offset, whose content is at the same offset of another rank's
    image."""

    begin: int
    end: int
    rank: int


class Image(NamedTuple):
    """The used parts of an image."""

    ranges: list[Range]  # by address
    state: int  # bytes of header and records; 0: the rank has saved nothing yet
    modules: frozenset[str]  # hashes of modules whose code is not in the state
    elsewhere: list[Elsewhere]  # sorted, without overlap
    keys: dict[int, bytes]  # of chunks: equal keys mean equal bytes, in all ranks of the job

    def known(self, begin: int, end: int) -> Iterator[tuple[bytes, int, int, int]]:
        """For each chunk between two offsets: its key (empty: it has none), where the chunk begins,
        and where its part between the offsets begins and ends."""
        size = _SAVED.constants["RF_CHUNK_BYTES"]
        for offset in range(begin // size * size, end, size):
            yield (
                self.keys.get(offset // size, b""),
                offset,
                max(offset, begin),
                min(offset + size, end),
            )

    def pieces(self, begin: int, end: int) -> Iterator[tuple[int | None, int, int]]:
        """Parts of the memory between two offsets: the rank whose image has the part (None: this
        image), and where the part begins and ends."""
        offset, n = begin, bisect_right(self.elsewhere, begin, key=lambda each: each.end)
        while n < len(self.elsewhere) and self.elsewhere[n].begin < end:
            first, last, rank = self.elsewhere[n]
            if offset < first:
                yield None, offset, first
            offset, start, n = min(last, end), max(first, begin), n + 1
            yield rank, start, offset
        if offset < end:
            yield None, offset, end


def heap_offset(address: int) -> int:
    """The offset in the image of the memory at a device address."""
    base: int = _SAVED.constants["RF_DEV_BASE"]
    return address - base


def state_offset() -> int:
    """The offset in the image of the state."""
    return _SAVED.constants["STATE_OFFSET"]


def read_image(file: int) -> Image:
    """Read which parts of the image with this descriptor are in use. Raises Malformed."""
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
    chunks: dict[int, int] = {}  # and the rank whose image has the content
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
            chunks[found["chunk"]] = found["image_owner"]
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
        elsewhere = []  # their content has been copied here
    elif header["elsewhere"] != len(elsewhere):
        raise Malformed(f"names {len(elsewhere)} chunks of other ranks, not {header['elsewhere']}")
    alive = list(_alive(buffers, chunks.keys()))
    return Image(alive, shape.size + header["bytes"], frozenset(modules), elsewhere, keys)


def state_version(file: int) -> int:
    """The version of the state in the image with this descriptor; 0: the rank has saved nothing
    yet."""
    shape = _SAVED.structs["state_header"]
    data = os.pread(file, shape.size, state_offset())
    header = _SAVED.unpack(shape, data.ljust(shape.size, b"\0"))
    return int(header["version"]) if header["magic"] == _SAVED.constants["STATE_MAGIC"] else 0


def note(image: Path, elsewhere: Iterable[Elsewhere]) -> None:
    """Write a note next to the image: which parts are in the images of other ranks, whose folders
    are next to its own. Raises OSError."""
    text = json.dumps([list(each) for each in elsewhere])
    image.with_name(NOTE).write_text(text)


def noted(image: Path) -> list[Elsewhere]:
    """Read what `note` wrote next to the image, in order. Raises Malformed, OSError."""
    try:
        text = image.with_name(NOTE).read_text()
    except FileNotFoundError:
        return []
    try:
        runs = sorted(Elsewhere(*map(int, each)) for each in json.loads(text))
    except (ValueError, TypeError) as error:
        raise Malformed(f"has an {NOTE} that cannot be read: {error}") from error
    offset, end = 0, state_offset()
    for each in runs:
        if not offset <= each.begin < each.end <= end or each.rank < 0:
            raise Malformed(f"has an {NOTE} with {list(each)}, which is not part of its memory")
        offset = each.end
    return runs


def own_ranges(file: int) -> list[tuple[int, int]]:
    """Ranges of the image, (begin, end), with current memory of its rank. Parts whose content is in
    other ranks' images may be outdated here. Of a malformed image: all of it."""
    size = min(os.fstat(file).st_size, state_offset())
    try:
        pieces = read_image(file).pieces(0, size)
    except Malformed:
        return [(0, size)]
    return [(begin, end) for other, begin, end in pieces if other is None]


def state_range(file: int) -> tuple[int, int]:
    """The range of the image that its state may use: begin, end."""
    size = os.fstat(file).st_size
    end = state_offset() + _SAVED.constants["STATE_BYTES_MAX"]
    return min(size, state_offset()), min(size, end)


def self_contained(header: bytes) -> bytes:
    """A state's header, changed to show that no content is in other ranks' images any more."""
    field = _SAVED.structs["state_header"]["elsewhere"]
    return header[: field.offset] + bytes(field.size) + header[field.offset + field.size :]


def _records(file: int, first: int, size: int) -> Iterator[tuple[int, bytes]]:
    """For each record up to the last: (opcode, fixed part)."""
    by_number, offset, begin, held = _SAVED.by_number(), 0, 0, b""
    while size - offset >= _RECORD.size:
        if offset + _RECORD_MAX > begin + len(held):
            begin, held = offset, os.pread(file, min(_READ, size - offset), first + offset)
        length, number, _, _ = _RECORD.unpack_from(held, offset - begin)
        opcode = by_number.get(number)
        if opcode is None or not opcode.record.size <= length <= size - offset:
            break
        if opcode.name == "END":
            return
        yield number, held[offset - begin : offset - begin + opcode.record.size]
        offset += length
    raise Malformed(f"its saved state has no record at byte {offset}")


def _alive(buffers: list[tuple[int, int]], chunks: Set[int]) -> Iterator[Range]:
    """The buffers, without pieces that no chunk covers. Pieces are counted from a buffer's start,
    so that equal buffers are divided alike. Each buffer extends to the end of its allocation:
    programs access memory slightly beyond the size that they requested, as real devices let
    them."""
    constants = _SAVED.constants
    chunk, align = constants["RF_CHUNK_BYTES"], constants["RF_ALLOC_ALIGN"]
    end = 0
    for address, size in sorted(buffers):
        offset = heap_offset(address)
        length = -(-size // align) * align
        if offset < end or size < 1:
            raise Malformed(f"{count(size, 'byte')} at {address:#x} are not a live buffer")
        end = offset + length
        start = None
        for position in range(offset, end, GRAIN):
            last = min(position + GRAIN, end) - 1
            there = any(n in chunks for n in range(position // chunk, last // chunk + 1))
            if there and start is None:
                start = position
            if not there and start is not None:
                yield Range(address + start - offset, position - start, length)
                start = None
        if start is not None:
            yield Range(address + start - offset, end - start, length)

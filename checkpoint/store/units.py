"""How contents are divided into units, and what the tables and packs that name them look like.

A *unit* is a run of bytes, named by its BLAKE3. A *part* is a list of ranges of addresses; its
*table* has a row for each: address, bytes, a digest. A range of no more than the part's grain is
one unit, and the digest is that unit's; a longer one is divided from its start on, and the digest
is that of its *list*, the digests one after the other. Tables and lists are units, too.

A *pack* holds small units: a header, a row for each unit (digest, bytes), and then the units, one
after the other, as one zstd frame or as they are. It is named by the BLAKE3 of header and rows, so
that these can be read and verified without the rest; the rest is verified unit by unit.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import zstandard
from blake3 import blake3

PAGE = 4096
RUN_PAGES = 16  # of host memory, aligned: what is named by one list
GRAIN = 4 << 20  # of buffers and blobs
OBJECT_BYTES = 1 << 20  # a unit of so many is a file of its own
PACK_BYTES = 8 << 20  # units of a pack, before they are compressed
DIGEST = 32

_ROW = struct.Struct("<QQ32s")
_HEADER = struct.Struct("<8sIIQQ")
_UNIT = struct.Struct("<32sI")
_MAGIC = b"RFPACK1\n"
_ZSTD = 1
PACK_UNITS_MAX = 1 << 20
PACK_RAW_MAX = PACK_BYTES + OBJECT_BYTES


class Row(NamedTuple):
    address: int
    length: int
    digest: bytes


class Malformed(ValueError):
    """What was read is not what is written there."""


def digest_of(data: bytes | bytearray | memoryview) -> bytes:
    digest: bytes = blake3(data).digest()
    return digest


def encode_table(rows: Sequence[Row]) -> bytes:
    return b"".join(_ROW.pack(*row) for row in rows)


def decode_table(data: bytes, count: int) -> list[Row]:
    if len(data) != count * _ROW.size:
        raise Malformed(f"a table of {count} rows has {len(data)} bytes")
    rows = [Row(*fields) for fields in _ROW.iter_unpack(data)]
    end = 0
    for row in rows:
        if row.length == 0 or row.address < end or row.address + row.length > 1 << 64:
            raise Malformed("the ranges of a table overlap, are empty or in no order")
        end = row.address + row.length
    return rows


def pieces(row: Row, grain: int) -> list[tuple[int, int]]:
    """(address, bytes) of the units of a range."""
    end = row.address + row.length
    return [(at, min(grain, end - at)) for at in range(row.address, end, grain)]


def decode_list(data: bytes, count: int) -> list[bytes]:
    if len(data) != count * DIGEST:
        raise Malformed(f"a list of {count} digests has {len(data)} bytes")
    return [data[at : at + DIGEST] for at in range(0, len(data), DIGEST)]


class PackIndex(NamedTuple):
    """The beginning of a pack."""

    digest: bytes
    units: tuple[tuple[bytes, int], ...]  # digest, bytes
    start: int  # of the rest, in the file
    stored: int  # bytes of the rest
    raw: int  # bytes of all units
    coded: bool

    @property
    def size(self) -> int:
        return self.start + self.stored


def encode_pack(units: Sequence[tuple[bytes, bytes]]) -> tuple[PackIndex, bytes]:
    raw = b"".join(data for _, data in units)
    body = zstandard.ZstdCompressor(level=1).compress(raw)
    coded = len(body) < len(raw)
    if not coded:
        body = raw
    head = _HEADER.pack(_MAGIC, len(units), _ZSTD if coded else 0, len(body), len(raw))
    head += b"".join(_UNIT.pack(digest, len(data)) for digest, data in units)
    index = PackIndex(digest_of(head), tuple((digest, len(data)) for digest, data in units),
                      len(head), len(body), len(raw), coded)  # fmt: skip
    return index, head + body


def header_bytes(units: int) -> int:
    return _HEADER.size + units * _UNIT.size


def count_units(head: bytes) -> int:
    """How many units the pack has whose file begins so: what the index takes follows from it."""
    if len(head) < _HEADER.size or head[: len(_MAGIC)] != _MAGIC:
        raise Malformed("is no pack")
    count: int = _HEADER.unpack_from(head)[1]
    if count > PACK_UNITS_MAX:
        raise Malformed(f"a pack of {count} units")
    return count


def decode_index(digest: bytes, head: bytes) -> PackIndex:
    """`head`: at least header and rows. Raises `Malformed` where its name is not its digest."""
    count = count_units(head)
    start = header_bytes(count)
    if len(head) < start or digest_of(head[:start]) != digest:
        raise Malformed("the index of a pack is damaged")
    _, _, flags, stored, raw = _HEADER.unpack_from(head)
    units = tuple(_UNIT.iter_unpack(head[_HEADER.size : start]))
    if sum(length for _, length in units) != raw or raw > PACK_RAW_MAX:
        raise Malformed("the index of a pack contradicts itself")
    return PackIndex(digest, units, start, stored, raw, bool(flags & _ZSTD))


def decode_pack(index: PackIndex, file: bytes) -> bytes:
    """All units of a pack, one after the other, unverified. Raises `Malformed`."""
    if len(file) != index.size:
        raise Malformed(f"a pack has {len(file)} bytes instead of {index.size}")
    body = file[index.start :]
    if not index.coded:
        return body
    try:
        if zstandard.get_frame_parameters(body).content_size != index.raw:
            raise Malformed("a pack does not hold what its index says")
        raw: bytes = zstandard.ZstdDecompressor().decompress(body)
    except zstandard.ZstdError as error:
        raise Malformed(f"a pack cannot be decompressed: {error}") from error
    return raw


def split_pack(index: PackIndex, raw: bytes) -> Iterator[tuple[bytes, memoryview]]:
    """(digest, bytes) of each unit, unverified."""
    view, at = memoryview(raw), 0
    for digest, length in index.units:
        yield digest, view[at : at + length]
        at += length

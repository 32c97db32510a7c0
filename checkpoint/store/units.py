"""Divides contents into units, and defines the tables and packs that name them.

A *unit* is a run of bytes, named by its BLAKE3. A *part* is a list of address ranges; its *table*
has a row for each: address, bytes, a digest. A range no longer than the part's grain is one unit,
and the row has that unit's digest. A longer range is divided from its start, and the row has the
digest of its *list*: the digests of its units in order. Tables and lists are units, too.

A *pack* holds small units: a header, a row for each unit (digest, bytes), and then the units in
order, as one zstd frame or uncompressed. It is named by the BLAKE3 of header and rows, so that
these can be read and verified without the rest; the rest is verified unit by unit.

A pack of *differences* holds units that are nearly equal to units of an earlier checkpoint, each as
its exclusive or with that *reference*, for which there is a second row. A reference is in a pack of
whole units, never in a pack of differences. The difference of page-sized units is mostly zeros,
which compress.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import zstandard
from blake3 import blake3

from rankfold import plural

PAGE = 4096
RUN_PAGES = 16  # of host memory, aligned: the pages that one list names
GRAIN = 4 << 20  # of buffers and blobs
OBJECT_BYTES = 1 << 20  # a unit of at least this size is a file of its own
PACK_BYTES = 8 << 20  # bytes of a pack's units, before compression
DIGEST = 32

_ROW = struct.Struct("<QQ32s")
_HEADER = struct.Struct("<8sIIQQ")
_UNIT = struct.Struct("<32sI")
_MAGIC = b"RFPACK1\n"
_ZSTD, _DIFFERENCES = 1, 2  # flags
PACK_ROWS_MAX = 1 << 20
PACK_RAW_MAX = PACK_BYTES + OBJECT_BYTES


class Row(NamedTuple):
    address: int
    length: int
    digest: bytes


class Malformed(ValueError):
    """The data that was read is malformed."""


def digest_of(data: bytes | bytearray | memoryview) -> bytes:
    digest: bytes = blake3(data).digest()
    return digest


def encode_table(rows: Sequence[Row]) -> bytes:
    return b"".join(_ROW.pack(*row) for row in rows)


def decode_table(data: bytes, count: int) -> list[Row]:
    if len(data) != count * _ROW.size:
        raise Malformed(f"a table of {count} rows has {plural.count(len(data), 'byte')}")
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
    return [(offset, min(grain, end - offset)) for offset in range(row.address, end, grain)]


def decode_list(data: bytes, count: int) -> list[bytes]:
    if len(data) != count * DIGEST:
        raise Malformed(f"a list of {count} digests has {plural.count(len(data), 'byte')}")
    return [data[offset : offset + DIGEST] for offset in range(0, len(data), DIGEST)]


def difference(
    data: bytes | bytearray | memoryview, reference: bytes | bytearray | memoryview
) -> bytes:
    """The exclusive or of `data` and `reference`, as long as `data`. Applied to the result, it
    returns `data` again."""
    size, common = len(data), min(len(data), len(reference))
    both = int.from_bytes(data, "little") ^ int.from_bytes(reference[:common], "little")
    return both.to_bytes(size, "little")


class PackIndex(NamedTuple):
    """The header and rows of a pack."""

    digest: bytes
    units: tuple[tuple[bytes, int], ...]  # digest, bytes
    references: tuple[tuple[bytes, int], ...]  # of each unit, in a pack of differences
    start: int  # offset of the units in the file
    stored: int  # bytes of the units in the file
    raw: int  # bytes of all units
    coded: bool

    @property
    def size(self) -> int:
        return self.start + self.stored

    @property
    def rows(self) -> int:
        return len(self.units) + len(self.references)


def encode_pack(
    units: Sequence[tuple[bytes, bytes]], references: Sequence[tuple[bytes, int]] = ()
) -> tuple[PackIndex, bytes]:
    """Encode a pack of units (digest, bytes); a pack of differences if each unit has a reference
    (digest, length of the reference)."""
    assert not references or len(references) == len(units)
    raw = b"".join(data for _, data in units)
    body = zstandard.ZstdCompressor(level=1).compress(raw)
    coded = len(body) < len(raw)
    if not coded:
        body = raw
    flags = (_ZSTD if coded else 0) | (_DIFFERENCES if references else 0)
    named = tuple((digest, len(data)) for digest, data in units)
    rows = [*named, *references]
    head = _HEADER.pack(_MAGIC, len(rows), flags, len(body), len(raw))
    head += b"".join(_UNIT.pack(*row) for row in rows)
    index = PackIndex(
        digest_of(head), named, tuple(references), len(head), len(body), len(raw), coded
    )
    return index, head + body


def header_bytes(rows: int) -> int:
    return _HEADER.size + rows * _UNIT.size


def count_rows(head: bytes) -> int:
    """The number of rows of the pack whose file begins with `head`; the size of the index follows
    from it. Raises Malformed."""
    if len(head) < _HEADER.size or head[: len(_MAGIC)] != _MAGIC:
        raise Malformed("is not a pack")
    count: int = _HEADER.unpack_from(head)[1]
    if count > PACK_ROWS_MAX:
        raise Malformed(f"a pack of {count} rows")
    return count


def decode_index(digest: bytes, head: bytes) -> PackIndex:
    """Decode a pack's index. `head`: at least header and rows. Raises `Malformed`, also if the
    pack's name is not its digest."""
    count = count_rows(head)
    start = header_bytes(count)
    if len(head) < start or digest_of(head[:start]) != digest:
        raise Malformed("the index of a pack is damaged")
    _, _, flags, stored, raw = _HEADER.unpack_from(head)
    rows = tuple(_UNIT.iter_unpack(head[_HEADER.size : start]))
    units = rows[: count // 2] if flags & _DIFFERENCES else rows
    references = rows[len(units) :]
    if (
        sum(length for _, length in units) != raw
        or raw > PACK_RAW_MAX
        or (references and len(references) != len(units))
    ):
        raise Malformed("the index of a pack contradicts itself")
    return PackIndex(digest, units, references, start, stored, raw, bool(flags & _ZSTD))


def decode_pack(index: PackIndex, file: bytes) -> bytes:
    """The concatenated units of a pack, or its differences, unverified. Raises `Malformed`."""
    if len(file) != index.size:
        raise Malformed(f"a pack has {plural.count(len(file), 'byte')} instead of {index.size}")
    body = file[index.start :]
    if not index.coded:
        return body
    try:
        if zstandard.get_frame_parameters(body).content_size != index.raw:
            raise Malformed("a pack does not contain what its index lists")
        raw: bytes = zstandard.ZstdDecompressor().decompress(body)
    except zstandard.ZstdError as error:
        raise Malformed(f"a pack cannot be decompressed: {error}") from error
    return raw


def split_pack(index: PackIndex, raw: bytes) -> Iterator[tuple[bytes, memoryview]]:
    """Yield (digest, bytes) of each unit, unverified."""
    view, offset = memoryview(raw), 0
    for digest, length in index.units:
        yield digest, view[offset : offset + length]
        offset += length

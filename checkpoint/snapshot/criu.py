"""Reads CRIU's pagemap images, which describe the memory in a pages image, as far as needed here.

`pagemap-*.img` is two magic numbers and then protobuf messages, each after its length: a head with
the number of the `pages-N.img`, then entries. The pages of entries that are present follow each
other in that file. Addresses are virtual addresses of a process; for shared memory and memfds
(`pagemap-shmem-*.img`) they count from its start. Features of other versions of CRIU that our dumps
do not use (pages in a parent's images, compressed pages) are refused.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from rankfold.plural import count

PAGE = 4096
_MAGIC = struct.pack("<II", 0x54564319, 0x56084025)  # of CRIU's images, and of pagemaps
_PAGES_ID = 1  # field of the head
_VADDR, _COMPAT_PAGES, _IN_PARENT, _FLAGS, _PAGES = range(1, 6)  # fields of an entry
_FIELDS = {_VADDR, _COMPAT_PAGES, _IN_PARENT, _FLAGS, _PAGES}
_PARENT, _LAZY, _PRESENT = 1, 2, 4
_TOP = 1 << 64


class Malformed(ValueError):
    """The file is no pagemap, or one of an unknown form."""


class Run(NamedTuple):
    """A run of pages that are consecutive in memory and in the file."""

    address: int
    length: int  # bytes
    offset: int  # in the file


class Pagemap(NamedTuple):
    """A pagemap: the name of its pages image, and the runs in it, by address."""

    file: str
    runs: list[Run]

    @property
    def size(self) -> int:
        """The size of the pages image in bytes."""
        return sum(run.length for run in self.runs)

    def offset(self, address: int, length: int) -> int:
        """The offset of these bytes in the file. Raises Malformed if they are not contiguous
        there."""
        index = bisect_right(self.runs, address, key=lambda run: run.address) - 1
        if index < 0 or address + length > self.runs[index].address + self.runs[index].length:
            raise Malformed(f"{count(length, 'byte')} at {address:#x} are not in its pages")
        return self.runs[index].offset + address - self.runs[index].address


def parse(data: bytes) -> Pagemap:
    """Parse a pagemap image. Raises Malformed."""
    if not data.startswith(_MAGIC):
        raise Malformed("is not a CRIU pagemap")
    messages = _messages(data, len(_MAGIC))
    head = next(messages, {})
    if head.keys() != {_PAGES_ID}:
        raise Malformed("has an unknown header")
    runs: list[Run] = []
    offset = 0
    for entry in messages:
        if not entry.keys() <= _FIELDS or not {_VADDR, _COMPAT_PAGES} <= entry.keys():
            raise Malformed(f"an entry has the fields {sorted(entry)}")
        flags = entry.get(_FLAGS, _PRESENT)
        if entry.get(_IN_PARENT) or flags & _PARENT or flags & ~(_LAZY | _PRESENT):
            raise Malformed(f"the flags of an entry are {flags:#x}: its pages are stored elsewhere")
        length = entry.get(_PAGES, entry[_COMPAT_PAGES]) * PAGE
        address = entry[_VADDR]
        if not flags & _PRESENT:
            continue
        last = runs[-1] if runs else Run(0, 0, 0)
        end = last.address + last.length
        if address % PAGE or not length or address < end or address + length > _TOP:
            raise Malformed(
                f"{count(length, 'byte')} at {address:#x} cannot follow what ends at {end:#x}"
            )
        if runs and address == end:
            runs[-1] = last._replace(length=last.length + length)
        else:
            runs.append(Run(address, length, offset))
        offset += length
    return Pagemap(f"pages-{head[_PAGES_ID]}.img", runs)


def _messages(data: bytes, offset: int) -> Iterator[dict[int, int]]:
    """The fields of each message. All are numbers."""
    while offset < len(data):
        if offset + 4 > len(data):
            raise Malformed("ends within a length")
        (length,) = struct.unpack_from("<I", data, offset)
        offset += 4
        if length > len(data) - offset:
            raise Malformed("ends within a message")
        yield _fields(data[offset : offset + length])
        offset += length


def _fields(message: bytes) -> dict[int, int]:
    numbers: dict[int, int] = {}
    offset = 0
    while offset < len(message):
        tag, offset = _varint(message, offset)
        if tag & 7:  # anything except a number
            raise Malformed(f"a field of unknown kind ({tag:#x})")
        numbers[tag >> 3], offset = _varint(message, offset)
    return numbers


def _varint(message: bytes, offset: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        if offset >= len(message):
            break
        byte = message[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, offset
    raise Malformed("a number has no end")

"""Ranks with a few bytes of memory each, and the maps of versions that say what these hold."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from support import native

ROOM = native.CORE / "versions"
BEGIN, BYTES = 0x1000, 48
END = BEGIN + BYTES
SEEN = (1, 2, 3, 5, 8, 16)  # lengths of the ranges that are compared
SOURCES = [ROOM / "versions.c", ROOM / "digest.c"]


def load(folder: Path, changed: Path | None = None, name: str = "versions") -> tuple[Any, Any]:
    """Builds proxy/core/versions as a library, or with another file in place of versions.c."""
    sources = [changed, SOURCES[1]] if changed else SOURCES
    library = native.build(folder, sources, name, warnings=changed is None)
    return native.load(library, ROOM / "digest.h", ROOM / "versions.h")


def expand(seed: bytes, count: int) -> bytes:
    """The bytes that a kernel writes, which depend on all of `seed`."""
    return hashlib.shake_128(seed).digest(count)


class Rank:
    """Addresses here begin with 0."""

    def __init__(self, ffi: Any, lib: Any) -> None:
        self.ffi, self.lib = ffi, lib
        self.map = ffi.new("struct versions *")
        assert lib.versions_open(self.map, BEGIN, END) == 0
        self.bytes = bytearray(BYTES)
        self.drawn = 0

    def close(self) -> None:
        self.lib.versions_close(self.map)

    def fill(self, at: int, value: bytes, count: int) -> None:
        """`value` has one, two or four bytes."""
        number, width = int.from_bytes(value, "little"), len(value)
        content = self.lib.versions_fill(number, width)
        self.lib.versions_set(self.map, BEGIN + at, count * width, content)
        self.bytes[at : at + count * width] = value * count

    def unknown(self, at: int, count: int) -> None:
        """Somebody wrote who says nothing of it; no two of them wrote the same."""
        self.lib.versions_private(self.map, BEGIN + at, count)
        self.drawn += 1
        self.bytes[at : at + count] = expand(b"%d %d" % (id(self), self.drawn), count)

    def kernel(self, code: int, reads: tuple[int, int], writes: tuple[int, int]) -> None:
        """Writes bytes that depend on the code, on what it reads, and on the old content."""
        digest = self.ffi.new("struct digest *")
        self.lib.digest_begin(digest)
        self.lib.digest_word(digest, code)
        seed = b"%d" % code
        for at, count in (reads, writes):
            self.lib.versions_absorb(self.map, BEGIN + at, count, digest)
            seed += b"|" + self.bytes[at : at + count]
        content = {"version": self.lib.digest_end(digest), "offset": 0, "period": 0}
        at, count = writes
        self.lib.versions_set(
            self.map, BEGIN + at, count, self.ffi.new("struct content *", content)[0]
        )
        self.bytes[at : at + count] = expand(seed, count)

    def copy(self, at: int, other: Rank, other_at: int, count: int) -> None:
        self.lib.versions_copy(self.map, BEGIN + at, other.map, BEGIN + other_at, count)
        self.bytes[at : at + count] = bytes(other.bytes[other_at : other_at + count])

    def moved(self) -> Rank:
        """Its state, as another proxy takes it up; this one continues, too, in a life of its
        own."""
        size = self.lib.versions_size(self.map)
        saved = self.ffi.new("uint8_t[]", size)
        self.lib.versions_save(self.map, saved)
        there = Rank(self.ffi, self.lib)
        assert self.lib.versions_load(there.map, saved, size) == 0
        there.bytes[:] = self.bytes
        return there

    def key(self, at: int, count: int) -> tuple[int, int]:
        digest = self.ffi.new("struct digest *")
        self.lib.digest_begin(digest)
        self.lib.versions_absorb(self.map, BEGIN + at, count, digest)
        found = self.lib.digest_end(digest)
        return found.a, found.b

    def invalid(self) -> str:
        fault = self.lib.versions_invalid(self.map)
        return "" if fault == self.ffi.NULL else self.ffi.string(fault).decode()


class Ledger:
    """All keys that ever were, and the bytes that they stood for."""

    def __init__(self) -> None:
        self.bytes: dict[tuple[int, int], bytes] = {}

    def check(self, rank: Rank) -> None:
        assert rank.invalid() == ""
        for count in SEEN:
            for at in range(BYTES - count + 1):
                here = bytes(rank.bytes[at : at + count])
                before = self.bytes.setdefault(rank.key(at, count), here)
                assert before == here, f"one key, two contents: {at} + {count}"

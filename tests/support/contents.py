"""Reads ranks' images at a cut: their memory, and the versions of what it holds; compares bytes."""

from __future__ import annotations

import mmap
import os
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from rankfold import records
from support.ring_client import RingClient

DEV_BASE = 0x200000000000
CHUNK = 2 << 20
EXTENT = struct.Struct("<QQQQQ")  # struct extent of proxy/core/versions/versions.h
Version = tuple[int, int]


@dataclass(frozen=True)
class Run:
    """Bytes of one content: in a rank's memory from `addr` on, in the content from `offset` on."""

    addr: int
    bytes: int
    version: Version
    offset: int
    period: int


class Image:
    """A rank's image. `buffers`: address and bytes of each; `runs`: of the pages they touch;
    `image_owner`: pages, and the ranks whose images have them; `keys`: of those that have one;
    `others`: images by rank, to find them."""

    def __init__(self, data: mmap.mmap, others: Mapping[int, Image] | None = None):
        self.data, self.others = data, {} if others is None else others
        self.image_owner: dict[int, int] = {}
        self.keys: dict[int, Version] = {}
        contract = records.saved()
        header = contract.structs["state_header"].layout()
        start = contract.constants["STATE_OFFSET"]
        size = header.unpack_from(data, start)[3]
        self.buffers: list[tuple[int, int]] = []
        extents: list[tuple[int, ...]] = []
        at, end = start + header.size, start + header.size + size
        buffer, versions = contract.opcodes["BUFFER"], contract.opcodes["VERSIONS"]
        while at < end:
            length, opcode = struct.unpack_from("<IH", data, at)
            if opcode == buffer.number:
                self.buffers.append(struct.unpack_from("<QQ", data, at + 16))
            elif opcode == contract.opcodes["CHUNK"].number:
                page, rank, *key = struct.unpack_from("<QI4x2Q", data, at + 16)
                self.image_owner[page] = rank
                if any(key):
                    self.keys[page] = (key[0], key[1])
            elif opcode == versions.number:
                (count,) = struct.unpack_from("<Q", data, at + 16)
                extents = list(EXTENT.iter_unpack(data[at + 24 : at + 24 + count]))
            at += length
        pages = sorted(
            {
                page
                for addr, size in self.buffers
                for page in range(
                    (addr - DEV_BASE) // CHUNK, (addr + size - 1 - DEV_BASE) // CHUNK + 1
                )
            }
        )
        self.runs = list(_clipped(extents, pages))

    def content(self, addr: int, size: int) -> list[Run]:
        """The content there, by versions; addresses begin at 0."""
        runs = list[Run]()
        for run in self.runs:
            low, high = max(run.addr, addr), min(run.addr + run.bytes, addr + size)
            if low >= high:
                continue
            offset = run.offset + low - run.addr
            last = runs[-1] if runs else None
            if last and (last.version, last.period, last.offset + last.bytes) == (
                run.version,
                run.period,
                offset,
            ):
                runs[-1] = replace(last, bytes=last.bytes + high - low)
            else:
                runs.append(Run(low - addr, high - low, run.version, offset, run.period))
        return runs

    def read(self, addr: int, size: int) -> bytes:
        offset, end, data = addr - DEV_BASE, addr - DEV_BASE + size, b""
        while offset < end:
            page = offset // CHUNK
            until = min(end, (page + 1) * CHUNK)
            image = self.others.get(self.image_owner.get(page, -1), self)
            data += image.data[offset:until]
            offset = until
        return data


def images_of(clients: Iterable[RingClient], stack: ExitStack) -> list[Image]:
    """Theirs, as long as the stack lasts."""
    images: dict[int, Image] = {}
    for client in clients:
        data = stack.enter_context(mmap.mmap(client.image, 0, access=mmap.ACCESS_READ))
        images[client.rank] = Image(data, images)
    return list(images.values())


def _clipped(extents: Sequence[tuple[int, ...]], pages: list[int]) -> Iterator[Run]:
    """The extents, as far as they are on these pages."""
    last = DEV_BASE + (1 << 39)
    ends = [each[0] for each in extents[1:]] + [last]
    for page in pages:
        begin, end = DEV_BASE + page * CHUNK, DEV_BASE + (page + 1) * CHUNK
        for (addr, a, b, offset, period), until in zip(extents, ends, strict=True):
            low, high = max(addr, begin), min(until, end)
            if low < high:
                yield Run(low, high - low, (a, b), offset + low - addr, period)


@contextmanager
def images(folder: Path) -> Iterator[list[Image]]:
    """Those that the launchers of a job hold, in order of rank; the job has this folder."""
    with ExitStack() as stack:
        result: dict[int, Image] = {}
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if f"{folder}/rank-" not in (path / "cmdline").read_text():
                    continue
                for link in (path / "fd").iterdir():
                    name = os.readlink(link)
                    if name.startswith("/memfd:rankfold-image-"):
                        file = stack.enter_context(link.open("rb"))
                        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                        rank = int(name.removeprefix("/memfd:rankfold-image-").split()[0])
                        result[rank] = Image(stack.enter_context(data), result)
        yield [result[rank] for rank in sorted(result)]


def check_equal_versions(ranks: Sequence[Image]) -> None:
    """Wherever two runs name the same bytes, they are the same."""
    places: dict[Version, list[tuple[Run, int]]] = defaultdict(list)
    for number, image in enumerate(ranks):
        for run in image.runs:
            here = image.read(run.addr, run.bytes)
            if run.period:
                _check_fill(ranks, places[run.version], run, number)
                places[run.version] = [(run, number)]
                continue
            for other, whose in places[run.version]:
                low = max(run.offset, other.offset)
                high = min(run.offset + run.bytes, other.offset + other.bytes)
                if low >= high:
                    continue
                there = ranks[whose].read(other.addr + low - other.offset, high - low)
                assert here[low - run.offset : high - run.offset] == there, (
                    f"rank {number} at {run.addr:#x} and rank {whose} at {other.addr:#x}: "
                    f"bytes {low} to {high} of one version differ"
                )
            places[run.version].append((run, number))
    check_equal_keys(ranks)


def check_equal_keys(ranks: Sequence[Image]) -> None:
    """Pages of one key hold the same bytes."""
    pages: dict[Version, bytes] = {}
    for number, image in enumerate(ranks):
        for page, key in image.keys.items():
            here = image.read(DEV_BASE + page * CHUNK, CHUNK)
            assert here == pages.setdefault(key, here), f"page {page} of rank {number}"


def _check_fill(
    ranks: Sequence[Image], before: list[tuple[Run, int]], run: Run, number: int
) -> None:
    def pattern(image: Image, each: Run) -> bytes:
        """The offset from the content's beginning."""
        skipped = -each.offset % each.period
        return image.read(each.addr + skipped, each.period)

    if run.bytes < 2 * run.period:
        return
    expected = pattern(ranks[number], run)
    skipped = -run.offset % run.period
    whole = ranks[number].read(run.addr + skipped, run.bytes - skipped)
    assert whole == (expected * (len(whole) // run.period + 1))[: len(whole)]
    for other, whose in before:
        assert other.period == run.period
        assert pattern(ranks[whose], other) == expected, (
            f"rank {number} at {run.addr:#x}: {expected!r}"
        )

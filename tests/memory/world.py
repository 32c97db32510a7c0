"""The proxy's memory library over a device in Python (device.py), and ranks that use it."""

from __future__ import annotations

import contextlib
import os
import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support import native

from .device import CELL, CELLS, CHUNK, ZEROS, Device, Page

ROOM = native.CORE / "memory"
DEV_BASE = 0x200000000000
WINDOW = 1 << 40
SAVE, ACTIVATE, COPY, PREFETCH = range(4)
CANCELLED = -1
Make = Callable[..., "World"]
PRIVATE = 1000  # values from here on belong to one rank


def addr_of(cell: int) -> int:
    return DEV_BASE + cell * CELL


def load(folder: Path, changed: Path | None = None) -> tuple[Any, Any]:
    """The module under test, and the cross-check of what is in it; a changed file of them takes the
    place of the one with its name."""
    versions, crosscheck = native.CORE / "versions", native.CORE / "crosscheck"
    files = {*ROOM.glob("*.c"), *versions.glob("*.c"), *crosscheck.glob("*.c")} - {
        ROOM / "transfer.c"
    }
    if changed:
        files = {file for file in files if file.name != changed.name} | {changed}
    library = native.build(folder, sorted(files), warnings=not changed, args=[f"-I{ROOM}"])
    channel = native.REPOSITORY / "interpose/channel/channel.h"
    hal = native.REPOSITORY / "proxy/hal/hal.h"
    text = native.structures(channel, "rf_record", "rf_alloc") + native.declarations(hal)
    text += native.declarations(versions / "digest.h", versions / "versions.h")
    text += re.sub(
        r"^static inline[^{;]*\{.*?\}$",
        "",
        native.declarations(ROOM / "memory.h", crosscheck / "crosscheck.h"),
        flags=re.M | re.S,
    )
    text = text.replace("RF_PIN_WORDS", str((1 << 33) // CHUNK // 64))
    import cffi

    ffi = cffi.FFI()
    ffi.cdef(text)
    return ffi, ffi.dlopen(str(library))


def must(opened: int) -> None:
    """The memory library does not cause, for example, a lack of addresses."""
    if opened:
        raise OSError(f"a world could not be opened: {opened}")


@dataclass
class Work:
    """A write that is under way: of `value` into cells, in the rank or for all who share them."""

    first: int
    count: int
    value: int
    ranks: list[Rank]
    places: dict[int, Any]  # page: its place


class Rank:
    """One rank: its memory, what its pages should hold, and how its requests were answered."""

    def __init__(self, world: World, number: int, group: int = 1) -> None:
        self.world, self.number, self.group = world, number, group
        ffi = world.ffi
        self.memory = ffi.new("struct rank_memory *")
        self.fd = os.memfd_create(f"image-{number}")
        os.ftruncate(self.fd, WINDOW)
        opened = world.lib.memory_open(self.memory, world.memory, group, number, self.fd, self.fd)
        must(opened)
        self.space = world.device.number(self.memory.space)
        self.model: dict[int, Page] = {}
        self.told: list[tuple[int, int]] = []
        self.accepted = 0
        self.failed = False
        self.cut = False  # at a cut no rank writes, so saved content stays valid
        self.works: deque[Work] = deque()
        self.callback = ffi.callback(
            "void(void *, enum memory_purpose, int)", self.complete, onerror=world.device.failed
        )

    def complete(self, _: Any, purpose: int, result: int) -> None:
        self.told.append((purpose, result))
        m = self.memory
        if result == 0:
            right = {
                SAVE: self.saved(m.request.stay)
                and (self.failed or self.in_image(m.request.stay) == self.model),
                ACTIVATE: m.missing == 0,
                PREFETCH: True,
                COPY: True,
            }
            assert right[purpose], f"reported too early: {purpose}"
        elif result != CANCELLED:
            assert self.world.faults, f"failed without a reason: {purpose}"
            self.failed = True
            self.world.lib.memory_stop(m)

    def saved(self, stay: bool = False) -> bool:
        return bool(self.world.lib.memory_saved(self.memory, stay))

    def image_owner(self, page: int) -> int | None:
        """In whose image another rank's copy of the page counts for this rank's."""
        found = self.world.lib.memory_image_owner(self.memory, page)
        return None if found == self.world.ffi.NULL else int(found.rank)

    def key(self, page: int) -> tuple[int, int]:
        found = self.world.lib.memory_key(self.memory, page)
        return int(found.a), int(found.b)

    def in_image(self, stay: bool = False) -> dict[int, Page]:
        """The image's content of each page, for any process that takes the image over. If all ranks
        stay, another rank's image may have it."""
        ffi, found = self.world.ffi, {}
        for page in self.model:
            other = self.world.lib.memory_image_owner(self.memory, page)
            m = other if stay and other != ffi.NULL else self.memory
            ref = (ffi.NULL, int(ffi.cast("uintptr_t", m.image)) + page * CHUNK)
            found[page] = self.world.device.read(ref) if m.pages[page].in_image else ZEROS
        return found

    @property
    def moving(self) -> bool:
        return bool(self.memory.move_count)

    @property
    def open(self) -> int:
        return self.accepted - len(self.told)

    def chunk(self, page: int) -> int | None:
        at = self.memory.pages[page].chunk
        return None if at == self.world.ffi.NULL else at - self.world.memory.chunks

    def refs(self, page: int) -> int:
        return int(self.memory.pages[page].chunk.refs)

    def request(self, purpose: int, stay: bool = False, page: int = 0, pages: int = 1) -> bool:
        return self.wants(purpose, stay, page * CELLS, pages * CELLS)

    def used(self) -> None:
        """As memory_used."""
        self.memory.inflight -= 1
        self.running(-1)
        if self.memory.write_protected:
            self.world.lib.sharing_copied(self.memory)
        self.memory.fenced &= self.memory.inflight != 0
        self.memory.surprised &= self.memory.inflight != 0

    def wants(self, purpose: int, stay: bool, first: int, count: int) -> bool:
        wanted = self.world.ffi.new("struct memory_request *")
        wanted.purpose, wanted.stay, wanted.on_end = purpose, stay, self.callback
        if purpose == COPY:
            wanted.addr, wanted.bytes = addr_of(first), count * CELL
        had, told = self.memory.request.state, len(self.told)
        good = bool(self.world.lib.memory_request(self.memory, wanted))
        self.accepted += good and (not had or len(self.told) > told)
        return good

    def owns(self, first: int, count: int) -> bool:
        m = self.memory
        return not m.write_protected or bool(
            self.world.lib.sharing_owns(m, addr_of(first), count * CELL)
        )

    def alloc(self, page: int, joined: bool = False) -> bool:
        what = self.world.ffi.new("struct rf_alloc *")
        what.addr, what.bytes = DEV_BASE + page * CHUNK, CHUNK
        what.flags = joined  # RF_ALLOC_JOINED
        if self.world.lib.memory_alloc(self.memory, what) != 0:
            return False
        self.model[page] = ZEROS
        return True

    def free(self, page: int) -> None:
        self.world.lib.memory_free(self.memory, DEV_BASE + page * CHUNK)
        del self.model[page]

    # ---- work ----

    def begin(self) -> None:
        """Something runs that writes nothing."""
        self.submit(Work(0, 0, 0, [self], {}))

    def write(self, page: int, value: int) -> None:
        """All of a page that is the rank's own, at once."""
        assert not self.cut
        self.run(page * CELLS, CELLS, value)
        self.end()

    def run(self, first: int, count: int, value: int) -> None:
        """Gives a write to the device, and notes at once what will be there."""
        pages = {cell // CELLS for cell in range(first, first + count)}
        self.submit(Work(first, count, value, [self], {p: self.place(p, True) for p in pages}))

    def submit(self, work: Work) -> None:
        lib = self.world.lib
        for rank in work.ranks:
            rank.memory.inflight += 1
            rank.works.append(work)
            rank.running(1)
            content = self.world.named(work.value)
            if not work.count:
                continue
            if work.value < PRIVATE or len(work.ranks) > 1:
                lib.content_is(rank.memory, addr_of(work.first), work.count * CELL, content)
            else:
                lib.content_unknown(rank.memory, addr_of(work.first), work.count * CELL)

    def end(self) -> None:
        """The rank's oldest work ends, if it is the oldest of all that it is for."""
        work = self.works[0]
        if any(rank.works[0] is not work for rank in work.ranks):
            return
        by_page: dict[int, list[int]] = {}
        for cell in range(work.first, work.first + work.count):
            by_page.setdefault(cell // CELLS, []).append(cell % CELLS)
        for page, cells in by_page.items():
            value = (work.value,) * CELLS
            self.world.device.write(work.places[page], value, cells)
            for rank in work.ranks:
                old = rank.model[page]
                rank.model[page] = tuple(work.value if n in cells else old[n] for n in range(CELLS))
        for rank in work.ranks:
            rank.works.popleft()
            rank.used()

    def fault(self) -> None:
        """Its oldest work faults, and all who share that with it."""
        for rank in list(self.works[0].ranks):
            self.world.device.faulty.add(rank.space)
            rank.failed = True
            while rank.works:
                rank.works.popleft().ranks.remove(rank)
                rank.used()

    def running(self, change: int) -> None:
        running = self.world.device.running
        running[self.space] = running.get(self.space, 0) + change

    def place(self, page: int, write: bool = False) -> Any:
        ref = self.world.ffi.new("struct hal_ref *")
        self.world.lib.memory_resolve(self.memory, DEV_BASE + page * CHUNK, CHUNK, write, ref)
        return ref.space, ref.addr

    def read(self, page: int) -> Page:
        return self.world.device.read(self.place(page))

    def close(self) -> None:
        """Its image is whose it was, who does with it what he likes."""
        for name in self.world.gone:
            self.world.gone[name] += getattr(self.memory.counted, name)
        self.world.lib.memory_close(self.memory)
        for page in self.model:
            os.pwrite(self.fd, b"\xff" * CHUNK, page * CHUNK)
        os.close(self.fd)


class World:
    def __init__(
        self,
        library: tuple[Any, Any],
        ranks: int,
        chunks: int,
        groups: tuple[int, ...] = (),
        beneath: bool = True,
    ) -> None:
        self.ffi, self.lib = library
        self.device = Device(self.ffi, chunks, beneath)
        self.memory = self.ffi.new("struct device_memory *")
        self.faults = False
        counted = ("not_swapped", "copies", "unforeseen", "prepared")
        self.gone = dict.fromkeys(counted, 0)  # of ranks that have ended
        opened = self.lib.device_memory_open(
            self.memory, self.device.table, self.ffi.NULL, chunks * CHUNK
        )
        must(opened)
        self.memory.shares = True
        self.streams = sorted(self.device.queues)
        self.ranks = [Rank(self, n, groups[n] if groups else 1) for n in range(ranks)]

    def named(self, value: int) -> Any:
        """The content that all ranks know by this number; 0: zeros."""
        if not value:
            return self.lib.versions_fill(0, 1)
        content = self.ffi.new("struct content *")
        content.version.a = content.version.b = value
        content.period = 1
        return content[0]

    def fault(self, what: str) -> None:
        self.faults = True
        self.device.failing[what] = 1

    def turn(self) -> None:
        self.lib.memory_turn(self.memory)
        self.check()

    def check(self) -> None:
        assert not self.device.broken, self.device.broken
        wrong = self.lib.memory_invalid(self.memory)
        assert wrong == self.ffi.NULL, self.ffi.string(wrong).decode()
        self.check_sharing()
        for rank in self.ranks:
            assert rank.open in (0, 1) and rank.open == bool(rank.memory.request.state)
            if not rank.failed and (rank.works or not rank.moving):
                assert {p: rank.read(p) for p in rank.model} == rank.model

    def check_sharing(self) -> None:
        """As the device sees it: who has a chunk, how many there are, who can write there."""
        spaces = {rank.space: rank for rank in self.ranks}
        users: dict[int, list[tuple[int, int]]] = {}
        for space in spaces:
            for addr, chunk in self.device.spaces[space].items():
                users.setdefault(chunk, []).append((space, addr))
        untold = sum(map(len, self.device.copied.values()))
        assert self.memory.used == len(self.device.content) - untold
        shared = sum(len(all_) > 1 for all_ in users.values())
        assert untold or self.memory.shared == shared
        once, each = (
            [self.lib.memory_shared(rank.memory, flag) for rank in self.ranks]
            for flag in (True, False)
        )
        assert sum(once) == self.memory.shared
        assert untold or sum(each) == sum(len(all_) for all_ in users.values() if len(all_) > 1)
        for name in self.gone:
            counted = [getattr(rank.memory.counted, name) for rank in self.ranks]
            assert sum(counted) + self.gone[name] == getattr(self.memory, name)
        swapped = self.memory.swapped_in + self.memory.swapped_out
        assert self.memory.swapped_alike <= swapped
        self.check_copies()
        for all_ in users.values():
            assert len({addr for _, addr in all_}) == 1 == len({spaces[s].group for s, _ in all_})
            if len(all_) > 1:
                assert len([user for user in all_ if user not in self.device.write_protected]) <= 1

    def check_copies(self) -> None:
        """On the host: each copy counts once, and what is in one is not in an image."""
        once, each = (
            [self.lib.memory_on_host(rank.memory, flag) for rank in self.ranks]
            for flag in (True, False)
        )
        missing = [
            page
            for m in (rank.memory for rank in self.ranks)
            for page in (m.pages[m.live[i]] for i in range(m.live_count))
            if page.chunk == self.ffi.NULL and page.blank != m.contents + 1
        ]
        common = {page.copy for page in missing if page.common}
        own = sum(page.in_image for page in missing)
        assert sum(found.pages for found in once) == own + len(common)
        assert sum(found.pages for found in each) == own + sum(page.common for page in missing)
        assert sum(found.shared for found in each) == sum(
            page.common and page.copy.refs > 1 for page in missing
        )

    def settle(self, waiting: tuple[int, ...] = ()) -> None:
        """Runs until all requests are complete, except those for the purposes `waiting`; this must
        happen."""
        for _ in range(200):
            self.turn()
            ended = [self.device.end(stream) for stream in self.streams]
            late = [r for r in self.ranks if r.open and r.memory.request.purpose not in waiting]
            if not any(ended) and not late and not self.memory.moving:
                return
        raise AssertionError("requests wait forever")

    def close(self) -> None:
        """Closes all ranks. After a failure it may be called again; then it checks nothing."""
        ranks, self.ranks = self.ranks, []
        for rank in ranks:
            rank.close()
        if not ranks:
            return
        assert not self.device.broken, self.device.broken
        assert self.memory.used == self.memory.unusable == len(self.device.stuck)
        assert self.memory.reserved == self.memory.leaving == self.memory.shared == 0
        assert self.memory.requests == self.ffi.NULL
        self.lib.device_memory_close(self.memory, True)


@contextlib.contextmanager
def worlds(library: tuple[Any, Any]) -> Iterator[Make]:
    """Makes worlds; they are closed after it: each takes some TiB of addresses."""
    made: list[World] = []

    def one(ranks: int, chunks: int, groups: tuple[int, ...] = (), beneath: bool = True) -> World:
        made.append(World(library, ranks, chunks, groups, beneath))
        return made[-1]

    try:
        yield one
    finally:
        for world in made:
            world.close()

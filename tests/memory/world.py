"""The proxy's memory room over a device that is Python's: pages hold a few numbers each, cells.

Works of the device end when the test says so, each queue in its order, the queues in any; calls of
the device fail where the test says so. The device looks at the rules of hal.h itself.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support import native

ROOM = native.CORE / "memory"
CHUNK = 2 << 20
DEV_BASE = 0x200000000000
WINDOW = 1 << 40
SAVE, ACTIVATE, COPY, PREFETCH = range(4)
CANCELLED = -1
OUT_OF_MEMORY = 2
QUEUE = 3  # works: smaller than a real one, so that lists have to wait
CELLS = 2  # of a page
CELL = CHUNK // CELLS
Page = tuple[int, ...]
ZEROS: Page = (0,) * CELLS
PRIVATE = 1000  # values from here on are nobody else's


def addr_of(cell: int) -> int:
    return DEV_BASE + cell * CELL


def load(folder: Path, changed: Path | None = None) -> tuple[Any, Any]:
    """The room; a changed file of it takes the place of the one with its name."""
    versions = native.CORE / "versions"
    files = {*ROOM.glob("*.c"), *versions.glob("*.c")} - {ROOM / "transfer.c"}
    if changed:
        files = {file for file in files if file.name != changed.name} | {changed}
    library = native.build(folder, sorted(files), warnings=not changed, args=[f"-I{ROOM}"])
    channel = native.REPOSITORY / "interpose/channel/channel.h"
    hal = native.REPOSITORY / "proxy/hal/hal.h"
    text = native.structures(channel, "rf_record", "rf_alloc") + native.declarations(hal)
    text += native.declarations(versions / "digest.h", versions / "versions.h")
    text += re.sub(r"^static inline[^{;]*\{.*?\}$", "", native.declarations(ROOM / "memory.h"),
                   flags=re.M | re.S)  # fmt: skip
    import cffi

    ffi = cffi.FFI()
    ffi.cdef(text)
    return ffi, ffi.dlopen(str(library))


class Broken(AssertionError):
    """The room broke a rule of the device's table."""


class Device:
    """The table of hal.h. Handles are small numbers in the place of pointers."""

    def __init__(self, ffi: Any, chunks: int) -> None:
        self.ffi = ffi
        self.total = chunks
        self.free = list(range(2 * chunks))
        self.copied: dict[int, deque[tuple[int, int]]] = {}  # by space: address and chunk
        self.content: dict[int, Page] = {}  # of chunks that are there
        self.spaces: dict[int, dict[int, int]] = {}  # address -> chunk
        self.guarded: set[tuple[int, int]] = set()  # space, address
        self.stuck: set[int] = set()  # chunks that could not be unmapped
        self.faulty: set[int] = set()  # spaces that have failed
        self.queues: dict[int, deque[Any]] = {}
        self.done: dict[int, int] = {}
        self.failing: dict[str, int] = {}
        self.running: dict[int, int] = {}  # works of a rank, by space
        self.handles = 0
        self.broken: list[str] = []
        self.keep: list[Any] = []
        self.table = ffi.new("struct hal *")
        fields = dict(ffi.typeof("struct hal").fields)
        for name in ("chunk_create", "chunk_destroy", "space_create", "space_destroy", "space_map",
                     "space_unmap", "space_protect", "space_copied", "space_error",
                     "space_map_host", "stream_create", "stream_destroy", "room", "submit",
                     "completed"):  # fmt: skip
            callback = ffi.callback(fields[name].type, getattr(self, name), onerror=self.failed)
            self.keep.append(callback)
            setattr(self.table, name, callback)

    def failed(self, _: Any, error: BaseException, __: Any) -> None:
        self.broken.append(str(error))

    def fails(self, what: str) -> bool:
        self.failing[what] = self.failing.get(what, 0) - 1
        return self.failing[what] >= 0

    def number(self, handle: Any) -> int:
        return int(self.ffi.cast("uintptr_t", handle))

    def handle(self, kind: str) -> Any:
        self.handles += 1
        return self.ffi.cast(f"struct {kind} *", self.handles)

    # ---- chunks and spaces ----

    def chunk_create(self, _: Any, out: Any) -> int:
        if len(self.content) >= self.total or self.fails("create"):
            return OUT_OF_MEMORY
        out[0] = self.free.pop()
        self.content[out[0]] = ZEROS
        return 0

    def chunk_destroy(self, _: Any, chunk: int) -> None:
        if chunk in self.stuck or any(chunk in s.values() for s in self.spaces.values()):
            raise Broken(f"chunk {chunk} is destroyed while it is mapped")
        del self.content[chunk]
        self.free.append(chunk)

    def space_create(self, _: Any, out: Any) -> int:
        out[0] = self.handle("hal_space")
        self.spaces[self.handles] = {}
        return 0

    def space_destroy(self, space: Any) -> None:
        del self.spaces[self.number(space)]

    def quiet(self, space: int, addr: int) -> None:
        if self.running.get(space):
            raise Broken("a mapping changes under a kernel")
        for queue in self.queues.values():
            for refs in queue:
                if any((self.number(r[0]), r[1]) == (space, addr) for r in refs):
                    raise Broken("a mapping changes under a copy")

    def space_map(self, space: Any, addr: int, chunk: int, writable: int) -> int:
        at = self.number(space)
        self.quiet(at, addr)
        if self.fails("map"):
            return OUT_OF_MEMORY
        if addr in self.spaces[at] or chunk not in self.content:
            raise Broken("mapped twice, or a chunk that is not there")
        self.spaces[at][addr] = chunk
        if not writable:
            self.guarded.add((at, addr))
        return 0

    def space_protect(self, space: Any, addr: int, chunks: int, writable: int) -> int:
        at = self.number(space)
        for page in range(addr, addr + chunks * CHUNK, CHUNK):
            self.quiet(at, page)
            if ((at, page) in self.guarded) != bool(writable) or page not in self.spaces[at]:
                raise Broken("protected twice, or what is not mapped")
            self.guarded.add((at, page))  # also after an error
            if self.fails("protect"):
                return OUT_OF_MEMORY
            if writable:
                self.guarded.discard((at, page))
        return 0

    def space_error(self, space: Any, _: Any, __: int) -> int:
        return 719 if self.number(space) in self.faulty else 0

    def space_unmap(self, space: Any, addr: int) -> int:
        at = self.number(space)
        self.quiet(at, addr)
        chunk = self.spaces[at].pop(addr)
        self.guarded.discard((at, addr))
        if self.fails("unmap"):
            self.stuck.add(chunk)
            return OUT_OF_MEMORY
        return 0

    def unforeseen(self, space: int, addr: int, cell: int, value: int) -> bool:
        """A kernel writes there; if it must not, it does so in a copy, while there are numbers."""
        if (space, addr) in self.guarded:
            if not self.free:
                return False
            chunk = self.free.pop()
            self.content[chunk] = self.content[self.spaces[space][addr]]
            self.spaces[space][addr] = chunk
            self.guarded.remove((space, addr))
            self.copied.setdefault(space, deque()).append((addr, chunk))
        chunk = self.spaces[space][addr]
        page = self.content[chunk]
        self.content[chunk] = (*page[:cell], value, *page[cell + 1 :])
        return True

    def space_copied(self, space: Any, addr: Any, chunk: Any) -> bool:
        of_space = self.copied.get(self.number(space))
        if not of_space:
            return False
        addr[0], chunk[0] = of_space.popleft()
        return True

    def space_map_host(self, *_: Any) -> int:
        return 0

    # ---- queues ----

    def stream_create(self, _: Any, out: Any) -> int:
        out[0] = self.handle("hal_stream")
        self.queues[self.handles] = deque()
        self.done[self.handles] = 0
        return 0

    def stream_destroy(self, stream: Any) -> None:
        if self.queues.pop(self.number(stream)):
            raise Broken("a queue goes with work in it")

    def room(self, stream: Any) -> int:
        return QUEUE - len(self.queues[self.number(stream)])

    def submit(self, stream: Any, work: Any) -> int:
        at, copy = self.number(stream), work.copy
        if len(self.queues[at]) == QUEUE or copy.width != CHUNK:
            raise Broken("a full queue, or less than a page")
        self.queues[at].append([(r.space, r.addr) for r in (copy.dst, copy.src)])
        return self.done[at] + len(self.queues[at])

    def completed(self, stream: Any) -> int:
        return self.done[self.number(stream)]

    def end(self, stream: int) -> bool:
        """The queue's oldest work ends; False: there is none."""
        if not self.queues[stream]:
            return False
        dst, src = self.queues[stream].popleft()
        self.write(dst, self.read(src))
        self.done[stream] += 1
        return True

    def host(self, addr: int, cell: int) -> Any:
        return self.ffi.cast("uint64_t *", addr + cell * CELL)

    def read(self, ref: Any) -> Page:
        """The page at an address of a space, or of the host."""
        space = self.number(ref[0])
        if space:
            return self.content[self.spaces[space][ref[1]]]
        return tuple(int(self.host(ref[1], cell)[0]) for cell in range(CELLS))

    def write(self, ref: Any, page: Page, cells: Iterable[int] = range(CELLS)) -> None:
        """These cells of the page get what they have in `page`."""
        space = self.number(ref[0])
        if not space:
            for cell in cells:
                self.host(ref[1], cell)[0] = page[cell]
            return
        if (space, ref[1]) in self.guarded:
            raise Broken("a write where that is guarded")
        chunk = self.spaces[space][ref[1]]
        new = [page[n] if n in cells else old for n, old in enumerate(self.content[chunk])]
        self.content[chunk] = tuple(new)


@dataclass
class Work:
    """A write that is under way: of `value` into cells, in the rank or for all who share them."""

    first: int
    count: int
    value: int
    ranks: list[Rank]
    places: dict[int, Any]  # page: where it lies


class Rank:
    """One rank: its memory, what its pages should hold, and what its requests were told."""

    def __init__(self, world: World, number: int, group: int = 1) -> None:
        self.world, self.number, self.group = world, number, group
        ffi = world.ffi
        self.memory = ffi.new("struct rank_memory *")
        self.fd = os.memfd_create(f"image-{number}")
        os.ftruncate(self.fd, WINDOW)
        opened = world.lib.memory_open(self.memory, world.memory, group, number, self.fd, self.fd)
        assert opened == 0
        self.space = world.device.number(self.memory.space)
        self.model: dict[int, Page] = {}
        self.told: list[tuple[int, int]] = []
        self.accepted = 0
        self.failed = False
        self.cut = False  # at a cut nobody writes, and what is saved stays true
        self.works: deque[Work] = deque()
        self.callback = ffi.callback("void(void *, enum memory_purpose, int)", self.tell,
                                     onerror=world.device.failed)  # fmt: skip

    def tell(self, _: Any, purpose: int, result: int) -> None:
        self.told.append((purpose, result))
        m = self.memory
        pages = [m.pages[m.live[i]] for i in range(m.live_count)]
        if result == 0:
            right = {
                SAVE: all(p.chunk == self.world.ffi.NULL or p.saved for p in pages),
                ACTIVATE: m.missing == 0,
                PREFETCH: m.missing == 0,
                COPY: True,
            }
            assert right[purpose], f"told too early: {purpose}"
        elif result != CANCELLED:
            assert self.world.faults, f"failed without a reason: {purpose}"
            self.failed = True
            self.world.lib.memory_stop(m)

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

    def ask(self, purpose: int, stay: bool = False, page: int = 0, pages: int = 1) -> bool:
        return self.wants(purpose, stay, page * CELLS, pages * CELLS)

    def used(self) -> None:
        """As memory_used."""
        self.memory.inflight -= 1
        self.running(-1)
        if self.memory.guarded:
            self.world.lib.sharing_copied(self.memory)

    def wants(self, purpose: int, stay: bool, first: int, count: int) -> bool:
        wanted = self.world.ffi.new("struct memory_request *")
        wanted.purpose, wanted.stay, wanted.over = purpose, stay, self.callback
        if purpose == COPY:
            wanted.addr, wanted.bytes = addr_of(first), count * CELL
        had, told = self.memory.request.state, len(self.told)
        good = bool(self.world.lib.memory_ask(self.memory, wanted))
        self.accepted += good and (not had or len(self.told) > told)
        return good

    def owns(self, first: int, count: int) -> bool:
        m = self.memory
        return not m.guarded or bool(self.world.lib.sharing_owns(m, addr_of(first), count * CELL))

    def alloc(self, page: int) -> bool:
        what = self.world.ffi.new("struct rf_alloc *")
        what.addr, what.bytes = DEV_BASE + page * CHUNK, CHUNK
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
        self.world.lib.memory_close(self.memory)
        os.close(self.fd)


class World:
    def __init__(
        self, library: tuple[Any, Any], ranks: int, chunks: int, groups: tuple[int, ...] = ()
    ) -> None:
        self.ffi, self.lib = library
        self.device = Device(self.ffi, chunks)
        self.memory = self.ffi.new("struct device_memory *")
        self.faults = False
        opened = self.lib.device_memory_open(
            self.memory, self.device.table, self.ffi.NULL, chunks * CHUNK
        )
        assert opened == 0
        self.memory.shares = True
        self.streams = sorted(self.device.queues)
        self.ranks = [Rank(self, n, groups[n] if groups else 1) for n in range(ranks)]

    def named(self, value: int) -> Any:
        """What everybody knows by this name; 0: zeros."""
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
            if not rank.moving and not rank.failed:
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
        for name in ("spared", "copies", "unforeseen"):
            counted = [getattr(rank.memory.counted, name) for rank in self.ranks]
            assert sum(counted) == getattr(self.memory, name)
        for all_ in users.values():
            assert len({addr for _, addr in all_}) == 1 == len({spaces[s].group for s, _ in all_})
            if len(all_) > 1:
                assert len([user for user in all_ if user not in self.device.guarded]) <= 1

    def settle(self, waiting: tuple[int, ...] = ()) -> None:
        """Until all requests but those for the purposes `waiting` are over; it must come."""
        for _ in range(200):
            self.turn()
            ended = [self.device.end(stream) for stream in self.streams]
            late = [r for r in self.ranks if r.open and r.memory.request.purpose not in waiting]
            if not any(ended) and not late and not self.memory.moving:
                return
        raise AssertionError("requests wait for ever")

    def close(self) -> None:
        """To be called again after a failure: then it is no use to look at anything."""
        ranks, self.ranks = self.ranks, []
        for rank in ranks:
            rank.close()
        if not ranks:
            return
        assert not self.device.broken, self.device.broken
        assert self.memory.used == self.memory.lost == len(self.device.stuck)
        assert self.memory.reserved == self.memory.leaving == self.memory.shared == 0
        assert self.memory.requests == self.ffi.NULL
        self.lib.device_memory_close(self.memory, True)

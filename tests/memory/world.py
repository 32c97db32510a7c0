"""The proxy's memory room over a device that is Python's: pages hold one number each.

Works of the device end when the test says so, each queue in its order, the queues in any; calls of
the device fail where the test says so. The device looks at the rules of hal.h itself.
"""

from __future__ import annotations

import os
import re
from collections import deque
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


def load(folder: Path) -> tuple[Any, Any]:
    versions = native.CORE / "versions"
    files = sorted({*ROOM.glob("*.c"), *versions.glob("*.c")} - {ROOM / "transfer.c"})
    library = native.build(folder, files)
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
        self.free = list(range(chunks))
        self.content: dict[int, int] = {}  # of chunks that are there
        self.spaces: dict[int, dict[int, int]] = {}  # address -> chunk
        self.guarded: set[tuple[int, int]] = set()  # what is mapped read-only
        self.stuck: set[int] = set()  # chunks that could not be unmapped
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
                     "space_unmap", "space_protect", "space_copied", "space_map_host",
                     "stream_create", "stream_destroy", "room", "submit", "completed"):  # fmt: skip
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
        if not self.free or self.fails("create"):
            return OUT_OF_MEMORY
        out[0] = self.free.pop()
        self.content[out[0]] = 0
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

    def space_map(self, space: Any, addr: int, chunk: int, writable: bool) -> int:
        at = self.number(space)
        self.quiet(at, addr)
        if self.fails("map"):
            return OUT_OF_MEMORY
        if addr in self.spaces[at] or chunk not in self.content:
            raise Broken("mapped twice, or a chunk that is not there")
        self.spaces[at][addr] = chunk
        self.guard(at, addr, writable)
        return 0

    def space_unmap(self, space: Any, addr: int) -> int:
        at = self.number(space)
        self.quiet(at, addr)
        chunk = self.spaces[at].pop(addr)
        self.guarded.discard((at, addr))
        if self.fails("unmap"):
            self.stuck.add(chunk)
            return OUT_OF_MEMORY
        return 0

    def space_protect(self, space: Any, addr: int, chunks: int, writable: bool) -> int:
        at = self.number(space)
        failed = self.fails("protect")
        for place in range(addr, addr + chunks * CHUNK, CHUNK):
            self.quiet(at, place)
            if place not in self.spaces[at]:
                raise Broken("nothing is mapped there")
            self.guard(at, place, writable and not failed)
        return OUT_OF_MEMORY if failed else 0

    def space_copied(self, *_: Any) -> bool:
        return False

    def guard(self, space: int, addr: int, writable: bool) -> None:
        (self.guarded.discard if writable else self.guarded.add)((space, addr))

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

    def read(self, ref: Any) -> int:
        space = self.number(ref[0])
        if space:
            return self.content[self.spaces[space][ref[1]]]
        return int(self.ffi.cast("uint64_t *", ref[1])[0])

    def write(self, ref: Any, value: int) -> None:
        space = self.number(ref[0])
        if space:
            if (space, ref[1]) in self.guarded:
                raise Broken("a write to read-only memory")
            self.content[self.spaces[space][ref[1]]] = value
        else:
            self.ffi.cast("uint64_t *", ref[1])[0] = value


class Rank:
    """One rank: its memory, what its pages should hold, and what its requests were told."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number = world, number
        ffi = world.ffi
        self.memory = ffi.new("struct rank_memory *")
        self.fd = os.memfd_create(f"image-{number}")
        os.ftruncate(self.fd, WINDOW)
        assert world.lib.memory_open(self.memory, world.memory, 1, number, self.fd, self.fd) == 0
        self.model: dict[int, int] = {}
        self.told: list[tuple[int, int]] = []
        self.accepted = 0
        self.failed = False
        self.cut = False  # at a cut nobody writes, and what is saved stays true
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
        wanted = self.world.ffi.new("struct memory_request *")
        wanted.purpose, wanted.stay, wanted.over = purpose, stay, self.callback
        if purpose == COPY:
            wanted.addr, wanted.bytes = DEV_BASE + page * CHUNK, pages * CHUNK
        had, told = self.memory.request.state, len(self.told)
        good = bool(self.world.lib.memory_ask(self.memory, wanted))
        self.accepted += good and (not had or len(self.told) > told)
        return good

    def alloc(self, page: int) -> bool:
        what = self.world.ffi.new("struct rf_alloc *")
        what.addr, what.bytes = DEV_BASE + page * CHUNK, CHUNK
        if self.world.lib.memory_alloc(self.memory, what) != 0:
            return False
        self.model[page] = 0
        return True

    def free(self, page: int) -> None:
        self.world.lib.memory_free(self.memory, DEV_BASE + page * CHUNK)
        del self.model[page]

    def begin(self) -> None:
        self.memory.inflight += 1
        self.running(1)

    def end(self) -> None:
        self.memory.inflight -= 1
        self.running(-1)

    def running(self, change: int) -> None:
        space = self.world.device.number(self.memory.space)
        running = self.world.device.running
        running[space] = running.get(space, 0) + change

    def place(self, page: int, write: bool = False) -> Any:
        ref = self.world.ffi.new("struct hal_ref *")
        self.world.lib.memory_resolve(self.memory, DEV_BASE + page * CHUNK, CHUNK, write, ref)
        return ref.space, ref.addr

    def read(self, page: int) -> int:
        return self.world.device.read(self.place(page))

    def write(self, page: int, value: int) -> None:
        assert not self.cut
        self.world.device.write(self.place(page, True), value)
        self.model[page] = value

    def close(self) -> None:
        self.world.lib.memory_close(self.memory)
        os.close(self.fd)


class World:
    def __init__(self, library: tuple[Any, Any], ranks: int, chunks: int) -> None:
        self.ffi, self.lib = library
        self.device = Device(self.ffi, chunks)
        self.memory = self.ffi.new("struct device_memory *")
        self.faults = False
        assert (
            self.lib.device_memory_open(
                self.memory, self.device.table, self.ffi.NULL, chunks * CHUNK
            )
            == 0
        )
        self.streams = sorted(self.device.queues)
        self.ranks = [Rank(self, number) for number in range(ranks)]

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
        used = {r.chunk(p) for r in self.ranks for p in r.model} - {None}
        assert used <= set(self.device.content)
        for rank in self.ranks:
            assert rank.open in (0, 1) and rank.open == bool(rank.memory.request.state)
            if not rank.moving and not rank.failed:
                assert {p: rank.read(p) for p in rank.model} == rank.model

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
        for rank in self.ranks:
            rank.close()
        assert not self.device.broken, self.device.broken
        assert self.memory.used == self.memory.lost == len(self.device.stuck)
        assert self.memory.reserved == self.memory.leaving == 0
        assert self.memory.requests == self.ffi.NULL
        self.lib.device_memory_close(self.memory, True)

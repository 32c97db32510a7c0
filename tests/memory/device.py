"""A device that is Python's, the table of hal.h: pages hold a few numbers each, cells.

Works of the device end when the test says so, each queue in its order, the queues in any; calls of
the device fail where the test says so. The device looks at the rules of hal.h itself.
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Iterable
from copy import copy
from typing import Any

CHUNK = 2 << 20
OUT_OF_MEMORY, NOT_READY = 2, 600  # CUDA's numbers
QUEUE = 3  # works: smaller than a real one, so that lists have to wait
CELLS = 2  # of a page
CELL = CHUNK // CELLS
Page = tuple[int, ...]
ZEROS: Page = (0,) * CELLS
GARBAGE: Page = (-77,) * CELLS  # of whoever had the chunk before


class Anything(int):
    """A cell's value that no rank may rely on: it equals whatever was read."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


BLANK: Page = (Anything(),) * CELLS


class Broken(AssertionError):
    """The memory library broke a rule of the device's table."""


class Device:
    """The table of hal.h. Handles are small numbers in the place of pointers."""

    ENTRIES: tuple[str, ...] = (
        "chunk_create",
        "chunk_create_unclean",
        "chunk_destroy",
        "space_create",
        "space_destroy",
        "space_map",
        "space_unmap",
        "space_protect",
        "space_copied",
        "space_error",
        "space_map_host",
        "stream_create",
        "stream_destroy",
        "available",
        "submit",
        "completed",
    )
    ROOM = QUEUE

    def __init__(self, ffi: Any, chunks: int, beneath: bool) -> None:
        self.ffi = ffi
        self.total = chunks
        self.free = list(range(2 * chunks))
        self.copied: dict[int, deque[tuple[int, int]]] = {}  # by space: address and chunk
        self.content: dict[int, Any] = {}  # of chunks that are there: a Page
        self.spaces: dict[int, dict[int, int]] = {}  # address -> chunk
        self.write_protected: set[tuple[int, int]] = set()  # space, address
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
        for name in (*self.ENTRIES, *(["space_own"] if beneath else [])):
            callback = ffi.callback(fields[name].type, getattr(self, name), onerror=self.failed)
            self.keep.append(callback)
            setattr(self.table, name, callback)

    def failed(self, _: Any, error: BaseException, where: Any) -> None:
        self.broken.append(f"{error} ({traceback.extract_tb(where)[0].name})")

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
        self.content[out[0]] = self.fresh()
        return 0

    def chunk_create_unclean(self, device: Any, out: Any) -> int:
        error = self.chunk_create(device, out)
        if not error:
            self.content[out[0]] = self.fresh(unclean=True)
        return error

    def fresh(self, unclean: bool = False) -> Any:
        """The content of a new chunk."""
        return GARBAGE if unclean else ZEROS

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
            self.write_protected.add((at, addr))
        return 0

    def space_protect(self, space: Any, addr: int, chunks: int, writable: int) -> int:
        at, pages = self.number(space), []
        for page in range(addr, addr + chunks * CHUNK, CHUNK):
            if not (writable and self.table.space_own):
                self.quiet(at, page)
            if (at, page) not in self.write_protected and self.copied.get(at):
                continue  # a kernel has written there first
            if ((at, page) in self.write_protected) != bool(writable) or page not in self.spaces[
                at
            ]:
                raise Broken("protected twice, or what is not mapped")
            pages.append((at, page))
        self.write_protected.update(pages)  # also after an error
        if pages and self.fails("protect"):
            return OUT_OF_MEMORY
        if writable:
            self.write_protected.difference_update(pages)
        return 0

    def space_own(self, space: Any, addr: int, chunk: int) -> int:
        """Under works that only read there."""
        at = self.number(space)
        if (at, addr) not in self.write_protected:
            if all(addr != copied for copied, _ in self.copied.get(at, ())):
                raise Broken("it is its own already")
            return NOT_READY
        if self.fails("own"):
            return OUT_OF_MEMORY
        if self.content[chunk] != self.content[self.spaces[at][addr]]:
            raise Broken("a reader there would notice")
        for queue in self.queues.values():
            if any((self.number(dst[0]), dst[1]) == (at, addr) for dst, _ in queue):
                raise Broken("a mapping changes under a copy to it")
        self.spaces[at][addr] = chunk
        self.write_protected.remove((at, addr))
        return 0

    def space_error(self, space: Any, _: Any, __: int) -> int:
        return 719 if self.number(space) in self.faulty else 0

    def space_unmap(self, space: Any, addr: int) -> int:
        at = self.number(space)
        self.quiet(at, addr)
        chunk = self.spaces[at].pop(addr)
        self.write_protected.discard((at, addr))
        if self.fails("unmap"):
            self.stuck.add(chunk)
            return OUT_OF_MEMORY
        return 0

    def unforeseen(self, space: int, addr: int, cell: int, value: int) -> bool:
        """A kernel writes there; if it must not, it does so in a copy, while there are numbers."""
        if not self.own_copy(space, addr):
            return False
        chunk = self.spaces[space][addr]
        page = self.content[chunk]
        self.content[chunk] = (*page[:cell], value, *page[cell + 1 :])
        return True

    def own_copy(self, space: int, addr: int) -> bool:
        """A kernel's write to a protected page gets a copy, while there are free chunks."""
        if (space, addr) not in self.write_protected:
            return True
        if not self.free:
            return False
        chunk = self.free.pop()
        self.content[chunk] = copy(self.content[self.spaces[space][addr]])
        self.spaces[space][addr] = chunk
        self.write_protected.remove((space, addr))
        self.copied.setdefault(space, deque()).append((addr, chunk))
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

    def available(self, stream: Any) -> int:
        return self.ROOM - len(self.queues[self.number(stream)])

    def submit(self, stream: Any, work: Any) -> int:
        at, move = self.number(stream), work.copy
        if len(self.queues[at]) == self.ROOM or move.width != CHUNK:
            raise Broken("a full queue, or less than a page")
        self.queues[at].append([(r.space, r.addr) for r in (move.dst, move.src)])
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
            page: Page = self.content[self.spaces[space][ref[1]]]
            return page
        return tuple(int(self.host(ref[1], cell)[0]) for cell in range(CELLS))

    def write(self, ref: Any, page: Page, cells: Iterable[int] = range(CELLS)) -> None:
        """These cells of the page get what they have in `page`."""
        space = self.number(ref[0])
        if not space:
            for cell in cells:
                self.host(ref[1], cell)[0] = page[cell]
            return
        if (space, ref[1]) in self.write_protected:
            raise Broken("a write where that is write_protected")
        chunk = self.spaces[space][ref[1]]
        new = [page[n] if n in cells else old for n, old in enumerate(self.content[chunk])]
        self.content[chunk] = tuple(new)

"""The device of tests/memory for all that the proxy's core asks of one: kernels, copies, fills,
sums and checksums, on the bytes of ranks at the ends of chunks.

A work begins and ends when the test says so: half of what it does at its beginning, and the rest at
its end, each through the mappings of that moment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from memory.device import CHUNK, Broken, Device

from support.computing import NAMES

Words = npt.NDArray[np.uint32]
Steps = tuple[Callable[[], None], Callable[[], None]]
Ref = tuple[int, int]  # a space, or 0 for the host, and an address
ILLEGAL, CANCELLED = 700, 719
HEAD, TAIL = 9 << 10, 1 << 10  # of each chunk nothing else is kept
WINDOWS = ((0, HEAD, 0), (CHUNK - TAIL, CHUNK, HEAD))  # from, to, and where that is kept
WIDE = HEAD  # copies from here on are of what is kept
INT32, SUM = 2, 0
FILLED = bytes([0xB3])  # by whoever had the chunk before


def kept_parts(addr: int, size: int) -> Iterator[tuple[int, int, int, int]]:
    """The parts of a range that are kept: page, offset in the page's kept content, offset in the
    range, and size."""
    for page in range(addr - addr % CHUNK, addr + size, CHUNK):
        for begin, end, place in WINDOWS:
            low, high = max(addr, page + begin), min(addr + size, page + end)
            if low < high:
                yield page, low - page - begin + place, low - addr, high - low


@dataclass
class Work:
    """`steps` are what it does: at its beginning, and at its end. `space`: in which it runs, if it
    is a kernel. `reads`, `writes`: what it names otherwise, and how many bytes of it."""

    steps: Steps
    space: int = 0
    reads: list[tuple[Ref, int]] = field(default_factory=list)
    writes: list[tuple[Ref, int]] = field(default_factory=list)
    ready: Callable[[], bool] = lambda: True
    begun: bool = False

    @property
    def spaces(self) -> set[int]:
        return {ref[0] for ref, _ in self.reads + self.writes} | {self.space} - {0}


@dataclass(frozen=True)
class Launch:
    """A kernel of support/computing.py, with its parameters."""

    name: str
    space: int
    out: int
    given: int
    count: int
    add: int
    variables: int
    threads: int


class TurnedDevice(Device):
    """`wild`: the names of kernels that may write where no rank has foreseen it."""

    ENTRIES = (
        *Device.ENTRIES,
        "device_open",
        "device_close",
        "arithmetic",
        "space_cancel",
        "notify_at",
    )
    ROOM = 64

    def __init__(self, ffi: Any, chunks: int, beneath: bool, wild: set[str]) -> None:
        super().__init__(ffi, chunks, beneath)
        self.wild = wild
        self.kernels = 0  # that were submitted
        self.notify: dict[int, int] = {}
        self.errors: dict[int, int] = {}
        self.open = False
        self.name = ffi.new("char[]", b"soft")
        self.table.type = self.name

    def fresh(self, unclean: bool = False) -> Any:
        return bytearray((FILLED if unclean else b"\0") * (HEAD + TAIL))

    # ---- the rest of the table ----

    def device_open(self, _: Any, out: Any) -> int:
        out[0] = self.handle("hal_device")
        self.open = True
        return 0

    def device_close(self, _: Any) -> None:
        self.open = False

    def arithmetic(self, _: Any) -> int:
        return 1

    def space_error(self, space: Any, text: Any, size: int) -> int:
        error = self.errors.get(self.number(space), 0)
        if error and text and size:
            text[0] = b"\0"
        return error

    def space_cancel(self, space: Any) -> None:
        self.fail(self.number(space), CANCELLED)

    def fail(self, space: int, error: int) -> None:
        self.errors.setdefault(space, error)

    def notify_at(self, stream: Any, number: int) -> None:
        self.notify[self.number(stream)] = number

    def quiet(self, space: int, addr: int) -> None:
        """Nothing that runs can tell that the mapping changes."""
        self.calm(space, addr, addr + CHUNK, writes_only=False)

    def calm(self, space: int, begin: int, end: int, writes_only: bool) -> None:
        for work in (work for queue in self.queues.values() for work in queue):
            if work.space == space:
                raise Broken("a mapping changes under a kernel")
            for (at, addr), size in work.writes + ([] if writes_only else work.reads):
                if at == space and addr < end and begin < addr + size:
                    raise Broken("a mapping changes under a copy")

    def space_protect(self, space: Any, addr: int, chunks: int, writable: int) -> int:
        if not self.table.space_own:
            return super().space_protect(space, addr, chunks, writable)
        if not writable:
            self.calm(self.number(space), addr, addr + chunks * CHUNK, writes_only=True)
        with self.not_looking():
            return super().space_protect(space, addr, chunks, writable)

    def space_own(self, space: Any, addr: int, chunk: int) -> int:
        at = self.number(space)
        for work in (work for queue in self.queues.values() for work in queue):
            for (to, begin), size in work.writes:
                if to == at and begin < addr + CHUNK and addr < begin + size:
                    raise Broken("a mapping changes under a copy to it")
        with self.not_looking():
            return super().space_own(space, addr, chunk)

    @contextmanager
    def not_looking(self) -> Iterator[None]:
        """Works that may be there have been looked at."""
        queues, self.queues = self.queues, {}
        try:
            yield
        finally:
            self.queues = queues

    # ---- works ----

    def submit(self, stream: Any, work: Any) -> int:
        queue = self.queues[self.number(stream)]
        if len(queue) == self.ROOM:
            return 0
        makes = (self._kernel, self._copy, self._fill, self._reduce, None, None, self._checksum)
        make = makes[work.kind]
        if make is None:
            raise Broken(f"a work of kind {work.kind}")
        queue.append(make(work))
        return self.done[self.number(stream)] + len(queue)

    def step(self, stream: int) -> bool:
        """The queue's oldest work begins, or ends; False: there is none, or it waits for what is
        not there yet."""
        queue: deque[Work] = self.queues[stream]
        if not queue or (queue[0].begun and not queue[0].ready()):
            return False
        work = queue[0]
        if not work.spaces & self.errors.keys():
            work.steps[work.begun]()
        if work.begun:
            queue.popleft()
            self.done[stream] += 1
        work.begun = True
        return True

    def rings(self, stream: int) -> bool:
        """Does the loop hear of what has ended there so far?"""
        return self.done[stream] >= self.notify.get(stream, 0)

    @property
    def busy(self) -> list[int]:
        return [stream for stream, queue in self.queues.items() if queue]

    def _ref(self, ref: Any) -> Ref:
        return self.number(ref.space), int(ref.addr)

    def _copy(self, work: Any) -> Work:
        c = work.copy
        (to, dst), (by, src) = self._ref(c.dst), self._ref(c.src)
        rows = [
            ((to, dst + row * c.dst_pitch), (by, src + row * c.src_pitch))
            for row in range(c.height)
        ]
        width = int(c.width)
        return Work(
            self.halves([(a, b, width) for a, b in rows]),
            reads=[(b, width) for _, b in rows],
            writes=[(a, width) for a, _ in rows],
        )

    def halves(self, rows: list[tuple[Ref, Ref, int]]) -> Steps:
        """Two steps for the copies, one for each half of every piece."""

        def half(second: bool) -> None:
            for dst, src, width in rows:
                for at, size in self.pieces(dst, src, width):
                    cut = size // 2
                    begin, end = (cut, size) if second else (0, cut)
                    data = self.get((src[0], src[1] + at + begin), end - begin)
                    self.put((dst[0], dst[1] + at + begin), data)

        return lambda: half(False), lambda: half(True)

    def pieces(self, dst: Ref, src: Ref, width: int) -> list[tuple[int, int]]:
        """The offset and size of the kept parts of a row; of a short row, all of it."""
        device = dst if dst[0] else src
        if width < WIDE or not device[0]:
            return [(0, width)]
        if dst[0] and src[0] and (dst[1] - src[1]) % CHUNK:
            raise Broken("so much is not copied to another place in chunks")
        return [(at, size) for _, _, at, size in kept_parts(device[1], width)]

    def _fill(self, work: Any) -> Work:
        f = work.fill
        pattern = int(f.value).to_bytes(4, "little")[: f.element]
        to, dst = self._ref(f.dst)
        width = int(f.width) * int(f.element)
        rows = [(to, dst + row * int(f.pitch)) for row in range(f.height)]

        def half(second: bool) -> None:
            for space, addr in rows:
                for at, size in self.pieces((space, addr), (space, addr), width):
                    cut = size // 8 * 4
                    begin, end = (cut, size) if second else (0, cut)
                    data = pattern * ((end - begin) // len(pattern))
                    self.put((space, addr + at + begin), data)

        steps = (lambda: half(False), lambda: half(True))
        return Work(steps, writes=[(row, width) for row in rows])

    def _reduce(self, work: Any) -> Work:
        r = work.reduce
        if (r.dtype, r.op) != (INT32, SUM):
            raise Broken("a sum of something else")
        dst, a, b, size = self._ref(r.dst), self._ref(r.a), self._ref(r.b), 4 * int(r.count)

        def half(second: bool) -> None:
            cut = size // 8 * 4
            begin, end = (cut, size) if second else (0, cut)
            x, y = (self.words((s, at + begin), (end - begin) // 4) for s, at in (a, b))
            self.put((dst[0], dst[1] + begin), (x + y).tobytes())

        steps = (lambda: half(False), lambda: half(True))
        return Work(steps, reads=[(a, size), (b, size)], writes=[(dst, size)])

    def _checksum(self, work: Any) -> Work:
        src, size, total = self._ref(work.checksum.src), int(work.checksum.bytes), work.checksum.sum

        def add() -> None:
            for at, count in self.pieces(src, src, size):  # zeros count for nothing
                data = np.frombuffer(self.get((src[0], src[1] + at), count // 4 * 4), np.uint32)
                places = np.flatnonzero(data)
                factors = (places + at // 4 + 1).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
                total[0] += int((data[places] * (factors >> np.uint64(16) | np.uint64(1))).sum())

        return Work((lambda: None, add), reads=[(src, size)])

    # ---- kernels ----

    def _kernel(self, work: Any) -> Work:
        k = work.kernel
        self.kernels += 1
        params = bytes(self.ffi.buffer(k.params, k.param_bytes))
        out, given = (int.from_bytes(params[at : at + 8], "little") for at in (0, 8))
        count, add = (int.from_bytes(params[at : at + 4], "little") for at in (16, 20))
        name = NAMES[self.number(k.function) - 1]
        launch = Launch(
            name,
            self.number(k.space),
            out,
            given,
            min(count, k.block[0]),
            add,
            int(k.globals_addr),
            int(k.block[0]),
        )
        cut = count // 2
        return Work(
            (lambda: self.run(launch, 0, cut), lambda: self.run(launch, cut, launch.count)),
            space=launch.space,
            ready=lambda: name != "until" or bool(self.words((launch.space, given), 1)[0]),
        )

    def run(self, k: Launch, begin: int, end: int) -> None:
        """Runs these threads of a kernel."""
        if begin == end:
            return
        try:
            self._run(k, k.out + 4 * begin, k.given + 4 * begin, end - begin)
        except KeyError:
            self.fail(k.space, ILLEGAL)

    def _run(self, k: Launch, out: int, given: int, count: int) -> None:
        def load(addr: int, words: int = count) -> Words:
            return self.words((k.space, addr), words)

        def store(addr: int, value: Words) -> None:
            self.store(k, addr, value.astype(np.uint32).tobytes())

        add = np.uint32(k.add)
        with np.errstate(over="ignore"):
            match k.name:
                case "scale":
                    store(out, load(given) * np.uint32(3) + add)
                case "double":
                    store(out, load(given) * np.uint32(2) + add)
                case "update":
                    store(out, load(out) * np.uint32(5) + load(given) + add)
                case "until":
                    store(out, load(given))
                case "block":
                    store(out, np.full(count, k.threads * 7 + 1, np.uint32))
                case "twice":
                    store(out, load(out) + np.uint32(1))
                    store(given, load(given) + np.uint32(1))
                case "tally":
                    store(k.variables, load(k.variables, 1) + add)
                    store(out, load(k.variables, 1))
                case "atomic":
                    old = load(out, 1)
                    store(out, old + load(given, 1))
                    store(out, old)
                case "pointer":
                    store(out, np.array([given & 0xFFFFFFFF, given >> 32]))
                    store(given, load(given) + np.uint32(9))
                case _:
                    raise Broken(f"kernel {k.name}")

    def store(self, k: Launch, addr: int, data: bytes) -> None:
        for page, _, _, _ in kept_parts(addr, len(data)):
            if page not in self.spaces[k.space]:
                raise KeyError(page)
            if k.name in self.wild and not self.own_copy(k.space, page):
                raise KeyError(page)
        self.put((k.space, addr), data)

    # ---- bytes ----

    def words(self, ref: Ref, count: int) -> Words:
        return np.frombuffer(self.get(ref, 4 * count), np.uint32)

    def get(self, ref: Ref, size: int) -> bytes:
        space, addr = ref
        if not space:
            return bytes(self.ffi.buffer(self.ffi.cast("char *", addr), size))
        found = b"".join(
            self.content[self.spaces[space][page]][place : place + count]
            for page, place, _, count in kept_parts(addr, size)
        )
        if len(found) != size:
            raise Broken(f"{size} bytes at {addr:#x} are not all kept")
        return found

    def put(self, ref: Ref, data: bytes) -> None:
        space, addr = ref
        if not space:
            self.ffi.buffer(self.ffi.cast("char *", addr), len(data))[:] = data
            return
        written = 0
        for page, place, at, count in kept_parts(addr, len(data)):
            if (space, page) in self.write_protected:
                raise Broken("a write where that is write_protected")
            content = self.content[self.spaces[space][page]]
            content[place : place + count] = data[at : at + count]
            written += count
        if written != len(data):
            raise Broken(f"{len(data)} bytes at {addr:#x} are not all kept")

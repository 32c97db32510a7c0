"""A rank that does one thing after another on one of two devices, and is handed over between them:
for tests of what becomes of it. Its handles are numbered as a client does."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from hostile.records import (
    COMM_DESTROY,
    COMM_SPLIT,
    EVENT_ELAPSED,
    FUNCTION_GET,
    FUNCTION_NAMES,
    GLOBAL_GET,
    KERNELS,
    LAUNCH,
    MODULE_DATA,
    MODULE_GLOBALS,
    MODULE_LOAD,
    MODULE_UNLOAD,
    REDOP_CREATE,
    REDOP_DESTROY,
)

from rankfold.proxy.native import Native
from rankfold.proxy.ptx.info import ModuleInfo
from support.answers import Kernels, answering
from support.ring_client import (
    ALLOC,
    ASYNC_ERROR,
    CHUNK,
    COLLECTIVE,
    COMM_INIT,
    COPY,
    DEV_BASE,
    DEVICE_SYNC,
    EVENT_CREATE,
    EVENT_DESTROY,
    EVENT_QUERY,
    EVENT_RECORD,
    FILL,
    FREE,
    OFF_BULK,
    RETIRED,
    STREAM_CREATE,
    STREAM_DESTROY,
    STREAM_WAIT,
    RingClient,
    attach,
    device,
    hand_over,
    leave,
)

PINNED = DEV_BASE + (1 << 39)
GLOBALS = DEV_BASE + 32 * CHUNK  # where the client puts those of its modules, 512 bytes each
PLACES = [DEV_BASE + i * (CHUNK // 2) for i in range(12)]  # of buffers
SIZES = (1, 4096, CHUNK // 2, CHUNK)
HEADER = struct.Struct("<QIIQQ")  # struct state_header
Answer = tuple[int, bytes]
Operation = tuple[str, int, int]


class Program:
    """A rank that does one thing after another; handles are numbered as a client does."""

    def __init__(self) -> None:
        self.client = RingClient()
        self.handles: dict[str, list[int]] = {"stream": [1, 2]}
        self.next_handle = 16
        self.loads = 0

    def close(self) -> None:
        self.client.close()

    def fresh(self, kind: str) -> int:
        self.next_handle += 1
        self.handles.setdefault(kind, []).append(self.next_handle)
        return self.next_handle

    def handle(self, kind: str, n: int) -> int:
        """One that there is or was; or one that never was."""
        all_of_kind = self.handles.get(kind, [])
        return all_of_kind[n % len(all_of_kind)] if all_of_kind else 9999

    def request(self, opcode: int, body: bytes, data: int = 0) -> Answer:
        error = self.client.call(opcode, body)
        return error, self.client.data(data) if not error else b""

    def do(self, operation: Operation) -> list[Answer]:
        name, a, b = operation
        return list(getattr(self, name)(a, b))

    # ---- handles ----

    def stream(self, a: int, b: int) -> Iterator[Answer]:
        body = struct.pack("<QIi", self.fresh("stream"), a & 1, -(b % 3))
        yield self.request(STREAM_CREATE, body)

    def no_stream(self, a: int, _: int) -> Iterator[Answer]:
        yield self.request(STREAM_DESTROY, struct.pack("<Q", self.handle("stream", a)))

    def event(self, a: int, _: int) -> Iterator[Answer]:
        yield self.request(EVENT_CREATE, struct.pack("<QII", self.fresh("event"), a & 2, 0))

    def no_event(self, a: int, _: int) -> Iterator[Answer]:
        yield self.request(EVENT_DESTROY, struct.pack("<Q", self.handle("event", a)))

    def record(self, a: int, b: int) -> Iterator[Answer]:
        pair = struct.pack("<QQ", self.handle("event", a), self.handle("stream", b))
        yield self.request(EVENT_RECORD, pair)

    def wait(self, a: int, b: int) -> Iterator[Answer]:
        pair = struct.pack("<QQ", self.handle("event", a), self.handle("stream", b))
        yield self.request(STREAM_WAIT, pair)

    def query(self, a: int, b: int) -> Iterator[Answer]:
        """After all work, else the answer is a matter of time; so is what has elapsed."""
        yield self.request(DEVICE_SYNC, b"")
        pair = struct.pack("<QQ", self.handle("event", a), self.handle("event", b))
        yield self.request(EVENT_QUERY, pair[:8])
        error = self.client.call(EVENT_ELAPSED, pair)
        yield error, b"" if error else bytes([self.client.data(4) == b"\0" * 4 and a == b])

    def module(self, a: int, _: int) -> Iterator[Answer]:
        """Some images are refused."""
        number, image = self.fresh("module"), KERNELS if a % 5 else b"no image"
        self.client.map[OFF_BULK : OFF_BULK + len(image)] = image
        yield self.request(MODULE_DATA, struct.pack("<QQII", number, 0, len(image), 0))
        loaded = self.request(MODULE_LOAD, struct.pack("<QQII", number, len(image), 1, 0), 16)
        yield loaded
        if not loaded[0]:
            self.loads += 1
            address = GLOBALS + 512 * self.loads
            yield self.request(ALLOC, struct.pack("<QQQII", address, 512, 0, 0, 0))
            yield self.request(MODULE_GLOBALS, struct.pack("<QQ", number, address))

    def no_module(self, a: int, _: int) -> Iterator[Answer]:
        yield self.request(MODULE_UNLOAD, struct.pack("<Q", self.handle("module", a)))

    def function(self, a: int, b: int) -> Iterator[Answer]:
        name = b"add_one" if b % 4 else b"missing"
        number = self.fresh("function")
        body = struct.pack("<QQII", self.handle("module", a), number, 1, 7) + name
        yield self.request(FUNCTION_GET, body, 24)

    def variable(self, a: int, _: int) -> Iterator[Answer]:
        body = struct.pack("<QQII", self.handle("module", a), 0, 0, 7) + b"counter"
        yield self.request(GLOBAL_GET, body, 16)

    def names(self, a: int, b: int) -> Iterator[Answer]:
        body = struct.pack("<QII", self.handle("module", a), b % 3, 0)
        self.client.map[OFF_BULK : OFF_BULK + 8] = bytes(8)
        yield self.request(FUNCTION_NAMES, body, 4)
        yield 0, self.client.map[OFF_BULK : OFF_BULK + 8]

    def comm(self, _a: int, _b: int) -> Iterator[Answer]:
        number = self.fresh("comm")
        body = struct.pack("<QII", number, 1, 0) + struct.pack("<Q", number).ljust(128, b"\1")
        yield self.request(COMM_INIT, body)

    def split(self, a: int, b: int) -> Iterator[Answer]:
        parent = self.handle("comm", a)
        yield self.request(
            COMM_SPLIT, struct.pack("<QQii", parent, self.fresh("comm"), b % 2, 0), 8
        )

    def no_comm(self, a: int, _: int) -> Iterator[Answer]:
        yield self.request(COMM_DESTROY, struct.pack("<Q", self.handle("comm", a)))

    def redop(self, a: int, b: int) -> Iterator[Answer]:
        body = struct.pack("<QQIIf", self.fresh("redop"), self.handle("comm", a), 7, 0, b / 8)
        yield self.request(REDOP_CREATE, body.ljust(32, b"\0"))

    def no_redop(self, a: int, _: int) -> Iterator[Answer]:
        yield self.request(REDOP_DESTROY, struct.pack("<Q", self.handle("redop", a)))

    # ---- memory and work ----

    def alloc(self, a: int, b: int) -> Iterator[Answer]:
        address, size = PLACES[a % len(PLACES)], SIZES[b % len(SIZES)]
        yield self.request(ALLOC, struct.pack("<QQQII", address, size, a, b & 1, 0))

    def free(self, a: int, _: int) -> Iterator[Answer]:
        yield self.request(FREE, struct.pack("<Q", PLACES[a % len(PLACES)]))

    def address(self, a: int) -> int:
        return [*PLACES, PINNED][a % (len(PLACES) + 1)]

    def write(self, a: int, b: int) -> Iterator[Answer]:
        data = bytes([b % 256]) * 64
        body = self.client.copy(
            self.address(a), 0, 64, places=(0, 2), inline=data, stream=self.handle("stream", b)
        )
        yield self.request(COPY, body)

    def fill(self, a: int, b: int) -> Iterator[Answer]:
        address = self.address(a) + 128
        stream = self.handle("stream", a)
        yield self.request(FILL, struct.pack("<5QII", stream, address, 64, 16, 1, b, 4))
        yield self.request(DEVICE_SYNC, b"")

    def copy(self, a: int, b: int) -> Iterator[Answer]:
        yield self.request(DEVICE_SYNC, b"")
        if self.address(a) != self.address(b):
            yield self.request(COPY, self.client.copy(self.address(a), self.address(b), 256))
        yield self.request(DEVICE_SYNC, b"")

    def launch(self, a: int, b: int) -> Iterator[Answer]:
        """On memory that is there, else the rank has an error that stays."""
        yield self.request(DEVICE_SYNC, b"")
        there = self.client.call(COPY, self.client.copy(0, self.address(b), 256, places=(1, 0)))
        if not there:
            params = struct.pack("<QI", self.address(b), 16)
            head = struct.pack(
                "<QQ6I4I", 1, self.handle("function", a), 1, 1, 1, 16, 1, 1, 0, 12, 0, 0
            )
            yield self.request(LAUNCH, head + params)
        yield self.request(DEVICE_SYNC, b"")

    def reduce(self, a: int, b: int) -> Iterator[Answer]:
        """In place, with a reduction of its own or a plain sum; a refusal is not in the reply."""
        yield self.request(DEVICE_SYNC, b"")
        there = self.client.call(COPY, self.client.copy(0, self.address(b), 256, places=(1, 0)))
        if not there:
            op = self.handle("redop", b) if b % 2 else 0
            comm, address = self.handle("comm", a), self.address(b)
            body = struct.pack("<6QIIiI", 1, comm, address, address, 32, op, 0, 7, 0, 0)
            self.client.post(COLLECTIVE, body)
        yield self.request(DEVICE_SYNC, b"")

    def look(self) -> list[Answer]:
        """All that can be seen: what every handle is good for, and then `read`."""
        answers: list[Answer] = []
        for kind, uses in (
            ("module", "variable"),
            ("module", "names"),
            ("function", "launch"),
            ("event", "query"),
            ("event", "wait"),
            ("comm", "reduce"),
            ("redop", "reduce"),
            ("comm", "redop"),
            ("stream", "write"),
            ("event", "record"),
        ):
            for n in range(len(self.handles.get(kind, []))):
                answers += self.do((uses, n, n))
        return answers + self.read()

    def read(self) -> list[Answer]:
        """Every place, what is retired, the error that stays."""
        answers = [self.request(DEVICE_SYNC, b"")]
        for address in [*PLACES, PINNED, *(GLOBALS + 512 * n for n in range(1, self.loads + 1))]:
            error = self.client.call(COPY, self.client.copy(0, address, 256, places=(1, 0)))
            answers.append((error, b"" if error else self.client.map[OFF_BULK : OFF_BULK + 256]))
        words = (self.client.u64(RETIRED), self.client.u32(ASYNC_ERROR), self.client.u32(276))
        return [*answers, (0, repr(words).encode())]


OPERATIONS = [name for name in vars(Program) if not name.startswith("_")]
OPERATIONS = [
    n
    for n in OPERATIONS
    if n not in ("close", "fresh", "handle", "request", "do", "address", "look", "read")
]


class Moving:
    """A program on one of two devices, from one to the other and back."""

    def __init__(self, natives: list[Native]):
        self.natives = natives
        self.program = Program()
        self.job = 1
        attach(natives[0], self.program.client, job=self.job)

    def move(self) -> int:
        """The size of the state that was handed over."""
        client, (here, there) = self.program.client, self.natives
        sizes: list[int] = []
        hand_over(
            here, client, self.job, there, self.job + 1, lambda: sizes.append(state_bytes(client))
        )
        self.natives.reverse()
        self.job += 1
        return sizes[0]

    def close(self) -> None:
        leave(self.natives[0], self.job)
        self.program.close()


def state_bytes(client: RingClient) -> int:
    _magic, _version, _reserved, size, _checksum = HEADER.unpack(
        os.pread(client.image, HEADER.size, 1 << 39)
    )
    return int(size)


@contextmanager
def moving(kernels: Kernels) -> Iterator[Moving]:
    modules: dict[str, ModuleInfo] = {}
    with ExitStack() as stack:
        natives = [stack.enter_context(device()) for _ in range(2)]
        for native in natives:
            stack.enter_context(answering(native, kernels, modules))
        made = Moving(natives)
        try:
            yield made
        finally:
            made.close()


def alive(program: Program) -> None:
    """Two of everything."""
    for n in range(2):
        for name in ("alloc", "stream", "event", "module", "function", "comm", "redop", "write"):
            operation: Any = (name, n + 1, n + 1)
            assert all(error == 0 for error, _ in program.do(operation)), name

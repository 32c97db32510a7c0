"""Small programs of several ranks that share memory: random ones, what each rank alone would read
and leave behind, and how they are run.

The ranks of one job take the same steps, except for those at which one does something else or
nothing: kernels, copies and fills on several streams, frees, host copies, collectives, cuts.
Streams are ordered by events wherever the program would have a race: so it has one meaning.
"""

from __future__ import annotations

import struct
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from hypothesis import strategies as st

from rankfold.proxy.hal.soft.modules import Loader
from support.computing import Computing
from support.contents import check_equal_versions, images_of
from support.devices import Devices, devices
from support.patience import scaled
from support.ring_client import (
    AT_ADDRESS,
    AT_BULK,
    CHUNK,
    CONTRACT,
    COPY,
    DEV_BASE,
    DEVICE_SYNC,
    EVENT_CREATE,
    EVENT_RECORD,
    OFF_BULK,
    RETIRED,
    STREAM_CREATE,
    STREAM_SYNC,
    STREAM_WAIT,
    settle,
)

WORDS = 96
ALLREDUCE = CONTRACT.enums["rf_coll"]["RF_COLL_ALLREDUCE"]
CLEAN, CRASHED, FAULT = 0, 1, 2
STREAMS = (1, 100, 101)  # the legacy one, a blocking one, and one that is not
EVENTS = 110  # of each stream, one

VARIABLES = DEV_BASE
_HOME = DEV_BASE + CHUNK
_CUT = CHUNK + 8192
# Address and size of each allocation. Each has chunks of its own, except that the last allocation
# begins in the last chunk of the one before.
ALLOCATIONS = [
    (_HOME, 2 * CHUNK),
    (_HOME + 2 * CHUNK, 2 * CHUNK),
    (_HOME + 4 * CHUNK, 2 * CHUNK),
    (_HOME + 6 * CHUNK, _CUT),
    (_HOME + 6 * CHUNK + _CUT, 2 * CHUNK - _CUT),
]
# The words in use cross a border of chunks, except in the last buffer.
BUFFERS = [at + CHUNK - 2 * WORDS for at, _ in ALLOCATIONS[:4]] + [ALLOCATIONS[4][0]]
GRADIENT, BESIDE, COUNTER = 2, (3, 4), -1
ALL_CHUNKS = 9  # of a rank

ONE_THREAD = ("tally", "pointer", "atomic")
KERNELS = ("update", "scale", "double", "twice", "block", *ONE_THREAD)
KINDS = ["update"] * 8 + ["scale"] * 4 + ["move", "fill", "write"] * 3 + ["double", "twice"] * 2
KINDS += ["read", "read", *ONE_THREAD, "block", "sync", "sync", "wait", "free"]


@dataclass(frozen=True)
class Op:
    """An operation of one rank. `out` and `given` are numbers of buffers, `stream` that of a
    stream; it uses `count` words of both buffers, from `at` on."""

    kind: str
    out: int = 0
    given: int = 0
    count: int = WORDS
    value: int = 0
    stream: int = 0
    at: int = 0

    @property
    def reads(self) -> set[int]:
        return {
            "move": {self.given},
            "read": {self.out},
        }.get(self.kind, {self.given, self.out} if self.kind in KERNELS else set())

    @property
    def writes(self) -> set[int]:
        if self.kind == "tally":
            return {self.out, COUNTER}
        if self.kind in ("twice", "pointer"):
            return {self.out, self.given}
        return {self.out} if self.kind in (*KERNELS, "move", "fill", "write", "reduce") else set()


@dataclass(frozen=True)
class Step:
    """A step that all ranks do except `rank`, which does `other`. All ranks take part in a
    "reduce", "cut" or "save" (at a cut)."""

    op: Op
    rank: int | None = None
    other: Op | None = None

    def of(self, rank: int) -> Op | None:
        return self.other if self.rank == rank else self.op


@dataclass(frozen=True)
class Program:
    """`ends`: a rank, and how it ends before `tail`. `order`: which of the ranks that can continue
    posts next, and how much, over and over."""

    ranks: int
    chunks: int
    steps: list[Step]
    ends: tuple[int, int] | None
    tail: list[Step]
    order: list[tuple[int, int]]


def programs(longest: int) -> st.SearchStrategy[Program]:
    ops = st.builds(
        Op,
        kind=st.sampled_from(KINDS),
        out=st.sampled_from([0, 1, 2, 0, 1, 2, 3, 4]),
        given=st.integers(0, 4),
        count=st.sampled_from([WORDS, WORDS, WORDS, 64]),
        value=st.integers(0, 2),
        stream=st.sampled_from([0, 0, 0, 1, 2]),
        at=st.sampled_from([0, 0, 0, 24, 60]),
    ).map(_sane)
    alike = st.builds(Step, ops)
    apart = st.builds(Step, ops, st.integers(0, 3), st.none() | ops)
    everybody = st.sampled_from(
        [Step(Op(kind, GRADIENT)) for kind in ("reduce", "reduce", "reduce", "cut", "cut", "save")]
    )
    own = st.one_of(*[alike] * 5, apart)
    return st.builds(
        Program,
        ranks=st.integers(2, 4),
        chunks=st.sampled_from([96, 24, 12]),
        steps=st.lists(st.one_of(*[own] * 7, everybody), min_size=4, max_size=longest),
        ends=st.none() | st.tuples(st.integers(0, 3), st.sampled_from([CLEAN, CRASHED, FAULT])),
        tail=st.lists(own, max_size=6),
        order=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), min_size=1, max_size=12),
    )


def _sane(op: Op) -> Op:
    count = 1 if op.kind in ONE_THREAD else min(op.count, WORDS - op.at)
    given = op.given
    if op.kind == "move" and given == op.out:
        given = (given + 1) % len(BUFFERS)
    return Op(op.kind, op.out, given, count, op.value, op.stream, op.at)


# All programs begin with these steps, so that ranks share all of their memory.
BEGINNING = [
    Step(Op("write", 0, value=5)),
    Step(Op("update", 1, 0)),
    Step(Op("scale", GRADIENT, 0)),
    Step(Op("sync")),
    Step(Op("update", 1, 0)),
    Step(Op("update", 0, 1)),
    Step(Op("scale", 3, 0)),
    Step(Op("double", 4, 0)),
    Step(Op("sync")),
]


class Alone:
    """The content that a rank's memory would have if it had a device of its own."""

    def __init__(self) -> None:
        self.memory = [np.zeros(WORDS, np.uint32) for _ in BUFFERS]
        self.counter = 0

    def do(self, op: Op) -> None:
        part = slice(op.at, op.at + op.count)
        o, g = self.memory[op.out][part], self.memory[op.given][part]
        value = np.uint32(op.value)
        with np.errstate(over="ignore"):
            match op.kind:
                case "scale":
                    o[:] = g * np.uint32(3) + value
                case "double":
                    o[:] = g * np.uint32(2) + value
                case "update":
                    o[:] = o * np.uint32(5) + g + value
                case "tally":
                    self.counter += op.value
                    o[0] = self.counter
                case "block":
                    o[:] = WORDS * 7 + 1
                case "twice":
                    o += np.uint32(1)
                    g += np.uint32(1)
                case "pointer":
                    address = BUFFERS[op.given] + 4 * op.at
                    self.memory[op.out][op.at : op.at + 2] = address & 0xFFFFFFFF, address >> 32
                    g += np.uint32(9)
                case "move":
                    o[:] = g
                case "fill":
                    o[:] = value
                case "write":
                    o.view(np.uint8)[:] = op.value
                case "free":
                    self.memory[op.out][:] = 0


class Streams:
    """Which streams of a rank have used which buffers since a rank waited for them."""

    def __init__(self) -> None:
        self.wrote: dict[int, int] = {}
        self.read: dict[int, set[int]] = defaultdict(set)

    def before(self, op: Op) -> set[int]:
        """Those that this one has to wait for."""
        streams = {self.wrote[each] for each in op.reads | op.writes if each in self.wrote}
        streams |= {stream for each in op.writes for stream in self.read[each]}
        for each in op.reads:
            self.read[each].add(op.stream)
        for each in op.writes:
            self.wrote[each] = op.stream
            self.read[each] = {op.stream}
        return streams - {op.stream}

    def done(self, stream: int) -> None:
        self.wrote = {each: by for each, by in self.wrote.items() if by != stream}
        for by in self.read.values():
            by.discard(stream)


Wait = Callable[[], bool]
Action = Callable[[], Wait | None]  # it posts something, after which the rank waits, or does not


@dataclass
class Rank:
    """One of those that a program runs on. `actions`: what it is still to post."""

    client: Computing
    alone: Alone = field(default_factory=Alone)
    streams: Streams = field(default_factory=Streams)
    actions: list[Action] = field(default_factory=list)
    waits: Wait | None = None
    ended: bool = False
    launches: int = 0

    def load(self) -> None:
        for address, size in ALLOCATIONS[1:]:
            self.client.alloc(address, size)
        self.client.load([ALLOCATIONS[0][0]], ALLOCATIONS[0][1])
        for number, stream in enumerate(STREAMS):
            if number:
                body = struct.pack("<QIi", stream, number - 1, 0)
                self.client.post(STREAM_CREATE, body)
            self.client.post(EVENT_CREATE, struct.pack("<QII", EVENTS + number, 2, 0))

    def plan(self, op: Op) -> None:
        if op.kind != "reduce":
            self.alone.do(op)
        for other in sorted(self.streams.before(op)):
            self.actions.append(partial(self.order, other, op.stream))
        expected = self.alone.memory[op.out].tolist()
        self.actions.append(partial(self.post, op, expected))
        if op.kind in ("wait", "read"):
            self.streams.done(op.stream)
        if op.kind in ("sync", "free"):
            self.streams = Streams()

    def order(self, first: int, then: int) -> None:
        event = EVENTS + first
        self.client.post(EVENT_RECORD, struct.pack("<QQ", event, STREAMS[first]))
        self.client.post(STREAM_WAIT, struct.pack("<QQ", event, STREAMS[then]))

    def post(self, op: Op, expected: list[int]) -> Wait | None:
        client, stream = self.client, STREAMS[op.stream]
        out, given = (BUFFERS[each] + 4 * op.at for each in (op.out, op.given))
        match op.kind:
            case "move":
                client.move(out, given, op.count, stream)
            case "fill":
                client.fill(out, op.value, 4, op.count, stream)
            case "write":
                client.write(out, bytes([op.value] * 4 * op.count), stream)
            case "reduce":
                client.collective(ALLREDUCE, out, out, op.count, stream)
            case "sync":
                client.begin(DEVICE_SYNC)
                return self.answered
            case "wait":
                client.begin(STREAM_SYNC, struct.pack("<Q", stream))
                return self.answered
            case "read":
                places = (AT_BULK, AT_ADDRESS)
                client.begin(
                    COPY, client.copy(0, BUFFERS[op.out], 4 * WORDS, places=places, stream=stream)
                )
                return partial(self.has_read, op, expected)
            case "free":
                seq = client.free(ALLOCATIONS[op.out][0])
                return partial(self.renewed, op.out, seq)
            case _:
                self.launches += 1
                client.launch(op.kind, out, given, op.count, op.value, stream=stream)
        return None

    def answered(self) -> bool:
        if not self.client.answered():
            return False
        error = self.client.finish()
        assert error == 0, f"rank {self.client.rank}: error {error}"
        return True

    def has_read(self, op: Op, expected: list[int]) -> bool:
        if not self.answered():
            return False
        words = list(struct.unpack_from(f"<{WORDS}I", self.client.map, OFF_BULK))
        assert words == expected, f"rank {self.client.rank} reads buffer {op.out}"
        return True

    def renewed(self, number: int, seq: int) -> bool:
        if self.client.u64(RETIRED) < seq:
            return False
        self.client.alloc(*ALLOCATIONS[number])
        if number in BESIDE:  # whose chunk stays is not zeros anew
            self.client.fill(BUFFERS[number], 0, 4, WORDS)
        return True

    def check(self) -> None:
        for number, at in enumerate(BUFFERS):
            found = list(struct.unpack(f"<{WORDS}I", self.client.read(at, 4 * WORDS)))
            expected = self.alone.memory[number].tolist()
            assert found == expected, f"rank {self.client.rank}, buffer {number}"
        assert self.client.read(VARIABLES, 4) == struct.pack("<I", self.alone.counter)


class Driver:
    """Posts what the ranks do, in the program's order, and waits for what they wait for."""

    def __init__(
        self,
        here: Devices,
        ranks: list[Rank],
        order: list[tuple[int, int]],
        there: Devices | None = None,
    ):
        """With `there`, all ranks go there at a cut, and at the next one back."""
        self.here, self.there, self.ranks, self.order = here, there, ranks, order
        self.job = 1
        self.turns = self.saves = 0
        self.cutting = ""

    def run(self, steps: list[Step]) -> None:
        for step in steps:
            if step.op.kind in ("cut", "save"):
                self.post_all()
                self.cutting = step.op.kind
                self.here.natives[0].barrier(self.job, True)
                continue
            for number, rank in enumerate(self.ranks):
                op = step.of(number)
                if op and not rank.ended:
                    rank.plan(op)
            if step.op.kind == "reduce":
                self.reduce()
        self.post_all()

    def reduce(self) -> None:
        with np.errstate(over="ignore"):
            total = sum(
                (each.alone.memory[GRADIENT] for each in self.ranks), np.zeros(WORDS, np.uint32)
            )
        for rank in self.ranks:
            rank.alone.memory[GRADIENT][:] = total

    def post_all(self) -> None:
        """Runs until all actions are posted and each waiting rank has its reply."""
        deadline = time.monotonic() + scaled(20)
        while any(rank.actions or rank.waits for rank in self.ranks):
            free = [rank for rank in self.ranks if rank.actions and not rank.waits]
            if free:
                which, most = self.order[self.turns % len(self.order)]
                self.turns += 1
                self.burst(free[which % len(free)], most)
                deadline = time.monotonic() + scaled(20)
            if self.cutting:
                self.cut()
            for rank in self.ranks:
                if rank.waits and rank.waits():
                    rank.waits = None
            if not free:
                time.sleep(0.0001)
            assert time.monotonic() < deadline, self.here.natives[0].debug_text()
        if self.cutting:
            for native in self.here.natives:
                settle(native, self.job, "cut")
            self.cut()

    def burst(self, rank: Rank, most: int) -> None:
        while rank.actions and most and not rank.waits:
            rank.waits = rank.actions.pop(0)()
            most -= 1

    def cut(self) -> None:
        """The job continues, if it stands."""
        for native in self.here.natives:
            native.hurry(self.job)
            status = native.job_status(self.job)
            if not status or status["state"] != "cut":
                return
        saves, self.cutting = self.cutting == "save", ""
        clients = [rank.client for rank in self.ranks]
        if self.there:
            self.move(self.there, clients, saves)
            return
        if saves:
            self.save()
        self.here.continue_running(self.job, clients)

    def move(self, there: Devices, clients: list[Computing], looks: bool) -> None:
        for native in self.here.natives:
            assert native.job_leave(self.job)
            settle(native, self.job, "saved")
            native.job_close(self.job)
        if looks:
            self.compare()
        self.here, self.there = there, self.here
        self.job += 1
        self.here.place(self.job, clients, [0] * len(clients))
        for client in clients:
            client.ring()

    def save(self) -> None:
        assert all(native.job_save(self.job) for native in self.here.natives)
        assert {event.text for event in self.here.saved(self.saves)} == {""}
        self.compare()
        self.saves += 1

    def compare(self) -> None:
        """Checks that content with equal versions is equal in the ranks' images."""
        with ExitStack() as stack:
            check_equal_versions(images_of((each.client for each in self.ranks), stack))

    def end(self, number: int, how: int) -> None:
        rank = self.ranks[number % len(self.ranks)]
        rank.ended = True
        if how == FAULT:  # it reads beyond what there is
            end = ALLOCATIONS[-1][0] + ALLOCATIONS[-1][1]
            rank.client.launch("update", BUFFERS[0], end - 64, WORDS, 1)
            rank.client.begin(DEVICE_SYNC)
        else:
            self.here.natives[0].rank_exited(self.job, rank.client.rank, how)


@contextmanager
def placed(
    kernels: Loader, program: Program, folded: bool, moved: bool, measured_every: int, **how: bool
) -> Iterator[tuple[Devices, Driver]]:
    """All devices, and who drives the ranks."""
    count = program.ranks
    ranks = [Rank(Computing(number, count, VARIABLES)) for number in range(count)]
    clients = [rank.client for rank in ranks]
    try:
        with devices(
            kernels,
            1 + moved if folded else count,
            program.chunks,
            validate=measured_every or 1,
            opaque=measured_every > 0,
            **how,
        ) as every:
            here, there = every, None
            if moved:
                here, there = (
                    Devices([native], [events])
                    for native, events in zip(every.natives, every.told, strict=True)
                )
            driver = Driver(here, ranks, program.order, there)
            here.place(1, clients, [0] * count if folded else list(range(count)))
            try:
                for rank in ranks:
                    rank.load()
                assert [client.finish() for client in clients] == [0] * count
                yield every, driver
            finally:
                driver.here.leave(driver.job)
                assert not any(every.alarms()), every.alarms()
    finally:
        for client in clients:
            client.close()


def check(
    kernels: Loader,
    program: Program,
    folded: bool = True,
    measured_every: int = 0,
    moved: bool = False,
    **how: bool,
) -> int:
    """Runs the program and compares what each rank reads and leaves with a run of the rank alone.
    Returns how many operations ran once for several ranks. `measured_every`: the interval in
    launches at which kernels are measured, which are then all opaque. `moved`: all ranks go to
    another device at each cut. `how`: features that the devices lack."""
    with placed(kernels, program, folded, moved, measured_every, **how) as (every, driver):
        driver.run(BEGINNING + program.steps)
        if program.ends and folded:
            if any(step.op.kind == "reduce" for step in program.steps):
                driver.run([Step(Op("sync"))])  # no rank calls a collective with an exited one
            driver.end(*program.ends)
            driver.run(program.tail)
        for rank in driver.ranks:
            if not rank.ended:
                assert rank.client.call(DEVICE_SYNC) == 0
                rank.check()
        status = [native.status() for native in every.natives]
        if not program.ends or not folded:
            launches = sum(each.launches for each in driver.ranks)
            assert sum(each["kernels"] for each in status) == launches
        return sum(each["squashed"] for each in status)

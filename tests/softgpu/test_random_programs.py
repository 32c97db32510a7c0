"""Random kernels with branches, loops, barriers and shuffles, against an interpreter on NumPy.

They test how kernels are cut into segments: values that must be kept at a cut, values that are
computed again, diverged threads that meet again, and conclusions about threads that have not
diverged. Therefore some variables begin as the same value for all threads, or as one that grows
from thread to thread."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from rankfold.proxy.hal.soft.modules import Loader
from softgpu.harness import Device, loader, store_in_parts

THREADS = 96
VARIABLES = 6
TABLE = 640  # words that Sweep goes over
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Assign:
    op: str
    d: int
    a: int
    b: int


@dataclass(frozen=True)
class If:
    """Threads whose variable has the bit set go one way, the others the other way."""

    variable: int
    bit: int
    then: tuple[Any, ...]
    other: tuple[Any, ...]


@dataclass(frozen=True)
class Loop:
    """As many times as the thread's variable says (0 to 3), or `count` times for all."""

    variable: int
    count: int | None
    body: tuple[Any, ...]


@dataclass(frozen=True)
class Sweep:
    """Over every `threads`-th word of a table from the thread's own on, up to a bound: `bound` for
    all, or as the thread's variable says. A word is added to d and becomes d; e counts the rounds
    and f is where it ended."""

    variable: int
    bound: int | None
    d: int
    e: int
    f: int


@dataclass(frozen=True)
class Leave:
    """Threads whose variable has these bits set are done."""

    variable: int
    bits: int


@dataclass(frozen=True)
class Shuffle:
    kind: str
    d: int
    a: int
    b: int


@dataclass(frozen=True)
class Exchange:
    """Through shared memory, with a barrier before and behind."""

    d: int
    a: int
    step: int


@dataclass(frozen=True)
class Parted:
    """One shuffle, at two places: threads whose variable has the bit set do it at the first."""

    variable: int
    bit: int
    kind: str
    then: tuple[int, int, int]  # d, a, b of a Shuffle
    other: tuple[int, int, int]


@dataclass(frozen=True)
class Pass:
    """Through shared memory within the warp, with nothing before, between and behind."""

    d: int
    a: int
    step: int
    volatile: bool


@dataclass(frozen=True)
class Lanes:
    """The first lanes of each warp shuffle among themselves."""

    count: int
    body: tuple[Any, ...]


def _some(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(inner, max_size=3).map(tuple)


variable = st.integers(0, VARIABLES - 1)
OPS = ["add", "sub", "mul", "xor", "shr", "tid", "set"]
assign = st.builds(Assign, st.sampled_from(OPS), variable, variable, variable)
sweep = st.builds(
    Sweep, variable, st.one_of(st.none(), st.integers(0, 500)), variable, variable, variable
)
divergent = st.recursive(
    st.one_of(assign, sweep),
    lambda inner: st.one_of(
        st.builds(If, variable, st.integers(0, 4), _some(inner), _some(inner)),
        st.builds(Loop, variable, st.none(), _some(inner)),
    ),
    max_leaves=6,
)
shuffle = st.builds(
    Shuffle, st.sampled_from(["bfly", "idx", "up", "ballot"]), variable, variable, variable
)
operands = st.tuples(variable, variable, variable)
parted = st.builds(
    Parted, variable, st.integers(0, 4), st.sampled_from(["bfly", "idx", "up"]), operands, operands
)
passing = st.builds(Pass, variable, variable, st.integers(1, 31), st.booleans())
together = st.recursive(
    st.one_of(
        divergent,
        shuffle,
        parted,
        passing,
        st.builds(Exchange, variable, variable, st.integers(1, 63)),
    ),
    lambda inner: st.builds(Loop, variable, st.integers(1, 3), _some(inner)),
    max_leaves=6,
)
lanes = st.builds(
    Lanes,
    st.integers(1, 31),
    st.lists(st.one_of(shuffle, assign), min_size=1, max_size=3).map(tuple),
)
leave = st.builds(Leave, variable, st.integers(3, 31))
programs = st.tuples(
    st.lists(st.one_of(together, lanes), min_size=1, max_size=6),
    st.lists(
        st.one_of(divergent, leave, st.builds(Exchange, variable, variable, st.just(0))), max_size=4
    ),
).map(lambda parts: (*parts[0], *parts[1]))


# ---- to PTX --------------------------------------------------------------------------------------


class Writer:
    def __init__(self, threads: int):
        self.threads = threads
        self.lines: list[str] = []
        self.numbers = itertools.count()
        self.loops = 0

    def block(self, body: tuple[Any, ...], members: int) -> None:
        for statement in body:
            getattr(self, type(statement).__name__.lower())(statement, members)

    def assign(self, s: Assign, members: int) -> None:
        if s.op == "tid":
            self.lines.append(f"add.u32 %r{s.d}, %r{s.a}, %me;")
        elif s.op == "set":
            self.lines.append(f"mov.u32 %r{s.d}, {s.a + 8 * s.b};")
        elif s.op == "shr":
            self.lines.append(f"and.b32 %x, %r{s.b}, 15; shr.u32 %r{s.d}, %r{s.a}, %x;")
        else:
            op = {"xor": "xor.b32", "mul": "mul.lo.u32"}.get(s.op, s.op + ".u32")
            self.lines.append(f"{op} %r{s.d}, %r{s.a}, %r{s.b};")

    def if_(self, s: If, members: int) -> None:
        n = next(self.numbers)
        self.lines.append(
            f"and.b32 %x, %r{s.variable}, {1 << s.bit};setp.eq.u32 %p, %x, 0; @%p bra ELSE{n};"
        )
        self.block(s.then, members)
        self.lines.append(f"bra END{n}; ELSE{n}:")
        self.block(s.other, members)
        self.lines.append(f"END{n}:")

    def loop(self, s: Loop, members: int) -> None:
        n = next(self.numbers)
        count = (
            f"and.b32 %c{n}, %r{s.variable}, 3;"
            if s.count is None
            else f"mov.u32 %c{n}, {s.count};"
        )
        self.lines.append(
            f".reg .b32 %c{n}; {count} LOOP{n}: setp.eq.u32 %p, %c{n}, 0; @%p bra OUT{n};"
        )
        self.block(s.body, members)
        self.lines.append(f"sub.u32 %c{n}, %c{n}, 1; bra LOOP{n}; OUT{n}:")

    def sweep(self, s: Sweep, members: int) -> None:
        n = next(self.numbers)
        bound = (
            f"and.b32 %b{n}, %r{s.variable}, 511;"
            if s.bound is None
            else f"mov.u32 %b{n}, {s.bound};"
        )
        self.lines.append(
            f".reg .b32 %i{n}, %b{n}, %w{n}; .reg .b64 %o{n}, %a{n}; {bound} mov.u32 %i{n}, %me;"
            f"setp.ge.u32 %p, %i{n}, %b{n}; @%p bra SWEPT{n};"
            f"SWEEP{n}: mul.wide.u32 %o{n}, %i{n}, 4; add.u64 %a{n}, %table, %o{n};"
            f"ld.global.u32 %w{n}, [%a{n}]; add.u32 %r{s.d}, %r{s.d}, %w{n};"
            f"st.global.u32 [%a{n}], %r{s.d}; add.u32 %r{s.e}, %r{s.e}, 1;"
            f"add.u32 %i{n}, %i{n}, {self.threads};"
            f"setp.lt.u32 %p, %i{n}, %b{n}; @%p bra SWEEP{n};"
            f"SWEPT{n}: mov.u32 %r{s.f}, %i{n};"
        )

    def leave(self, s: Leave, members: int) -> None:
        self.lines.append(
            f"and.b32 %x, %r{s.variable}, {s.bits}; setp.eq.u32 %p, %x, {s.bits}; @%p bra DONE;"
        )

    def shuffle(self, s: Shuffle, members: int) -> None:
        if s.kind == "ballot":
            self.lines.append(
                f"and.b32 %x, %r{s.a}, 1; setp.ne.u32 %p, %x, 0;"
                f"vote.sync.ballot.b32 %r{s.d}, %p, {members};"
            )
        elif s.kind == "idx":
            self.lines.append(f"shfl.sync.idx.b32 %r{s.d}|%q, %r{s.a}, %r{s.b}, 31, {members};")
        else:
            clamp = 0 if s.kind == "up" else 31
            self.lines.append(
                f"shfl.sync.{s.kind}.b32 %r{s.d}|%q, %r{s.a}, {s.b + 1}, {clamp}, {members};"
            )
            self.lines.append(f"@!%q add.u32 %r{s.d}, %r{s.d}, 77;")

    def parted(self, s: Parted, members: int) -> None:
        ways = ((Shuffle(s.kind, *way),) for way in (s.then, s.other))
        self.if_(If(s.variable, s.bit, *ways), members)

    def pass_(self, s: Pass, members: int) -> None:
        how = "volatile." * s.volatile + "shared.u32"
        self.lines.append(
            f"shl.b32 %x, %me, 2; st.{how} [%x+{4 * self.threads}], %r{s.a};"
            f"and.b32 %y, %me, -32; add.u32 %x, %me, {s.step}; and.b32 %x, %x, 31;"
            f"add.u32 %x, %x, %y; shl.b32 %y, %x, 2; ld.{how} %r{s.d}, [%y+{4 * self.threads}];"
        )

    def exchange(self, s: Exchange, members: int) -> None:
        self.lines.append(
            f"bar.sync 0; shl.b32 %x, %me, 2; st.shared.u32 [%x], %r{s.a}; bar.sync 0;"
            f"add.u32 %x, %me, {s.step}; rem.u32 %x, %x, {self.threads}; shl.b32 %x, %x, 2;"
            f"ld.shared.u32 %r{s.d}, [%x];"
        )

    def lanes(self, s: Lanes, members: int) -> None:
        n = next(self.numbers)
        self.lines.append(f"and.b32 %x, %me, 31; setp.ge.u32 %p, %x, {s.count}; @%p bra LANES{n};")
        self.block(s.body, (1 << s.count) - 1)
        self.lines.append(f"LANES{n}:")


Writer.if_.__name__ = "if"
setattr(Writer, "if", Writer.if_)
setattr(Writer, "pass", Writer.pass_)


def ptx_of(program: tuple[Any, ...], threads: int) -> str:
    writer = Writer(threads)
    writer.block(program, 0xFFFFFFFF)
    body = "\n".join(writer.lines)
    loads = "".join(f"ld.global.u32 %r{v}, [%rd+{4 * threads * v}];" for v in range(3))
    loads += f"ld.global.u32 %r3, [%table+{4 * TABLE}];"
    loads += "mov.u32 %r4, %me; mad.lo.u32 %r5, %r3, 5, 1; mad.lo.u32 %r5, %me, 3, %r5;"
    stores = "".join(f"st.global.u32 [%rd+{4 * threads * v}], %r{v};" for v in range(VARIABLES))
    return f""".version 8.0
.target sm_80
.address_size 64
.visible .entry program(.param .u64 data)
{{
.reg .b32 %r<{VARIABLES}>; .reg .b32 %x; .reg .b32 %y; .reg .b32 %me; .reg .b64 %rd; .reg .b64 %o;
.reg .pred %p; .reg .pred %q; .reg .b64 %all; .reg .b64 %table;
.shared .align 4 .b8 memory[{8 * threads}];
mov.u32 %me, %tid.x; ld.param.u64 %rd, [data]; mul.wide.u32 %o, %me, 4; mov.u64 %all, %rd;
add.u64 %rd, %rd, %o; add.u64 %table, %all, {4 * threads * VARIABLES};
{loads}
{body}
DONE:
{stores}
ret;
}}
"""


# ---- the interpreter --------------------------------------------------------------------------


class Interpreter:
    """All threads in step; `on` are those that take part."""

    def __init__(self, r: Array, table: Array):
        self.r, self.table = r, table
        self.tid = np.arange(r.shape[1], dtype=np.uint32)
        self.gone = np.zeros(r.shape[1], bool)
        self.memory = np.zeros(r.shape[1], np.uint32)
        self.passed = np.zeros(r.shape[1], np.uint32)

    def block(self, body: tuple[Any, ...], on: Array) -> None:
        for statement in body:
            getattr(self, type(statement).__name__.lower())(statement, on & ~self.gone)

    def assign(self, s: Assign, on: Array) -> None:
        a, b = self.r[s.a], self.r[s.b]
        value = {
            "add": a + b,
            "sub": a - b,
            "mul": a * b,
            "xor": a ^ b,
            "shr": a >> (b & 15),
            "tid": a + self.tid,
            "set": np.full(len(on), s.a + 8 * s.b, np.uint32),
        }
        self.r[s.d] = np.where(on, value[s.op], self.r[s.d])

    def if_(self, s: If, on: Array) -> None:
        true = (self.r[s.variable] >> s.bit & 1) != 0
        self.block(s.then, on & true)
        self.block(s.other, on & ~true)

    def loop(self, s: Loop, on: Array) -> None:
        count = self.r[s.variable] & 3 if s.count is None else np.full(len(on), s.count)
        for i in range(3):
            self.block(s.body, on & (count > i))

    def sweep(self, s: Sweep, on: Array) -> None:
        at = self.tid.copy()
        bound = self.r[s.variable] & 511 if s.bound is None else np.full(len(on), s.bound)
        while (now := on & (at < bound)).any():
            value = self.r[s.d] + self.table[at % TABLE]
            self.r[s.d] = np.where(now, value, self.r[s.d])
            self.table[at[now]] = self.r[s.d][now]
            self.r[s.e] += now
            at += np.where(now, len(on), 0).astype(np.uint32)
        self.r[s.f] = np.where(on, at, self.r[s.f])

    def leave(self, s: Leave, on: Array) -> None:
        self.gone |= on & ((self.r[s.variable] & s.bits) == s.bits)

    def shuffle(self, s: Shuffle, on: Array) -> None:
        a, lane = self.r[s.a].copy(), self.tid % 32
        if s.kind == "ballot":
            bits = np.where(on & ((a & 1) != 0), np.uint32(1) << lane, 0).astype(np.uint32)
            value = np.bitwise_or.reduceat(bits, np.arange(0, len(bits), 32)).repeat(32)
            self.r[s.d] = np.where(on, value, self.r[s.d])
            return
        source, good = self.source(s)
        value = np.where(on[source], a[source], 0) + np.where(good, 0, 77).astype(np.uint32)
        self.r[s.d] = np.where(on, value, self.r[s.d])

    def source(self, s: Shuffle) -> tuple[Array, Array]:
        """The thread that each reads of, and whether it does not for want of one read its own."""
        lane, good = self.tid % 32, np.ones(len(self.tid), bool)
        if s.kind == "idx":
            source = self.r[s.b] & 31
        elif s.kind == "up":
            good = lane >= s.b + 1
            source = np.where(good, lane - (s.b + 1), lane)
        else:
            source = lane ^ (s.b + 1)
        return (self.tid - lane + source).astype(int), good

    def parted(self, s: Parted, on: Array) -> None:
        true = (self.r[s.variable] >> s.bit & 1) != 0
        ways = [(on & true, Shuffle(s.kind, *s.then)), (on & ~true, Shuffle(s.kind, *s.other))]
        given = np.where(true, self.r[s.then[1]], self.r[s.other[1]])
        found = [(way.d, now, *self.source(way)) for now, way in ways]
        for d, now, source, good in found:
            value = np.where(on[source], given[source], 0) + np.where(good, 0, 77).astype(np.uint32)
            self.r[d] = np.where(now, value, self.r[d])

    def pass_(self, s: Pass, on: Array) -> None:
        self.passed = np.where(on, self.r[s.a], self.passed)
        other = self.tid - self.tid % 32 + (self.tid + s.step) % 32
        self.r[s.d] = np.where(on, self.passed[other], self.r[s.d])

    def exchange(self, s: Exchange, on: Array) -> None:
        self.memory = np.where(on, self.r[s.a], self.memory)
        value = self.memory[(self.tid + s.step) % len(on)]
        self.r[s.d] = np.where(on, value, self.r[s.d])

    def lanes(self, s: Lanes, on: Array) -> None:
        self.block(s.body, on & (self.tid % 32 < s.count))


setattr(Interpreter, "if", Interpreter.if_)
setattr(Interpreter, "pass", Interpreter.pass_)


def check(kernels: Loader, program: tuple[Any, ...], seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 2**32, (VARIABLES, THREADS), dtype=np.uint32)
    table = rng.integers(0, 2**32, TABLE, dtype=np.uint32)
    values[3] = values[3, 0]
    values[4] = np.arange(THREADS)
    values[5] = 3 * values[4] + 5 * values[3] + 1
    module = kernels.module(ptx_of(program, THREADS).encode(), 1)
    with Device() as device:
        space = device.space()
        at = space.put(np.concatenate([values.ravel(), table, values[3, :1]]))
        space.launch(kernels.function(module, "program"), 1, THREADS, at)
        space.check()
        got = space.read(at, values.size + TABLE, np.uint32)
    interpreter = Interpreter(values.copy(), table)
    interpreter.block(program, np.ones(THREADS, bool))
    np.testing.assert_array_equal(got[: values.size].reshape(values.shape), interpreter.r)
    np.testing.assert_array_equal(got[values.size :], interpreter.table)


@pytest.fixture(scope="module")
def kernels() -> Iterator[Loader]:
    """A loader of its own: these kernels are not worth keeping."""
    with (
        tempfile.TemporaryDirectory(prefix="rf-") as folder,
        loader(Path(folder) / "cache", Path(folder) / "c.sock") as made,
    ):
        yield made


COMMON: dict[str, Any] = {"suppress_health_check": list(HealthCheck), "deadline": None}


@settings(max_examples=25, **COMMON)
@given(program=programs, seed=st.integers(0, 9))
def test_random_programs(kernels: Loader, program: tuple[Any, ...], seed: int) -> None:
    check(kernels, program, seed)


@settings(max_examples=15, **COMMON)
@given(program=programs, seed=st.integers(0, 9))
def test_random_programs_in_parts(kernels: Loader, program: tuple[Any, ...], seed: int) -> None:
    divided = store_in_parts(kernels, ptx_of(program, THREADS).encode(), "program")
    assume(divided > 1)  # one segment is not divided
    check(kernels, program, seed)


@pytest.mark.slow
@pytest.mark.timeout(900)
@settings(max_examples=1000, **COMMON)
@given(program=programs, seed=st.integers(0, 9))
def test_many_random_programs(kernels: Loader, program: tuple[Any, ...], seed: int) -> None:
    check(kernels, program, seed)

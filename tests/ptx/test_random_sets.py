"""Random kernels on the software GPU, whose memory can be reached only where their sets say so.

Each pointer has pages of its own. A closed kernel cannot read or write memory outside of its sets
(page protection). Memory that it only writes holds other bytes in a second run; memory that it only
reads, through an address whose value does not matter, is elsewhere in a third: everything that it
writes must be the same. Memory is full of pointers to the same pages, so that a kernel that follows
them strays, and would be caught if it was called closed."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import random
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from softgpu.harness import CHUNK, Device, Space, loader

from rankfold.proxy.hal.soft.modules import Loader
from rankfold.proxy.ptx.arithmetic import Use
from rankfold.proxy.ptx.info import FunctionInfo, ModuleInfo
from rankfold.proxy.ptx.sets import Sets

PAGE = mmap.PAGESIZE
BUFFER = 4 * PAGE
MIDDLE = BUFFER // 2  # where pointers point to
DIRECT, PACKED = 3, 4  # pointers that are parameters, and in a structure
POINTERS = DIRECT + PACKED
N, S = 8 * DIRECT, 8 * DIRECT + 8  # offsets of the number and the structure
THREADS = 32
REGISTERS = 5

HEAD = """.version 8.6
.target sm_80
.address_size 64
.global .align 16 .b8 table[BYTES];
.func (.param .b64 out) further(.param .b64 at, .param .b64 by) {
    .reg .b64 %x<3>;
    ld.param.u64 %x0, [at]; ld.param.u64 %x1, [by]; add.u64 %x2, %x0, %x1;
    st.param.u64 [out], %x2; ret;
}
.visible .entry kernel(.param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u32 n,
                       .param .align 8 .b8 s[32]) {
    .reg .b64 %a<COUNT>, %b<SCRATCH>; .reg .b32 %i<COUNT>, %j<SCRATCH>; .reg .pred %c, %l;
    .shared .align 8 .b8 block[SHARED];
    .local .align 8 .b8 frame[64];
    mov.u32 %j8, %tid.x; and.b32 %j7, %j8, 1; setp.eq.u32 %c, %j7, 0;
    mov.u32 %j6, 0;
"""

# A line of code: $a, $b are registers that hold pointers, $i, $k numbers, # a small number.
MOVES = [
    "add.u64 $a, $a, #;",
    "sub.u64 $a, $a, #;",
    "mov.b64 $a, $b;",
    "selp.b64 $a, $a, $b, %c;",
    "@%c mov.b64 $a, $b;",
    "or.b64 $a, $a, 4;",
    "and.b64 $a, $a, -16;",
    "max.u64 $a, $a, $b;",
    "and.b32 %j0, $i, 15; mul.wide.u32 %b0, %j0, 4; add.s64 $a, $a, %b0;",
    "and.b32 %j0, $i, 15; mad.wide.s32 $a, %j0, 4, $b;",
    "sub.s64 %b0, $b, $a; add.s64 $a, $a, %b0;",
    "mov.b64 {%j0, %j1}, $a; mov.b64 $a, {%j0, %j1};",
    "mov.b64 {%j0, %j1}, $a; shfl.sync.bfly.b32 %j2, %j0, 1, 31, -1;"
    " shfl.sync.bfly.b32 %j3, %j1, 1, 31, -1; mov.b64 $a, {%j2, %j3};",
    "cvt.u32.u64 %j0, $a; shr.u64 %b0, $a, 32; cvt.u32.u64 %j1, %b0; mov.b64 $a, {%j0, %j1};",
    "ld.param.u64 $a, [s+~];",
    "ld.param.v2.u64 {$a, $b}, [s+16];",
    "ld.param.u32 %j0, [s+8]; ld.param.u32 %j1, [s+12]; mov.b64 $a, {%j0, %j1};",
    "ld.param.u32 %b0, [s+8]; ld.param.u32 %b1, [s+12]; bfi.b64 $a, %b1, %b0, 32, 32;",
    "and.b32 %j0, $i, 3; mov.b64 %b0, s; mad.wide.u32 %b1, %j0, 8, %b0; ld.param.u64 $a, [%b1];",
    "mov.b64 %b0, s; cvta.param.u64 %b1, %b0; ld.u64 $a, [%b1+~];",
    "mov.u64 $a, table; add.u64 $a, $a, 8192;",
    "cvta.to.global.u64 $a, $b;",
    "mov.u32 %j0, block; mad.lo.u32 %j0, %j8, 8, %j0; st.shared.u64 [%j0], $a;"
    " ld.shared.u64 $b, [%j0];",
    "mov.u64 %b0, block; cvta.shared.u64 %b1, %b0; mad.wide.u32 %b1, %j8, 8, %b1;"
    " st.u64 [%b1], $a; atom.exch.b64 $b, [%b1], $b;",
    "st.local.u64 [frame], $a; st.local.u64 [frame+8], $b; and.b32 %j0, $i, 1;"
    " mov.u64 %b0, frame; mad.wide.u32 %b0, %j0, 8, %b0; ld.local.u64 $a, [%b0];",
    "{ .param .b64 x; .param .b64 y; .param .b64 z; st.param.b64 [x], $b; st.param.b64 [y], #;"
    " call (z), further, (x, y); ld.param.b64 $a, [z]; }",
]
TRICKS = [  # after which a pointer may be used only in an open kernel
    "and.b64 %b0, $a, -16; ld.global.u64 $a, [%b0];",
    "and.b64 %b0, $a, -16; ld.global.v2.u32 {%j0, %j1}, [%b0]; mov.b64 $a, {%j0, %j1};",
    "and.b64 %b0, $a, -16; ld.global.u32 %j0, [%b0]; ld.global.u32 %b1, [%b0+4]; cvt.u64.u32 %b2,"
    " %j0; shl.b64 %b1, %b1, 32; or.b64 $a, %b1, %b2;",
    "ld.global.u64 $a, [table+2048];",
    "and.b64 %b0, $b, -16; atom.global.exch.b64 $a, [%b0], $a;",
    "xor.b64 %b0, $a, $b; xor.b64 $a, %b0, $b;",
    "shl.b64 %b0, $a, 2; shr.u64 $a, %b0, 2;",
    "st.shared.u64 [block], $a; ld.shared.v2.u32 {%j0, %j1}, [block]; mov.b64 $a, {%j0, %j1};",
    "prmt.b32 %j0, $i, 0, 0; mul.wide.u32 %b0, %j0, 0; not.b64 %b1, $a; not.b64 $a, %b1;",
]
ACCESSES = [
    "ld.global.u32 $i, [$a+#];",
    "ld.u32 $i, [$a];",
    "ld.global.nc.u32 $i, [$a];",
    "and.b64 %b0, $a, -16; ld.global.v4.u32 {$i, $k, %j0, %j1}, [%b0];",
    "st.global.u32 [$a+#], $i;",
    "st.u32 [$a], $i;",
    "@%c st.global.u32 [$a], $i;",
    "and.b64 %b0, $a, -16; st.global.v2.u32 [%b0], {$i, $k};",
    "atom.global.add.u32 $i, [$a], 3;",
    "red.add.u32 [$a], $i;",
    "atom.global.exch.b32 $i, [$a], 5;",
    "ld.global.u32 $i, [table+2048];",
    "st.global.u32 [table+2064], $i;",
    "mov.u32 %j0, block; cp.async.ca.shared.global [%j0], [$a], 4; cp.async.wait_all;",
    "and.b64 %b0, $a, -16; st.global.u64 [%b0], $b;",  # a pointer is left behind
    "setp.lt.u64 %l, $a, $b; selp.b32 $i, 1, 2, %l;",
    "cvt.u32.u64 $i, $a;",
    "and.b64 %b0, $a, 15; cvt.u32.u64 $i, %b0;",
    "setp.ne.u64 %l, $a, 0; selp.b32 $i, 1, 2, %l;",
]
NUMBERS = ["add.u32 $i, $i, $k;", "mul.lo.u32 $i, $k, 5;", "xor.b32 $i, $i, %j8;"]
BLOCKS = [
    "{}",
    "{}",
    "{}",
    "@%c bra over$; {} over$:",
    "mov.u32 %j5, 0; again$: {} add.u32 %j5, %j5, 1; setp.lt.u32 %l, %j5, 2; @%l bra again$;",
]


def choice(lines: list[str]) -> st.SearchStrategy[str]:
    """With registers."""
    register = st.integers(0, REGISTERS - 1)
    return st.builds(
        lambda line, a, b, i, k, n: (
            line.replace("$a", f"%a{a}")
            .replace("$b", f"%a{b}")
            .replace("$i", f"%i{i}")
            .replace("$k", f"%i{k}")
            .replace("#", str(4 * n))
            .replace("~", str(8 * (n % PACKED)))
        ),
        st.sampled_from(lines),
        register,
        register,
        register,
        register,
        st.integers(0, 15),
    )


line = st.one_of(choice(MOVES), choice(MOVES), choice(ACCESSES), choice(ACCESSES), choice(NUMBERS))
block = st.tuples(st.sampled_from(BLOCKS), st.lists(line, min_size=1, max_size=4))
trick = st.tuples(st.just("{}"), choice(TRICKS).map(lambda text: [text]))
rarely = st.integers(1, 20).flatmap(lambda k: trick if k == 13 else block)
programs = st.lists(rarely, min_size=1, max_size=6)


def source(blocks: list[tuple[str, list[str]]]) -> str:
    count = 10 * (1 + sum(len(lines) for _, lines in blocks))
    sizes = {"BYTES": BUFFER, "COUNT": REGISTERS, "SHARED": 8 * THREADS, "SCRATCH": count}
    out = [re.sub("|".join(sizes), lambda m: str(sizes[m[0]]), HEAD)]
    fresh = itertools.count(1)
    for register in range(REGISTERS):
        where = f"p{register}" if register < DIRECT else f"s+{8 * (register - DIRECT)}"
        out.append(f"ld.param.u64 %a{register}, [{where}]; ld.param.u32 %i{register}, [n];")
    for number, (around, lines) in enumerate(blocks):
        # lanes of a warp must be together where they shuffle
        apart = "over" in around
        body = " ".join(
            re.sub(r"%([bj])([0-4])\b", rf"%\g<1>{next(fresh)}\2", text)  # as compilers do
            for text in lines
            if not (apart and "shfl" in text)
        )
        out.append(around.replace("$", str(number)).format(body) if "$" in around else body)
    return "\n".join(out) + "\nret; }\n"


class World:
    """Buffers, one for each pointer, and the module's variables behind them."""

    def __init__(self, device: Device, module: ModuleInfo, function: FunctionInfo):
        self.module, self.function = module, function
        self.space: Space = device.space()
        before = _mapped()
        self.base = self.space.alloc(CHUNK)
        (self.host,) = _mapped() - before
        r = random.Random(5)
        self.places = [self.base + BUFFER * k for k in range(2 * (POINTERS + 1))]
        targets = [at + MIDDLE for at in self.places[: POINTERS + 1]]
        words = BUFFER // 8
        self.content = [
            np.array([r.choice(targets) + 16 * r.randrange(8) for _ in range(words)], np.uint64)
            for _ in range(POINTERS + 1)
        ]

    def run(self, uses: dict[int, Use], other: set[int], moved: set[int]) -> list[Any]:
        """Runs the kernel and returns the content of all buffers. `uses`: the use of each buffer.
        `other`: buffers with other content. `moved`: buffers at another address."""
        at = [self.places[k + (POINTERS + 1 if k in moved else 0)] for k in range(POINTERS + 1)]
        self.protect(self.base, CHUNK, mmap.PROT_READ | mmap.PROT_WRITE)
        self.space.write(self.base, np.full(CHUNK // 8, 0x5555, np.uint64))
        for k, address in enumerate(at):
            self.space.write(address, ~self.content[k] if k in other else self.content[k])
        self.protect(self.base, CHUNK, 0)
        for k, address in enumerate(at):
            use = uses.get(k, Use(0))
            allowed = mmap.PROT_READ if use & (Use.READ | Use.WRITTEN) else 0
            self.protect(address, BUFFER, allowed | (mmap.PROT_WRITE if use & Use.WRITTEN else 0))
        pointers = [address + MIDDLE for address in at]
        packed = b"".join(p.to_bytes(8, "little") for p in pointers[DIRECT:POINTERS])
        self.space.launch(
            self.function, 1, THREADS, *pointers[:DIRECT], 7, packed, globals_addr=at[POINTERS]
        )
        self.protect(self.base, CHUNK, mmap.PROT_READ | mmap.PROT_WRITE)
        self.space.check()
        return [self.space.read(address, BUFFER, np.uint8) for address in at]

    def close(self) -> None:
        self.space.device.spaces.remove(self.space)
        self.space.hal.space_destroy(self.space.handle)
        for chunk in self.space.chunks:
            self.space.hal.chunk_destroy(self.space.device.handle, chunk)

    def protect(self, address: int, size: int, how: int) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        where = ctypes.c_void_p(self.host + address - self.base)
        assert libc.mprotect(where, ctypes.c_size_t(size), how) == 0, ctypes.get_errno()


def _mapped() -> set[int]:
    """The mappings of this process with chunks of software GPUs."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {int(x.split("-")[0], 16) for x in lines if "memfd:rankfold-device" in x}


def uses_of(sets: Sets) -> dict[int, Use]:
    """The uses of each buffer; those of all variables are one."""
    numbers = {8 * k: k for k in range(DIRECT)} | {S + 8 * k: DIRECT + k for k in range(PACKED)}
    uses = {numbers[at]: use for at, use in sets.words}
    for _, use in sets.variables:
        uses[POINTERS] = uses.get(POINTERS, Use(0)) | use
    return uses


def check(device: Device, module: ModuleInfo, function: FunctionInfo, sets: Sets) -> None:
    """A closed kernel keeps to what its sets say."""
    world = World(device, module, function)
    try:
        _compare(world, uses_of(sets))
    finally:
        world.close()


def _compare(world: World, uses: dict[int, Use]) -> None:
    first = world.run(uses, set(), set())
    unread = {k for k in range(POINTERS + 1) if not uses.get(k, Use(0)) & Use.READ}
    second = world.run(uses, unread, set())
    for k in range(POINTERS + 1):
        held = world.content[k].view(np.uint8)
        kept = (first[k] == held) & (second[k] == (~held if k in unread else held))
        assert ((first[k] == second[k]) | kept).all(), f"buffer {k} follows from one that is unread"
    free = {k for k, use in uses.items() if k < POINTERS and use & ~Use.LOW_BITS == Use.READ}
    third = world.run(uses, set(), free)
    for k in range(POINTERS + 1):
        assert (first[k] == third[k]).all(), f"buffer {k} depends on another one's address"


@pytest.fixture(scope="module")
def kernels() -> Iterator[Loader]:
    with (
        tempfile.TemporaryDirectory(prefix="rf-") as name,
        loader(Path(name) / "cache", Path(name) / "s") as made,
    ):
        yield made


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    with Device(memory=CHUNK * 4) as made:
        yield made


def one(device: Device, kernels: Loader, text: str) -> bool:
    """Checks one kernel; is it closed?"""
    module = kernels.module(text.encode(), 1)
    function = kernels.function(module, "kernel")
    if function.sets.closed:
        check(device, module, function, function.sets)
    return function.sets.closed


SEEN: list[bool] = []
COMMON: dict[str, Any] = {"suppress_health_check": list(HealthCheck), "deadline": None}


@settings(max_examples=40, **COMMON)
@given(blocks=programs)
def test_random_kernels(
    device: Device, kernels: Loader, blocks: list[tuple[str, list[str]]]
) -> None:
    closed = one(device, kernels, source(blocks))
    event("closed" if closed else "open")
    SEEN.append(closed)


def test_enough_of_them_are_closed() -> None:
    assert not SEEN or sum(SEEN) >= 0.5 * len(SEEN)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@settings(max_examples=1500, **COMMON)
@given(blocks=programs)
def test_many_random_kernels(
    device: Device, kernels: Loader, blocks: list[tuple[str, list[str]]]
) -> None:
    one(device, kernels, source(blocks))


KNOWN = """ld.global.u32 %j0, [%a0]; st.global.u32 [%a1], %j0; red.global.add.u32 [%a2], 1;
cvt.u32.u64 %j1, %a3; ld.global.u32 %j2, [%a3]; add.u32 %j1, %j1, %j2; st.global.u32 [%a1+4], %j1;
mov.u64 %b0, table; st.global.u32 [%b0+8192], 1;"""
R, W, V = Use.READ, Use.WRITTEN, Use.VALUE
WORDS = {0: R, 8: W, 16: R | W | Use.ATOMIC, S: R | V}


@pytest.mark.parametrize(
    ("words", "table", "says"),
    [
        (WORDS, W, ""),
        ({**WORDS, 0: Use(0)}, W, "700"),
        ({**WORDS, 8: Use(0)}, W, "700"),
        ({**WORDS, 8: R}, W, "700"),
        ({**WORDS, 16: R}, W, "700"),
        ({**WORDS, 16: W}, W, "buffer 2 follows from one that is unread"),
        ({**WORDS, S: R}, W, "buffer 1 depends on another one's address"),
        (WORDS, R, "700"),
    ],
)
def test_a_missing_access_is_detected(
    device: Device, kernels: Loader, words: dict[int, Use], table: Use, says: str
) -> None:
    module = kernels.module(source([("{}", [KNOWN])]).encode(), 1)
    function = kernels.function(module, "kernel")
    assert function.sets == Sets(tuple(WORDS.items()), (("table", W),))
    sets = Sets(tuple((at, use) for at, use in words.items() if use), (("table", table),))
    if not says:
        check(device, module, function, sets)
        return
    with pytest.raises(AssertionError, match=says):
        check(device, module, function, sets)

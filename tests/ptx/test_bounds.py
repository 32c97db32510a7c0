"""How far from its words a launch reads and writes: a case for each rule of proxy/ptx/bounds.py and
proxy/core/rank/bounds.c.

Parameters: `p` and `q` at 0 and 8 are pointers, `m` at 16 is a 64-bit number, `n`, `k` at 24 and 28
32-bit numbers. A launch has 2 blocks of 64 threads.
"""

from __future__ import annotations

import struct
from typing import Any

import pytest
from ptx.launches import DEV_BASE, Core, Reach, Span

from rankfold.proxy.ptx.module import parse_module
from rankfold.proxy.ptx.sets import Sets, sets_of

HEAD = """
.version 8.6
.target sm_90
.address_size 64
.global .align 8 .u32 list[4];
.visible .entry kernel(.param .u64 p, .param .u64 q, .param .u64 m, .param .u32 n, .param .u32 k) {
    .reg .b64 %a<20>, %p, %q, %m; .reg .b32 %i<20>, %n, %k, %x, %t; .reg .b16 %h<5>;
    .reg .pred %c, %d, %e;
    .reg .f32 %f<3>; .shared .align 8 .b8 block[256];
    ld.param.u64 %p, [p]; ld.param.u64 %q, [q]; ld.param.u64 %m, [m];
    ld.param.u32 %n, [n]; ld.param.u32 %k, [k];
    mov.u32 %t, %tid.x; mov.u32 %i1, %ntid.x; mov.u32 %i2, %ctaid.x;
    mad.lo.s32 %x, %i2, %i1, %t;
"""
P, Q = DEV_BASE + (1 << 30), DEV_BASE + (1 << 32)
THREADS, BLOCKS = 64, 2


def found(body: str) -> Sets:
    module = parse_module(f"{HEAD}{body}\nret; }}")
    sets = sets_of(module, module.functions["kernel"], True)
    assert sets.closed, sets.why_open
    return sets


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Core:
    return Core(tmp_path_factory.mktemp("bounds"))


def reach(core: Core, body: str, n: int = 100, k: int = 3, m: int = 5) -> Reach:
    """The reach of parameter `p`."""
    params = struct.pack("<QQQII", P, Q, m & (1 << 64) - 1, n & (1 << 32) - 1, k & (1 << 32) - 1)
    return core.reaches(found(body), params, (BLOCKS, 1, 1), (THREADS, 1, 1))[0]


AT = "mul.wide.s32 %a0, $, 4; add.s64 %a1, %p, %a0; ld.global.u32 %i0, [%a1];"
GUARD = "setp.ge.s32 %c, %x, %n; @%c bra done;"


def at(register: str) -> str:
    """Reads the word of `p` that a register counts."""
    return AT.replace("$", register)


# The kernel's body, and the range of words of `p` that it reads: first, end.
WORDS: dict[str, tuple[str, int, int]] = {
    "one": ("ld.global.u32 %i0, [%p+8];", 2, 3),
    "a vector": ("ld.global.v4.u32 {%i0, %i3, %i4, %i5}, [%p+16];", 4, 8),
    "all threads": (at("%x"), 0, 128),
    "those of a block": (at("%t"), 0, 64),
    "as many as there are": (GUARD + at("%x") + "done:", 0, 100),
    "the guard on the access alone": (
        "setp.lt.s32 %c, %x, %n; mul.wide.s32 %a0, %x, 4; add.s64 %a1, %p, %a0;"
        "@%c ld.global.u32 %i0, [%a1];",
        0,
        100,
    ),
    "a guard that is negated": (
        "setp.ge.s32 %c, %x, %n; mul.wide.s32 %a0, %x, 4;"
        "add.s64 %a1, %p, %a0; @!%c ld.global.u32 %i0, [%a1];",
        0,
        100,
    ),
    "an address before the guard": (
        "mul.wide.s32 %a0, %x, 4; add.s64 %a1, %p, %a0;"
        + GUARD
        + "ld.global.u32 %i0, [%a1]; done:",
        0,
        100,
    ),
    "unsigned": ("setp.ge.u32 %c, %x, %n; @%c bra done;" + at("%x") + "done:", 0, 100),
    "both of two guards": (
        "setp.lt.s32 %c, %x, %n; setp.gt.s32 %d, %x, 9; and.pred %e, %c, %d;"
        "@!%e bra done;" + at("%x") + "done:",
        10,
        100,
    ),
    "neither of two": (
        "setp.ge.s32 %c, %x, %n; setp.lt.s32 %d, %x, 9; or.pred %e, %c, %d;"
        "@%e bra done;" + at("%x") + "done:",
        9,
        100,
    ),
    "two guards in one": (
        "setp.gt.s32 %d, %x, 9; setp.lt.and.s32 %e, %x, %n, %d;@!%e bra done;" + at("%x") + "done:",
        10,
        100,
    ),
    "either of two guards says little": (
        "setp.lt.s32 %c, %x, %n; setp.gt.s32 %d, %x, 9; or.pred %e, %c, %d;"
        "@!%e bra done;" + at("%x") + "done:",
        0,
        128,
    ),
    "a guard that holds nowhere": (
        "setp.lt.s32 %c, %x, 0; @!%c bra done;" + at("%x") + "done:",
        0,
        0,
    ),
    "a guard on a sum": (
        "add.s32 %i3, %x, 1; setp.ge.s32 %c, %i3, %n; @%c bra done;" + at("%x") + "done:",
        0,
        99,
    ),
    "a guard on a difference": (
        "sub.s32 %i3, %x, 5; setp.ge.s32 %c, %i3, %k; @%c bra done;" + at("%x") + "done:",
        0,
        8,
    ),
    "a guard on another value": (
        "add.s32 %i3, %x, %t; setp.ge.s32 %c, %i3, %n; @%c bra done;" + at("%x") + "done:",
        0,
        128,
    ),
    "a loop that a sum ends": (
        "shl.b32 %i3, %t, 2; add.s32 %i4, %i3, 3; setp.ge.u32 %c, %i4, %n; @%c bra done;"
        "again:" + at("%i3") + "add.s32 %i3, %i3, 256; add.s32 %i4, %i3, 3;"
        "setp.lt.u32 %c, %i4, %n; @%c bra again; done:",
        0,
        97,
    ),
    "a guard on a multiple": (
        "shl.b32 %i3, %x, 2; setp.ge.s32 %c, %i3, %n; @%c bra done;" + at("%x") + "done:",
        0,
        25,
    ),
    "a guard on a long multiple": (
        "mul.wide.u32 %a0, %x, 16; cvt.s64.s32 %a1, %n; setp.lt.s64 %c, %a0, %a1; @!%c bra done;"
        + at("%x")
        + "done:",
        0,
        7,
    ),
    "a loop that a multiple ends": (
        "cvt.u64.u32 %a2, %t; cvt.s64.s32 %a4, %n; shl.b64 %a3, %a2, 2; setp.ge.s64 %c, %a3, %a4;"
        "@%c bra done; again: shl.b64 %a0, %a2, 2; add.s64 %a1, %p, %a0; ld.global.u32 %i0, [%a1];"
        "add.s64 %a2, %a2, 64; shl.b64 %a3, %a2, 2; setp.lt.s64 %c, %a3, %a4; @%c bra again; done:",
        0,
        25,
    ),
    "bits that are added": (
        "shl.b32 %i3, %t, 2; or.b32 %i4, %i3, 3; setp.ge.u32 %c, %i4, %n; @%c bra done;"
        + at("%i3")
        + "done:",
        0,
        97,
    ),
    "what the launch excludes": (
        "setp.ne.s32 %c, %k, 3; @%c ld.global.u32 %i0, [%p+4096]; ld.global.u32 %i0, [%p];",
        0,
        1,
    ),
    "a path that the launch excludes": (
        "mov.u32 %i3, %t; setp.eq.s32 %c, %k, 3; @%c bra over; mov.u32 %i3, 1000; over:"
        + at("%i3"),
        0,
        64,
    ),
    "no address is null": (
        "setp.ne.s64 %c, %p, 0; @%c bra done;" + at("%x") + "done:",
        0,
        0,
    ),
    "a number that is null": (
        "ld.param.u64 %a2, [m]; setp.ne.s64 %c, %a2, 0; @%c bra done;" + at("%x") + "done:",
        0,
        0,
    ),
    "conditions as integers": (
        "cvt.s64.s32 %a2, %x; setp.ge.s32 %c, %x, %n; selp.u32 %i3, 1, 0, %c; shr.u64 %a3, %a2, 63;"
        "cvt.u32.u64 %i4, %a3; or.b32 %i5, %i3, %i4; setp.eq.s32 %d, %i5, 0; @%d bra over;"
        "bra.uni done; over:" + at("%x") + "done:",
        0,
        100,
    ),
    "of another thread": (
        "mul.wide.s32 %a0, %x, 4; add.s64 %a1, %p, %a0; mov.b64 {%i3, %i4}, %a1;"
        "shfl.sync.bfly.b32 %i5, %i3, 1, 31, -1; shfl.sync.bfly.b32 %i6, %i4, 1, 31, -1;"
        "mov.b64 %a2, {%i5, %i6}; ld.global.u32 %i0, [%a2];",
        0,
        128,
    ),
    "a number of another thread": (
        "shfl.sync.idx.b32 %i3|%c, %t, 0, 31, -1;" + at("%i3"),
        0,
        64,
    ),
    "a register that changed after the guard": (
        GUARD + "add.s32 %x, %x, 50;" + at("%x") + "done:",
        50,
        150,
    ),
    "a register that changed before the access": (
        GUARD + "mov.u32 %x, %t;" + at("%x") + "done:",
        0,
        64,
    ),
    "a guard on one way only": (
        "setp.eq.s32 %d, %k, 3; @%d bra over;" + GUARD + "over:" + at("%x") + "done:",
        0,
        128,
    ),
    "the other way of a guard": (
        "setp.lt.s32 %c, %x, %n; @%c bra done;" + at("%x") + "done:",
        100,
        128,
    ),
    "behind a loop": (
        "mov.u32 %i3, 0; again: add.s32 %i3, %i3, 1; setp.lt.s32 %c, %i3, %n; @%c bra again;"
        + at("%i3"),
        100,
        101,
    ),
    "a loop over blocks": (
        "mov.u32 %i3, %x; mov.u32 %i4, %nctaid.x; mul.lo.s32 %i4, %i4, %i1;"
        "again: setp.ge.s32 %c, %i3, %n; @%c bra done;"
        + at("%i3")
        + "add.s32 %i3, %i3, %i4; bra again; done:",
        0,
        100,
    ),
    "a loop that tests at its end": (
        "mov.u32 %i3, %t; setp.ge.s32 %c, %i3, %n; @%c bra done; again:"
        + at("%i3")
        + "add.s32 %i3, %i3, 64; setp.lt.s32 %c, %i3, %n; @%c bra again; done:",
        0,
        100,
    ),
    "a loop up to the number of the thread": (
        "mov.u32 %i3, 0; again:" + at("%i3") + "add.s32 %i3, %i3, 1; setp.le.s32 %c, %i3, %t;"
        "@%c bra again;",
        0,
        64,
    ),
    "below the number of the thread": (
        "ld.shared.u8 %h1, [block]; cvt.u32.u16 %i3, %h1; setp.ge.s32 %c, %i3, %t;"
        "@%c bra done;" + at("%i3") + "done:",
        0,
        63,
    ),
    "a loop that counts down": (
        "sub.s32 %i3, %n, 1; setp.lt.s32 %c, %i3, 0; @%c bra done; again:"
        + at("%i3")
        + "add.s32 %i3, %i3, -1; setp.ge.s32 %c, %i3, 0; @%c bra again; done:",
        0,
        100,
    ),
    "a loop that ends at a number": (
        "mov.u32 %i3, 0; again:"
        + at("%i3")
        + "add.s32 %i3, %i3, 1; setp.ne.s32 %c, %i3, %n; @%c bra again;",
        0,
        100,
    ),
    "a loop by fours to a number": (
        "mov.u32 %i3, %n; again:"
        + at("%i3")
        + "add.s32 %i3, %i3, -4; setp.ne.s32 %c, %i3, 0; @%c bra again;",
        4,
        101,
    ),
    "a pointer that is moved in a loop": (
        "mov.u64 %a1, %p; mov.u32 %i3, 0; again: ld.global.u32 %i0, [%a1]; add.s64 %a1, %a1, 8;"
        "add.s32 %i3, %i3, 2; setp.lt.s32 %c, %i3, %n; @%c bra again;",
        0,
        99,
    ),
    "an index that is moved by as much as is asked for": (
        "mov.u32 %i4, 0; mov.u32 %i3, 0; again:" + at("%i4") + "add.s32 %i4, %i4, %k;"
        "add.s32 %i3, %i3, 1; setp.lt.s32 %c, %i3, %n; @%c bra again;",
        0,
        298,
    ),
    "a loop in a loop": (
        "mov.u32 %i3, 0; outer: mov.u32 %i4, 0; inner: mad.lo.s32 %i5, %i3, 10, %i4;"
        + at("%i5")
        + "add.s32 %i4, %i4, 1; setp.lt.s32 %c, %i4, 10; @%c bra inner;"
        "add.s32 %i3, %i3, 1; setp.lt.s32 %c, %i3, %k; @%c bra outer;",
        0,
        30,
    ),
    "the smaller one": ("min.s32 %i3, %x, %k;" + at("%i3"), 0, 4),
    "the larger one": ("max.s32 %i3, %x, %k;" + at("%i3"), 3, 128),
    "one of two numbers": ("setp.lt.s32 %c, %x, %n; selp.b32 %i3, 9, 7, %c;" + at("%i3"), 7, 10),
    "one of two": ("setp.lt.s32 %c, %x, %n; selp.b32 %i3, %x, 7, %c;" + at("%i3"), 0, 100),
    "set if it is not too large": (
        "mov.u32 %i3, 7; setp.lt.s32 %c, %x, %n; @%c mov.u32 %i3, %x;" + at("%i3"),
        0,
        100,
    ),
    "through a register of another kind": (
        "mov.b32 %f0, 70; setp.ge.s32 %c, %x, 64; @%c bra over; mov.b32 %f0, %x; over:"
        "mov.b32 %i3, %f0;" + at("%i3"),
        0,
        71,
    ),
    "a part of a register that is set": (
        GUARD + "vadd.u32.u32.u32 %x.b0, %x.b0, 200; rem.u32 %x,%x, 256;" + at("%x") + "done:",
        0,
        256,
    ),
    "cut off": ("mov.u32 %i3, %x; setp.ge.s32 %c, %i3, %k; @%c mov.u32 %i3, 2;" + at("%i3"), 0, 3),
    "a rest": ("rem.s32 %i3, %x, %n;" + at("%i3"), 0, 100),
    "what is left of a division": (
        "sub.s32 %i4, %x, 28; div.s32 %i3, %i4, %k; mul.lo.s32 %i5, %i3, %k;"
        "sub.s32 %i3, %i4, %i5;" + at("%i3"),
        -2,
        3,
    ),
    "what is left of a division without sign": (
        "div.u32 %i3, %x, %k; mul.lo.s32 %i5, %k, %i3; sub.s32 %i3, %x, %i5;" + at("%i3"),
        0,
        3,
    ),
    "what is left of another number": (
        "div.s32 %i3, %t, %k; mul.lo.s32 %i5, %i3, %k; sub.s32 %i3, %x, %i5;" + at("%i3"),
        -63,
        128,
    ),
    "what another divisor leaves": (
        "div.s32 %i3, %x, %k; mul.lo.s32 %i5, %i3, 2; sub.s32 %i3, %x, %i5;" + at("%i3"),
        -84,
        128,
    ),
    "a quotient": ("div.s32 %i3, %x, %k;" + at("%i3"), 0, 43),
    "a quotient by a product": (
        "mul.hi.u32 %i3, %x, -1431655765; shr.u32 %i3, %i3, 1;" + at("%i3"),
        0,
        43,
    ),
    "a mask": ("and.b32 %i3, %x, 15;" + at("%i3"), 0, 16),
    "of anything": ("ld.shared.u32 %i3, [block]; and.b32 %i3, %i3, 15;" + at("%i3"), 0, 16),
    "a boundary before it": ("and.b32 %i3, %x, -4;" + at("%i3"), 0, 125),
    "bits together": ("shl.b32 %i3, %x, 2; or.b32 %i3, %i3, 3;" + at("%i3"), 3, 512),
    "a byte": ("ld.shared.u8 %h1, [block]; cvt.u32.u16 %i3, %h1;" + at("%i3"), 0, 256),
    "shifted down": ("shr.u32 %i3, %x, 3;" + at("%i3"), 0, 16),
    "a difference": ("sub.s32 %i3, %x, %k;" + at("%i3"), -3, 125),
    "not": ("not.b32 %i3, %x;" + at("%i3"), -128, 0),
    "negated": ("neg.s32 %i3, %x;" + at("%i3"), -127, 1),
    "a number of 64 bits": (
        "shl.b64 %a0, %m, 2; add.s64 %a1, %p, %a0;ld.global.u32 %i0, [%a1];",
        5,
        6,
    ),
    "made longer, unsigned": (
        "cvt.u64.u32 %a0, %x; shl.b64 %a0, %a0, 2; add.s64 %a1, %a0, %p;ld.global.u32 %i0, [%a1];",
        0,
        128,
    ),
    "made longer, signed": (
        "sub.s32 %i3, %x, 1; cvt.s64.s32 %a0, %i3; mad.lo.s64 %a1, %a0, 4, %p;"
        "ld.global.u32 %i0, [%a1];",
        -1,
        127,
    ),
    "made shorter": ("cvt.u64.u32 %a0, %x; cvt.u32.u64 %i3, %a0;" + at("%i3"), 0, 128),
    "a guard with other operands exchanged": (
        "setp.le.s32 %c, %n, %x; @%c bra done;" + at("%x") + "done:",
        0,
        100,
    ),
    "equal": ("setp.ne.s32 %c, %x, %k; @%c bra done;" + at("%x") + "done:", 3, 4),
    "not the first": ("setp.eq.s32 %c, %x, 0; @%c bra done;" + at("%x") + "done:", 1, 128),
    "below zero, unsigned": (
        "sub.s32 %i3, %x, 10; setp.ge.u32 %c, %i3, 5; @%c bra done;" + at("%i3") + "done:",
        0,
        5,
    ),
}


@pytest.mark.parametrize("name", WORDS)
def test_ranges_that_are_read(core: Core, name: str) -> None:
    body, low, high = WORDS[name]
    assert reach(core, body) == Reach(Span(4 * low, 4 * high), Span(0, 0))


MOST, LEAST = (1 << 31) - 1, -(1 << 31)
ALL = (LEAST, MOST + 1)  # all that a signed number of 32 bits can count
COUNT = "add.s32 %i3, %i3, %k; setp.lt.s32 %c, %i3, %n; @%c bra again;"
# Results that exceed 32 bits, or are read as another type: the body, n, k, first word, end.
EDGES: dict[str, tuple[str, int, int, int, int]] = {
    "one more than the largest": ("add.s32 %i3, %n, 1;" + at("%i3"), MOST, 0, LEAST, LEAST + 1),
    "about the largest": ("add.s32 %i3, %n, %t;" + at("%i3"), MOST - 9, 0, *ALL),
    "a product that is too large": ("mul.lo.s32 %i3, %x, %n;" + at("%i3"), 1 << 28, 0, *ALL),
    "one that just fits": (
        "mul.lo.s32 %i3, %x, %n;" + at("%i3"),
        1 << 24,
        0,
        0,
        127 * (1 << 24) + 1,
    ),
    "below zero, read as unsigned": (
        "mul.wide.u32 %a0, %k, 4; add.s64 %a1, %p, %a0;ld.global.u32 %i0, [%a1];",
        0,
        -1,
        (1 << 32) - 1,
        1 << 32,
    ),
    "some of them": (
        "add.s32 %i3, %x, %k; mul.wide.u32 %a0, %i3, 4; add.s64 %a1, %p, %a0;"
        "ld.global.u32 %i0, [%a1];",
        0,
        -9,
        0,
        1 << 32,
    ),
    "a limit below zero": (
        "setp.ge.s32 %c, %x, %n; @%c bra done;" + at("%x") + "done:",
        -5,
        0,
        0,
        0,
    ),
    "a limit below zero, unsigned": (
        "setp.ge.u32 %c, %x, %n; @%c bra done;" + at("%x") + "done:",
        -5,
        0,
        0,
        128,
    ),
    "a number below zero and a limit": (
        "add.s32 %i3, %x, %k; setp.ge.s32 %c, %i3, %n;@%c bra done;" + at("%i3") + "done:",
        50,
        -70,
        -70,
        50,
    ),
    "a loop that passes by its end": (
        "mov.u32 %i3, 0; again:" + at("%i3") + "add.s32 %i3, %i3, 2; setp.ne.s32 %c, %i3, %n;"
        "@%c bra again;",
        99,
        0,
        *ALL,
    ),
    "a loop that may wrap around": (
        "mov.u32 %i3, 0; again:" + at("%i3") + COUNT,
        MOST - 1,
        4,
        *ALL,
    ),
    "a loop that ends before that": (
        "mov.u32 %i3, 0; again:" + at("%i3") + COUNT,
        MOST - 9,
        4,
        0,
        MOST - 10,
    ),
    "a loop that goes the other way": ("mov.u32 %i3, 0; again:" + at("%i3") + COUNT, 50, -4, *ALL),
    "a loop that stands": ("mov.u32 %i3, 0; again:" + at("%i3") + COUNT, 50, 0, 0, 1),
    "a pointer in such a loop": (
        "mov.u64 %a1, %p; mov.u32 %i3, 0; again: ld.global.u32 %i0, [%a1];"
        "add.s64 %a1, %a1, 4;" + COUNT,
        50,
        5,
        0,
        10,
    ),
    "a pointer that goes down in such a loop": (
        "mov.u64 %a1, %p; mov.u32 %i3, 0; again: ld.global.u32 %i0, [%a1];"
        "add.s64 %a1, %a1, -4;" + COUNT,
        50,
        5,
        -9,
        1,
    ),
    "a loop that begins at its end": (
        "mov.u32 %i3, 0; again:" + at("%i3") + "add.s32 %i3, %i3, -4; setp.ne.s32 %c, %i3, 0;"
        "@%c bra again;",
        0,
        0,
        *ALL,
    ),
    "a product of values around zero": (
        "sub.s32 %i3, %x, 100; mul.lo.s32 %i3, %i3, -3;" + at("%i3"),
        0,
        0,
        -81,
        301,
    ),
    "a rest of what is below zero": (
        "sub.s32 %i3, %x, 100; rem.s32 %i3, %i3, %k;" + at("%i3"),
        0,
        7,
        -6,
        7,
    ),
    "what is left where the divisor may be zero": (
        "div.u32 %i3, %n, %x; mul.lo.u32 %i3, %i3, %x; sub.u32 %i3, %n, %i3;" + at("%i3"),
        100,
        0,
        *ALL,
    ),
    "a quotient of what is below zero": (
        "sub.s32 %i3, %x, 100; div.s32 %i3, %i3, %k;" + at("%i3"),
        0,
        7,
        -14,
        4,
    ),
    "a quotient by what may be zero": ("div.u32 %i3, %n, %x;" + at("%i3"), 100, 0, *ALL),
    "shifted down with its sign": (
        "sub.s32 %i3, %x, 100; shr.s32 %i3, %i3, 2;" + at("%i3"),
        0,
        0,
        -25,
        7,
    ),
    "shifted down without": (
        "sub.s32 %i3, %x, 1; shr.u32 %i3, %i3, 1;" + at("%i3"),
        0,
        0,
        0,
        MOST + 1,
    ),
    "shifted up too far": ("shl.b32 %i3, %x, 28;" + at("%i3"), 0, 0, *ALL),
    "as many bits as a number says": ("shl.b32 %i3, %x, %k;" + at("%i3"), 0, 3, 0, 127 * 8 + 1),
    "a mask of what is below zero": (
        "sub.s32 %i3, %x, 8; and.b32 %i3, %i3, 1023;" + at("%i3"),
        0,
        0,
        0,
        1024,
    ),
    "the last bits of values around zero": (
        "sub.s32 %i3, %x, %t; and.b32 %i3, %i3, 63;" + at("%i3"),
        0,
        0,
        0,
        64,
    ),
    "a parameter that is made longer": (
        "ld.param.s32 %a0, [k]; mad.lo.s64 %a1, %a0, 4, %p; ld.global.u32 %i0, [%a1];",
        0,
        -3,
        -3,
        -2,
    ),
    "sixteen bits of it": (
        "add.s32 %i3, %x, %n; cvt.u16.u32 %h1, %i3; cvt.u32.u16 %i3, %h1;" + at("%i3"),
        65500,
        0,
        0,
        65536,
    ),
    "a multiple that does not fit": (
        "sub.s32 %i3, %x, %n; shl.b32 %i4, %i3, 2; setp.ge.u32 %c, %i4, 8; @%c bra done;"
        + at("%i3")
        + "done:",
        1 << 30,
        0,
        -(1 << 30),
        128 - (1 << 30),
    ),
    "the magnitude": ("sub.s32 %i3, %x, 100; abs.s32 %i3, %i3;" + at("%i3"), 0, 0, -27, 101),
    "what may be the larger one, unsigned": (
        "sub.s32 %i3, %x, 1; max.u32 %i3, %i3, %k;" + at("%i3"),
        0,
        5,
        *ALL,
    ),
}


@pytest.mark.parametrize("name", EDGES)
def test_overflowing_ranges_are_unknown(core: Core, name: str) -> None:
    body, n, k, low, high = EDGES[name]
    assert reach(core, body, n, k) == Reach(Span(4 * low, 4 * high), Span(0, 0))


# Nothing is said of these: all of the buffer counts.
ANYWHERE = {
    "an index from memory": "ld.shared.u64 %a0, [block]; add.s64 %a1, %p, %a0; "
    "st.global.u8 [%a1], 1;",
    "one of two buffers": "setp.eq.s32 %c, %k, 3; selp.b64 %a1, %p, %q, %c; st.global.u8 [%a1], 1;",
    "of two other threads": "mov.b64 {%i3, %i4}, %p; shfl.sync.bfly.b32 %i5, %i3, 1, 31, -1;"
    "shfl.sync.bfly.b32 %i6, %i4, 2, 31, -1; mov.b64 %a1, {%i5, %i6};"
    "ld.global.u32 %i0, [%a1];",
    "a half of another thread": "mov.b64 {%i3, %i4}, %p; shfl.sync.bfly.b32 %i5, %i3, 1, 31, -1;"
    "mov.b64 %a1, {%i5, %i4}; ld.global.u32 %i0, [%a1];",
    "a pointer in a loop that may stand": "and.b32 %i4, %x, 1; mov.u64 %a1, %p; mov.u32 "
    "%i3, 0; again: ld.global.u32 %i0, [%a1];"
    "add.s64 %a1, %a1, 4; add.s32 %i3, %i3, %i4; setp.lt.s32 %c, %i3, %n; @%c bra again;",
    "a pointer in a loop that wraps around": "mov.u64 %a1, %p; mov.u32 %i3, 0; again: "
    "ld.global.u32 %i0, [%a1]; add.s64 %a1, %a1, 4;"
    "add.s32 %i3, %i3, 4; setp.lt.s32 %c, %i3, 2147483646; @%c bra again;",
    "a pointer that increases without end": "mov.u64 %a1, %p; again: ld.global.u32 %i0, [%a1];"
    "add.s64 %a1, %a1, 4; setp.ne.s32 %c, %i0, 0; @%c bra again;",
    "an address that is a product": "mul.lo.s64 %a0, %m, %m; add.s64 %a1, %p, %a0;"
    "ld.global.u32 %i0, [%a1];",
}


@pytest.mark.parametrize("name", ANYWHERE)
def test_unknown_ranges(core: Core, name: str) -> None:
    """Code that is never reached accesses nothing."""
    nothing = Span(0, 0)
    said = reach(core, ANYWHERE[name], m=1 << 40)
    assert said == (Reach(nothing, None) if "st." in ANYWHERE[name] else Reach(None, nothing))


# A remainder by a multiplication and a shift, of factor and shift in `m`, for the divisor `k`.
REMAINDER = """ld.param.u32 %i3, [m]; ld.param.u32 %i4, [m+4]; mul.hi.u32 %i5, $, %i3;
add.s32 %i5, %i5, $; shr.u32 %i5, %i5, %i4; mul.lo.s32 %i6, %i5, %k; sub.s32 %i7, $, %i6;"""


def magic(divisor: int) -> tuple[int, int]:
    """The factor and the shift, as PyTorch's IntDivider computes them."""
    shift = (divisor - 1).bit_length()
    return ((1 << 32) * ((1 << shift) - divisor)) // divisor + 1, shift


def remainder(core: Core, of: str, divisor: int, factor: int, shift: int, n: int = 0) -> Span:
    body = REMAINDER.replace("$", of) + at("%i7")
    read = reach(core, body, n, divisor, factor | shift << 32).read
    assert read
    return read


@pytest.mark.parametrize("divisor", [1, 2, 3, 5, 7, 10, 64, 100])
def test_a_remainder_by_multiplication(core: Core, divisor: int) -> None:
    assert remainder(core, "%x", divisor, *magic(divisor)) == Span(0, 4 * divisor)


def test_other_numbers_do_not_make_a_remainder(core: Core) -> None:
    factor, shift = magic(10)
    for wrong in ((factor + 1, shift), (factor, shift - 1), (factor, 32), (0, 0)):
        assert remainder(core, "%x", 10, *wrong) != Span(0, 40)
    assert remainder(core, "%x", 0, 1, 0) != Span(0, 0)
    # The sum with the upper half does not fit 32 bits.
    number = (1 << 32) - 1
    quotient = ((number * factor >> 32) + number) % (1 << 32) >> shift
    assert quotient != number // 10
    rest = (number - quotient * 10 + (1 << 31)) % (1 << 32) - (1 << 31)
    found = remainder(core, "%n", 10, factor, shift, number)
    assert found.low <= 4 * rest < found.high


def test_written_ranges_are_known_when_read_ranges_are_not(core: Core) -> None:
    body = "setp.eq.s32 %c, %k, 3; selp.b64 %a1, %p, %q, %c; ld.global.u32 %i0, [%a1];" + (
        "st.global.u32 [%p+8], %i0;"
    )
    assert reach(core, body) == Reach(None, Span(8, 12))


def test_reads_and_writes_are_distinguished(core: Core) -> None:
    body = "ld.global.u32 %i0, [%p+4]; st.global.u64 [%p+16], %m; red.global.add.u32 [%p+40], 1;"
    assert reach(core, body) == Reach(Span(4, 44), Span(16, 44))
    copy = "mov.u32 %i3, block; cp.async.ca.shared.global [%i3], [%p+8], 16;"
    assert reach(core, copy) == Reach(Span(8, 24), Span(0, 0))


VARIABLES = {
    "named": ("ld.global.u32 %i0, [list+12];", True),
    "by its address": ("mov.u64 %a1, list; add.s64 %a1, %a1, 4; st.global.u64 [%a1+4], %m;", True),
    "in two ways": (
        "mov.u64 %a1, list; cvta.global.u64 %a1, %a1; atom.add.u32 %i0, [%a1], 1;"
        "ld.global.u32 %i0, [list];",
        True,
    ),
    "beyond its end": ("st.global.u64 [list+12], %m;", False),
    "before it": ("mov.u64 %a1, list; ld.global.u32 %i0, [%a1+-4];", False),
    "by an index": (
        "mov.u64 %a1, list; mul.wide.u32 %a2, %t, 4; add.s64 %a1, %a1, %a2;"
        "ld.global.u32 %i0, [%a1]; ld.global.u32 %i0, [list];",
        False,
    ),
    "or a parameter": (
        "mov.u64 %a1, list; setp.eq.s32 %c, %k, 3; selp.b64 %a1, %a1, %p, %c;"
        "ld.global.u32 %i0, [%a1];",
        False,
    ),
}


@pytest.mark.parametrize("name", VARIABLES)
def test_whether_a_variable_is_left(name: str) -> None:
    body, inside = VARIABLES[name]
    assert found(body).bounds.inside == (("list",) if inside else ())


def test_launches_are_not_confused(core: Core) -> None:
    """The kept bounds of one launch are not used for another."""
    sets = found(GUARD + at("%x") + "done:")
    with core.loaded(sets, 32) as reaches:
        for turn in range(60):
            n, blocks, threads, p = turn % 20, 1 + turn % 3, 1 + turn % 7, P + 256 * (turn % 2)
            params = struct.pack("<QQQII", p, Q, 5, n, 3)
            seen = core.of(sets, reaches, params, (blocks, 1, 1), (threads, 1, 1))[0]
            assert seen.read == Span(0, 4 * min(n, blocks * threads))


def test_parameters_that_decide_nothing_do_not_matter(core: Core) -> None:
    """The kept bounds serve all launches that differ only in what no executed access uses."""
    rare = "setp.lt.s32 %c, %n, 2; @%c bra done; mul.lo.s32 %i0, %k, %k;" + at("%i0") + "done:"
    sets = found(at("%x") + rare)

    def kept(n: int, k: int) -> tuple[Any, Span | None]:
        params = struct.pack("<QQQII", P, Q, 5, n, k)
        launch = core.bounds(reaches, params, (1, 1, 1), (32, 1, 1))
        assert launch is not None
        return launch.words, core.of(sets, reaches, params, (1, 1, 1), (32, 1, 1))[0].read

    with core.loaded(sets, 32) as reaches:
        first, reach = kept(1, 3)
        assert reach == Span(0, 128)
        assert kept(1, 99) == (first, reach)
        assert kept(2, 99)[1] == Span(0, 4 * 99 * 99 + 4)
        assert kept(2, 3)[1] == Span(0, 128)
        assert kept(1, 7) == (first, reach)


@pytest.mark.parametrize("n", [1, 2])
def test_one_of_two_paths_is_taken(core: Core, n: int) -> None:
    """A path that is not taken contributes nothing to a range."""
    many, few = "add.s32 %i0, %k, 1; bra both;", "few: add.s32 %i0, %k, 2;"
    paths = f"setp.lt.s32 %c, %n, 2; @%c bra few; {many} {few} both:"
    params = struct.pack("<QQQII", P, Q, 5, n, 40)
    at_ = 42 if n < 2 else 41
    assert core.reaches(found(paths + at("%i0")), params)[0].read == Span(4 * at_, 4 * at_ + 4)


def test_a_word_that_is_no_address_reaches_nothing_known(core: Core) -> None:
    params = struct.pack("<QQQII", 0, Q, 5, 100, 3)
    assert core.reaches(found(at("%x")), params)[0].read is None


@pytest.mark.parametrize(
    ("array", "at_", "field", "value"),
    [
        ("steps", 0, "op", 99),
        ("steps", 0, "bits", 7),
        ("steps", 0, "sign", 3),
        ("steps", -1, "a", 1000),
        ("steps", 1, "number", 30),
        ("reached", 0, "step", 1000),
        ("reached", 0, "count", 9),
        ("reached_words", 0, None, 5),
        ("reached", 0, "bytes", 1 << 60),
    ],
)
def test_steps_that_make_no_sense_are_refused(
    core: Core, array: str, at_: int, field: str | None, value: int
) -> None:
    sets = found(GUARD + at("%x") + "done:")
    function, arrays = core.function(sets, 32)
    kind = [step.op for step in sets.bounds.steps]
    index = kind.index(3) if field == "number" else at_ % len(arrays[array])
    if field:
        setattr(arrays[array][index], field, value)
    else:
        arrays[array][index] = value
    error = core.ffi.new("int *")
    assert core.lib.bounds_copy(function, error) == core.ffi.NULL
    assert error[0] == 200

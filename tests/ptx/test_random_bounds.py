"""Random kernels, every access recorded: each is within the bounds of its launch."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from ptx.launches import DEV_BASE, Core, Launch
from ptx.test_bounds import magic
from ptx.threads import Thread

from rankfold.proxy.ptx.arithmetic import Use
from rankfold.proxy.ptx.inline import flatten
from rankfold.proxy.ptx.module import parse_module
from rankfold.proxy.ptx.sets import analyse

HEAD = """
.version 8.6
.target sm_90
.address_size 64
.visible .entry kernel(.param .u64 p, .param .u64 q, .param .u64 m, .param .u32 n, .param .u32 k,
                       .param .align 8 .b8 s[64]) {
    .reg .b64 %a<6>, %w<6>, %p, %q; .reg .b32 %i<8>, %j<9>; .reg .b16 %h<4>; .reg .pred %c<6>;
    .reg .f32 %f<3>; .shared .align 8 .b8 block[256];
    ld.param.u64 %p, [p]; ld.param.u64 %q, [q]; ld.param.u64 %w0, [m];
    ld.param.u32 %i0, [n]; ld.param.s32 %i1, [k];
    mov.u32 %i2, %tid.x; mov.u32 %j0, %ntid.x; mov.u32 %i3, %ctaid.x;
    mad.lo.s32 %i4, %i3, %j0, %i2; mov.u32 %i5, 0; mov.u32 %i6, 1; mov.u32 %i7, %nctaid.x;
    mov.u64 %a0, %p; mov.u64 %a1, %q; add.s64 %a2, %p, 64; mov.u64 %a3, %p;
    mov.u64 %w1, 0; mov.u64 %w2, 4; cvt.s64.s32 %w3, %i4;
    setp.lt.s32 %c0, %i4, %i0; setp.lt.u32 %c1, %i2, 7; setp.ne.s32 %c2, %i1, 0;
    setp.gt.s32 %c3, %i4, %i1;
"""
P, Q = DEV_BASE + (1 << 36), DEV_BASE + (1 << 37)
PARAMS = struct.Struct("<QQQII4Q4I3I4x")  # `s`: pointers, numbers, and what divides by the first
COMPARED = ("lt", "le", "gt", "ge", "eq", "ne")

# $i, $j: 32-bit numbers; $w, $v: 64-bit ones; $a, $b: pointers; $c, $d: predicates; #: a number.
NUMBERS = [
    "add.s32 $i, $i, #;",
    "add.s32 $i, $i, $j;",
    "add.u32 $i, $j, #;",
    "sub.s32 $i, $i, $j;",
    "sub.s32 $i, #, $j;",
    "mul.lo.s32 $i, $j, #;",
    "mul.lo.u32 $i, $i, $j;",
    "mad.lo.s32 $i, $j, #, $i;",
    "mul.hi.u32 $i, $j, #;",
    "mul.hi.s32 $i, $j, #;",
    "shl.b32 $i, $j, ~;",
    "shr.u32 $i, $j, ~;",
    "shr.s32 $i, $j, ~;",
    "shr.u32 $i, $i, $j;",
    "shl.b32 $i, $i, $j;",
    "and.b32 $i, $j, #;",
    "and.b32 $i, $i, $j;",
    "or.b32 $i, $j, #;",
    "or.b32 $i, $i, $j;",
    "xor.b32 $i, $j, #;",
    "xor.b32 $i, $i, $j;",
    "not.b32 $i, $j;",
    "neg.s32 $i, $j;",
    "abs.s32 $i, $j;",
    "min.s32 $i, $j, #;",
    "max.s32 $i, $i, $j;",
    "min.u32 $i, $j, #;",
    "max.u32 $i, $i, $j;",
    "div.s32 $i, $j, #;",
    "div.u32 $i, $i, $j;",
    "div.s32 %i7, $j, 7; mul.lo.s32 %i6, %i7, 7; sub.s32 $i, $j, %i6;",
    "div.u32 %i7, $j, %i3; mul.lo.u32 %i6, %i7, %i3; sub.s32 $i, $j, %i6;",
    "rem.s32 $i, $j, #;",
    "rem.u32 $i, $i, $j;",
    "rem.u32 $i, $j, #;",
    "div.u32 $i, $j, #;",
    "selp.b32 $i, $j, #, $c;",
    "selp.b32 $i, $i, $j, $c;",
    "mov.u32 $i, $j;",
    "mov.u32 $i, #;",
    "@$c mov.u32 $i, $j;",
    "@!$c add.s32 $i, $i, #;",
    "@$c mov.u32 $i, #;",
    "cvt.u16.u32 %h0, $j; cvt.u32.u16 $i, %h0;",
    "cvt.s16.s32 %h1, $j; cvt.s32.s16 $i, %h1;",
    "cvt.u32.u16 $i, %h2; cvt.u16.u32 %h2, $j;",
    "cvt.s32.s8 $i, $j;",
    "cvt.u32.u8 $i, $j;",
    "cvt.u32.u64 $i, $w;",
    "cvt.s32.s64 $i, $w;",
    "cvt.s64.s32 $w, $i;",
    "cvt.u64.u32 $w, $i;",
    "mul.wide.s32 $w, $i, #;",
    "mul.wide.u32 $w, $i, #;",
    "mad.wide.s32 $w, $i, #, $v;",
    "mad.wide.u32 $w, $i, $j, $v;",
    "add.s64 $w, $w, $v;",
    "add.s64 $w, $v, #;",
    "sub.s64 $w, $w, $v;",
    "mul.lo.s64 $w, $v, #;",
    "shl.b64 $w, $v, ~;",
    "shr.u64 $w, $v, ~;",
    "shr.s64 $w, $v, ~;",
    "and.b64 $w, $v, #;",
    "min.s64 $w, $v, #;",
    "max.u64 $w, $w, $v;",
    "div.u64 $w, $v, #;",
    "div.s64 $w, $v, #;",
    "rem.s64 $w, $v, #;",
    "rem.u64 $w, $v, #;",
    "neg.s64 $w, $v;",
    "or.b64 $w, $v, #;",
    "ld.shared.u32 $i, [block];",
    "ld.shared.u8 $i, [block];",
    "ld.shared.s16 $i, [block];",
    "ld.global.u32 $i, [$a];",
    "mov.b32 %f0, $i;",
    "mov.b32 $i, %f0;",
    "@$c mov.b32 %f1, $i;",
    "mov.b32 $i, %f1;",
    "mov.b32 %f1, %f0;",
    "shfl.sync.idx.b32 $i, $j, 0, 31, -1;",
    "setp.lt.s32 $c, $i, $j; selp.u32 %j2, 1, 0, $c; shr.u64 %w4, $w, 63; cvt.u32.u64 %j3, %w4;"
    " or.b32 %j4, %j2, %j3; setp.eq.s32 $d, %j4, 0;",
    "shl.b32 %j2, $j, 3; or.b32 $i, %j2, 5;",
    "ld.param.u32 %j2, [s+52]; ld.param.u32 %j3, [s+56]; ld.param.u32 %j4, [s+48];"
    " mul.hi.u32 %j5, $j, %j2; add.s32 %j5, %j5, $j; shr.u32 %j5, %j5, %j3;"
    " mul.lo.s32 %j5, %j5, %j4; sub.s32 $i, $j, %j5;",
    "and.b32 %j2, $j, 3; mov.b64 %w4, s; mad.wide.u32 %w4, %j2, 4, %w4; ld.param.u32 $i, [%w4+32];",
    "rem.u32 %j2, %i3, 4; mov.b64 %w4, s; mad.wide.u32 %w4, %j2, 4, %w4;"
    " ld.param.s32 $i, [%w4+32];",
    "mov.b64 %w4, s; mad.wide.u32 %w4, %i3, 1, %w4; ld.param.u8 $i, [%w4+32];",
    "mov.b64 %w4, s; cvt.s64.s32 %w5, $i; add.s64 %w4, %w4, %w5; ld.param.u8 $j, [%w4];",
]
TESTS = [
    "setp.?.s32 $c, $i, #;",
    "setp.?.s32 $c, $i, $j;",
    "setp.?.u32 $c, $i, #;",
    "setp.?.u32 $c, $i, $j;",
    "setp.?.s64 $c, $w, #;",
    "setp.?.u64 $c, $w, $v;",
    "setp.?.s32 $c, #, $i;",
    "setp.?.and.s32 $c, $i, $j, $d;",
    "setp.?.or.s32 $c, $i, #, $d;",
    "setp.?.and.u32 $c, $i, #, !$d;",
    "and.pred $c, $c, $d;",
    "or.pred $c, $c, $d;",
    "not.pred $c, $d;",
    "setp.?.u64 $c, $a, $b;",
    "setp.?.s64 $c, $a, $b;",
    "shl.b32 %j2, $i, ~; setp.?.s32 $c, %j2, $j;",
    "shl.b32 %j2, $i, ~; setp.?.u32 $c, %j2, #;",
    "shl.b64 %w4, $w, ~; setp.?.s64 $c, %w4, $v;",
    "mul.wide.u32 %w4, $i, 4; setp.?.s64 $c, %w4, $w;",
    "mul.wide.s32 %w4, $i, 8; setp.?.u64 $c, %w4, #;",
    "mul.lo.s32 %j2, $i, 16; setp.?.u32 $c, %j2, $j;",
    "add.s32 %j2, $i, #; setp.?.u32 $c, %j2, $j;",
    "sub.s32 %j2, $i, #; setp.?.s32 $c, %j2, #;",
    "add.s64 %w4, $w, #; setp.?.s64 $c, %w4, $v;",
    "setp.?.s64 $c, $a, 0;",
]
ACCESSES = [
    "mul.wide.s32 %w4, $i, 4; add.s64 %w5, $a, %w4; ld.global.u32 %j1, [%w5+8];",
    "mul.wide.s32 %w4, $i, 4; add.s64 %w5, $a, %w4; st.global.u32 [%w5], $j;",
    "mul.wide.u32 %w4, $i, 4; add.s64 %w5, $a, %w4; st.global.v2.u32 [%w5+-8], {$i, $j};",
    "mad.wide.s32 %w5, $i, 8, $a; ld.global.u32 %j1, [%w5];",
    "ld.global.u64 %w4, [$a+16];",
    "cvt.s64.s32 %w4, $i; shl.b64 %w4, %w4, 2; add.s64 %w5, %w4, $a; ld.global.u8 %j1, [%w5];",
    "mul.wide.s32 %w4, $i, 4; add.s64 %w5, $a, %w4; @$c st.global.u32 [%w5], $j;",
    "mul.wide.s32 %w4, $i, 4; add.s64 %w5, $a, %w4; @!$c ld.global.u32 %j1, [%w5];",
    "shl.b64 %w4, $w, 2; add.s64 %w5, $a, %w4; ld.global.u16 %h3, [%w5];",
    "add.s64 %w5, $a, $w; st.global.u8 [%w5], $i;",
]
POINTERS = [
    "add.s64 $a, $a, #;",
    "add.s64 $a, $a, 4;",
    "mov.u64 $a, $b;",
    "mad.wide.s32 $a, $i, 4, $b;",
    "@$c add.s64 $a, $a, 8;",
    "selp.b64 $a, $a, $b, $c;",
    "add.s64 $a, $b, $w;",
    "sub.s64 $w, $a, $b;",
    "cvta.to.global.u64 $a, $b;",
    "mul.wide.s32 %w4, $i, 4; sub.s64 $a, $b, %w4;",
    "min.u64 $a, $a, $b;",
    "and.b64 $a, $a, -16;",
    "rem.u32 %j2, %i3, 4; mov.b64 %w4, s; mad.wide.u32 %w4, %j2, 8, %w4; ld.param.u64 $a, [%w4];",
    "rem.u32 %j2, %i3, 4; mov.b64 %w4, s; mad.wide.u32 %w4, %j2, 4, %w4;"
    " ld.param.u32 %j3, [%w4+32];"
    " and.b32 %j3, %j3, 3; mov.b64 %w4, s; mad.wide.u32 %w4, %j3, 8, %w4; ld.param.u64 $a, [%w4];",
    "and.b32 %j2, $i, 3; mov.b64 %w4, s; mad.wide.u32 %w4, %j2, 8, %w4; ld.param.u64 $a, [%w4];",
    "mov.b64 {%j2, %j3}, $a; shfl.sync.idx.b32 %j4, %j2, 0, 31, -1;"
    " shfl.sync.idx.b32 %j5, %j3, 0, 31, -1; mov.b64 $b, {%j4, %j5};",
]
AROUND = [
    "{}",
    "{}",
    "{}",
    "@$c bra over@; {} over@:",
    "@!$c bra over@; {} over@:",
    "setp.ge.s32 $c, $i, $j; @$c bra over@; {} over@:",
    "setp.?.u32 $c, $i, #; @$c bra over@; {} over@:",
    "@$c bra done; {}",
    "@$c bra other@; {} bra over@; other@: add.s32 $i, $i, #; over@:",
    "mov.u32 $i, #; again@: {} add.s32 $i, $i, ^; setp.?.s32 $d, $i, $j; @$d bra again@;",
    "mov.u32 $i, $j; again@: setp.ge.s32 $c, $i, %i0; @$c bra over@; {} add.s32 $i, $i, ^;"
    " bra again@; over@:",
    "mov.u32 $i, #; again@: {} add.s32 $i, $i, -^; setp.gt.s32 $d, $i, #; @$d bra again@;",
    "mov.u32 $i, %i4; again@: {} add.s32 $i, $i, %i7; setp.lt.?u32 $d, $i, %i0; @$d bra again@;",
    "mov.u32 $i, #; again@: {} add.s32 $i, $i, ^; setp.ne.s32 $d, $i, #; @$d bra again@;",
    "and.b32 $i, $j, -4; again@: {} add.s32 $i, $i, -4; setp.ne.s32 $d, $i, 0; @$d bra again@;",
    "mov.u32 $i, #; again@: {} add.s32 $i, $i, ^; add.s64 $a, $a, 4; add.s32 $j, $j, #;"
    " setp.lt.s32 $d, $i, #; @$d bra again@;",
    "mov.u32 $i, %i2; shl.b32 %j2, $i, 2; setp.ge.s32 $c, %j2, %i0; @$c bra over@; again@: {}"
    " add.s32 $i, $i, %i7; shl.b32 %j2, $i, 2; setp.lt.s32 $d, %j2, %i0; @$d bra again@; over@:",
    "mov.u32 $i, #; again@: {} add.s32 $i, $i, ^; add.s32 %j2, $i, 3; setp.lt.u32 $d, %j2, %i0;"
    " @$d bra again@;",
    "again@: {} shr.u32 $i, $i, 1; setp.ne.s32 $d, $i, 0; @$d bra again@;",
]
SMALL = [
    0,
    1,
    2,
    3,
    4,
    5,
    7,
    8,
    10,
    15,
    16,
    31,
    32,
    33,
    60,
    64,
    100,
    127,
    128,
    255,
    1000,
    -1,
    -2,
    -3,
    -4,
    -8,
    -16,
    -100,
]
EDGES = [(1 << 31) - 1, -(1 << 31), (1 << 31) - 4, 1 << 30, (1 << 16), (1 << 32) - 1, -(1 << 30)]


class Writer:
    """Writes a kernel by what a random number generator draws."""

    def __init__(self, chance: random.Random):
        self.chance, self.labels = chance, 0

    def number(self) -> int:
        return self.chance.choice(SMALL if self.chance.randrange(12) else EDGES)

    def filled(self, text: str) -> str:
        names = {
            "i": "%i",
            "j": "%i",
            "w": "%w",
            "v": "%w",
            "a": "%a",
            "b": "%a",
            "c": "%c",
            "d": "%c",
        }
        for letter, name in names.items():
            count = 4 if name in ("%w", "%a") else 8 if name == "%i" else 6
            text = text.replace(f"${letter}", f"{name}{self.chance.randrange(count)}")
        while "#" in text:
            text = text.replace("#", str(self.number()), 1)
        while "^" in text:
            text = text.replace("^", str(self.chance.choice([1, 1, 2, 3, 4, 8, 32])), 1)
        text = text.replace("?u32", "u32")
        text = text.replace("~", str(self.chance.choice([0, 1, 2, 3, 8, 31])))
        return text.replace("?", self.chance.choice(COMPARED))

    def line(self) -> str:
        kind = self.chance.choices([NUMBERS, TESTS, ACCESSES, POINTERS], [6, 2, 5, 1])[0]
        return self.filled(self.chance.choice(kind))

    def block(self, depth: int) -> str:
        lines = [self.line() for _ in range(self.chance.randrange(1, 5))]
        if depth < 2 and self.chance.randrange(2):
            lines.insert(self.chance.randrange(len(lines) + 1), self.block(depth + 1))
        self.labels += 1
        around = self.chance.choice(AROUND).replace("@:", f"@{self.labels}:")
        around = around.replace("@;", f"@{self.labels};").replace("{}", "\0")
        around = self.filled(around)
        for word in ("over", "again", "other"):
            around = around.replace(f"{word}@", word)
        return around.replace("\0", " ".join(lines))

    def kernel(self) -> str:
        body = "\n".join(self.block(0) for _ in range(self.chance.randrange(1, 4)))
        return f"{HEAD}{body}\ndone: ret; }}\n"


def launch(chance: random.Random) -> tuple[bytes, int, int]:
    """Parameters, blocks, threads."""
    writer = Writer(chance)
    numbers = [writer.number() & (1 << 32) - 1 for _ in range(2)]
    pointers = [chance.choice([P, P + 64, Q, 0, 5]) for _ in range(4)]
    chosen = [chance.choice([0, 1, 2, 3, writer.number() & (1 << 32) - 1]) for _ in range(4)]
    divisor = chance.choice([1, 2, 3, 7, 64, 1000])
    factor, shift = magic(divisor) if chance.randrange(4) else (chance.randrange(1 << 32), 5)
    params = PARAMS.pack(
        P,
        Q,
        writer.number() & (1 << 64) - 1,
        *numbers,
        *pointers,
        *chosen,
        divisor,
        factor % (1 << 32),
        shift,
    )
    return params, chance.choice([1, 2, 5, 1000]), chance.choice([1, 32, 96, 1024])


class Failed(AssertionError):
    pass


def check(core: Core, seed: int) -> tuple[int, int]:
    """One kernel, some of the threads of some launches. How many words were used, and how many of
    them were bounded."""
    chance = random.Random(seed)
    text = Writer(chance).kernel()
    module = parse_module(text)
    kernel = module.functions["kernel"]
    flat = flatten(module, kernel)
    sets = analyse(module, kernel, flat, True)
    used = bounded = 0
    for _ in range(4 if sets.closed else 0):
        params, blocks, threads = launch(chance)
        with core.loaded(sets, len(params)) as reaches:
            found = core.launch(reaches, params, (blocks, 1, 1), (threads, 1, 1))
        assert found
        used += len(found.words)
        bounded += sum(None not in word.reach for word in found.words)
        for _ in range(6):
            block = chance.choice([0, blocks - 1, chance.randrange(blocks)])
            thread = chance.choice([0, threads - 1, chance.randrange(threads)])
            where = {"tid.x": thread, "ntid.x": threads, "ctaid.x": block, "nctaid.x": blocks}
            places = {p.name: p.offset for p in kernel.params}
            one = Thread(flat, params, places, where, lambda: chance.choice([0, 5, 1 << 31, -1]))
            _check_thread(one, found, f"{text}\n{where} {PARAMS.unpack(params)} seed {seed}")
    return used, bounded


def _check_thread(thread: Thread, found: Launch, about: str) -> None:
    """Each access is within one of its words' bounds; only bytes that are said to be read are."""
    for accessed in thread.run():
        fits = False
        for word in found.words:
            base = int.from_bytes(thread.params[word.at : word.at + 8], "little")
            span = word.reach.written if accessed.written else word.reach.read
            low = accessed.address - base
            uses = word.use & (Use.WRITTEN if accessed.written else Use.READ)
            fits |= bool(uses) and (
                span is None or (span.low <= low and low + accessed.bytes <= span.high)
            )
        if not fits:
            raise Failed(f"{accessed}\n{found}\n{about}")
    read = {byte for at, size in found.read for byte in range(at, at + size)}
    if not thread.read <= read:
        raise Failed(f"reads {sorted(thread.read - read)} of its parameters\n{found}\n{about}")


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Core:
    return Core(tmp_path_factory.mktemp("bounds"))


COMMON: dict[str, Any] = {"suppress_health_check": list(HealthCheck), "deadline": None}
SEEN = [0, 0]


@settings(max_examples=300, **COMMON)
@given(seed=st.integers(0, 1 << 40))
def test_random_kernels_keep_to_their_bounds(core: Core, seed: int) -> None:
    used, bounded = check(core, seed)
    event("bounded" if bounded else "not")
    SEEN[0] += used
    SEEN[1] += bounded


def test_enough_of_their_words_are_bounded() -> None:
    assert not SEEN[0] or SEEN[1] >= 0.2 * SEEN[0], SEEN


@pytest.mark.slow
@pytest.mark.timeout(1800)
@settings(max_examples=20_000, **COMMON)
@given(seed=st.integers(0, 1 << 40))
def test_many_random_kernels_keep_to_their_bounds(core: Core, seed: int) -> None:
    check(core, seed)
